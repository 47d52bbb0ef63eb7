"""Caches of the readable simulator: one instance's KV, and the store that all share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable

from smetric_model.simulate.inputs import CLAIRVOYANT
from smetric_model.simulate.reference_eviction import Line

__all__ = ["Cache", "GlobalTier", "leading"]


class Cache:
    """KV of one instance: blocks in order of use, and private KV of running requests [tokens]."""

    def __init__(self, pool_tokens: int, block_tokens: int, unused: Line):
        self.changes: list[tuple[int, bool]] = []  # blocks that came and went, for the routers
        self.free = pool_tokens
        self.block_tokens = block_tokens
        self.cached: set[int] = set()
        self.pins: Counter[int] = Counter()
        self.unused = unused  # cached, not pinned
        self.victims: list[int] = []  # of the last admission, in order of eviction
        self.inserted = 0
        self.evicted = 0

    def hit(self, path: list[int]) -> int:
        """Blocks of the path that are cached, from its beginning."""
        return leading(path, self.cached)

    @property
    def evictable(self) -> int:
        """Tokens that are cached and in nobody's use."""
        return len(self.unused) * self.block_tokens

    def admit(self, path: list[int], need: int) -> bool:
        """Pin the path and reserve ``need`` tokens; change nothing if they do not fit."""
        own = sum(block in self.unused for block in path) * self.block_tokens
        if need > self.free + self.evictable - own:
            return False
        self.pin(path)
        return self.take(need)

    def take(self, need: int) -> bool:
        """Reserve ``need`` tokens, evicting what nobody uses; change nothing if they do not fit."""
        if need > self.free + self.evictable:
            return False
        self.victims.clear()
        while self.free < need:
            block = self.unused.first()
            self.unused.remove(block)
            self.cached.remove(block)
            self.victims.append(block)
            self.changes.append((block, False))
            self.free += self.block_tokens
            self.evicted += 1
        self.free -= need
        return True

    def pin(self, path: list[int]) -> None:
        """Pin cached blocks, as a running request does."""
        for block in path:
            self.pins[block] += 1
            self.unused.remove(block)

    def drop(self) -> None:
        """Lose everything that is cached, when nothing is in use."""
        self.changes += [(block, False) for block in self.unused]
        self.free += self.evictable
        self.unused.clear()
        self.cached.clear()

    def insert(self, path: list[int]) -> int:
        """Make computed blocks reusable; returns those that were not there yet."""
        new = [block for block in path if block not in self.cached]
        self.cached.update(new)
        self.changes += [(block, True) for block in new]
        self.inserted += len(new)
        return len(new)

    def release(self, path: list[int], private: int) -> None:
        """Give back a request's KV: its cached blocks stay, the last one the oldest."""
        self.free += private
        for block in reversed(path):
            self.pins[block] -= 1
            if not self.pins[block]:
                del self.pins[block]
                if block in self.cached:
                    self.unused.add(block)


class GlobalTier:
    """The store that all instances share."""

    def __init__(self, capacity: int, blocks: Line):
        self.capacity = capacity
        self.blocks = blocks
        self.written = 0
        self.evicted = 0

    def hit(self, path: list[int], held: int) -> int:
        """Blocks of the path from its beginning to where neither tier has the next one."""
        return held + leading(path[held:], self.blocks)

    def touch(self, path: list[int]) -> None:
        """Use the blocks of a path that are stored."""
        for block in reversed(path):
            if block in self.blocks:
                self.blocks.add(block)

    def write(self, path: list[int]) -> int:
        """Write what is missing, touch everything; returns the blocks written."""
        if self.blocks.eviction == CLAIRVOYANT:
            return self.write_if_needed_sooner(path)
        missing = [block for block in path if block not in self.blocks]
        for block in reversed(path):
            self.blocks.add(block)
        self.written += len(missing)
        while len(self.blocks) > self.capacity:
            self.evict()
        return len(missing)

    def write_if_needed_sooner(self, blocks: Iterable[int]) -> int:
        """Write blocks one by one, unless they would be the first to go."""
        before = self.written
        for block in blocks:
            if block in self.blocks:
                continue
            if len(self.blocks) == self.capacity:
                key = self.blocks.future.key
                if key(self.blocks.first()) < key(block):
                    continue
                self.evict()
            self.blocks.add(block)
            self.written += 1
        return self.written - before

    def evict(self) -> None:
        """Drop the block that is the first to go."""
        self.blocks.remove(self.blocks.first())
        self.evicted += 1


def leading(path: list[int], blocks: Container[int]) -> int:
    """Return how many of the first blocks of a path are there, without a gap."""
    return next((k for k, block in enumerate(path) if block not in blocks), len(path))
