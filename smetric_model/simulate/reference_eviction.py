"""What the readable simulator evicts first: blocks in order of use, of death, or of next use."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from smetric_model.simulate.inputs import CLAIRVOYANT, DEAD_FIRST

if TYPE_CHECKING:
    from smetric_model.simulate.inputs import Inputs

__all__ = ["Future", "Line", "Sessions"]

#: Later than every request.
NEVER = 1 << 62


class Future:
    """Which request uses a block next: by the trace's order, whatever the router will do."""

    def __init__(self, inputs: Inputs, path: Callable[[int], list[int]]):
        self.passed: set[int] = set()
        self.uses: dict[int, deque[int]] = {}
        tiers = inputs.tiers
        if CLAIRVOYANT in (tiers.local_eviction, tiers.global_eviction):
            for request in range(inputs.requests.turn.size):
                for block in path(request):
                    self.uses.setdefault(block, deque()).append(request)

    def next_use(self, block: int) -> int:
        """Return the first request that uses the block and has not been admitted yet."""
        uses = self.uses[block]
        while uses and uses[0] in self.passed:
            uses.popleft()
        return uses[0] if uses else NEVER

    def key(self, block: int) -> tuple[int, int]:
        """Return the order of eviction, largest first; along a path block numbers grow."""
        return self.next_use(block), block


class Line:
    """Blocks in line for eviction.

    First those that were demoted, then the least recently added; or (clairvoyant) the one that is
    used last of all, of those used never again the one with the largest number.
    """

    def __init__(self, eviction: int, future: Future):
        self.eviction, self.future = eviction, future
        self.blocks: OrderedDict[int, None] = OrderedDict()  # oldest first
        self.demoted: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.blocks) + len(self.demoted)

    def __contains__(self, block: object) -> bool:
        return block in self.blocks or block in self.demoted

    def __iter__(self) -> Iterator[int]:
        yield from self.demoted
        yield from self.blocks

    def add(self, block: int) -> None:
        """Put a block, new or not, at the end of the line."""
        self.remove(block)
        self.blocks[block] = None

    def remove(self, block: int) -> None:
        """Take a block out, if it is there."""
        self.blocks.pop(block, None)
        self.demoted.pop(block, None)

    def clear(self) -> None:
        """Take all blocks out."""
        self.blocks.clear()
        self.demoted.clear()

    def demote(self, block: int) -> None:
        """Put a block behind those demoted before, ahead of all others."""
        if self.blocks.pop(block, block) is None:
            self.demoted[block] = None

    def first(self) -> int:
        """Return the block that is evicted next."""
        if self.eviction == CLAIRVOYANT:
            return max(self, key=self.future.key)
        return next(iter(self))


class Sessions:
    """Which blocks a session under way has used: the others are dead."""

    def __init__(self, inputs: Inputs, path: Callable[[int], list[int]]):
        self.inputs, self.path = inputs, path
        tiers = inputs.tiers
        self.watched = DEAD_FIRST in (tiers.local_eviction, tiers.global_eviction)
        self.users: Counter[int] = Counter()  # requests of sessions under way, by block
        previous = inputs.requests.previous.tolist()
        self.root = list(range(len(previous)))
        for request, before in enumerate(previous):  # a turn stands behind the one before it
            if before >= 0:
                self.root[request] = self.root[before]
        self.left = Counter(self.root)

    def arrived(self, request: int) -> None:
        """Note that a session under way asks for the blocks of a request."""
        if self.watched:
            self.users.update(self.path(request))

    def over(self, request: int) -> Iterator[int]:
        """Note that a request is done; yields the blocks that are dead now, tail first."""
        if not self.watched:
            return
        root = self.root[request]
        self.left[root] -= 1
        if self.left[root]:
            return
        turn = root
        while turn >= 0:
            for block in reversed(self.path(turn)):
                self.users[block] -= 1
                if not self.users[block]:
                    yield block
            turn = int(self.inputs.requests.following[turn])
