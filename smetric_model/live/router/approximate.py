"""Hits learnt from responses: which instance has answered which chain of messages.

An instance that has begun to answer a prompt holds it; nobody tells when it drops it.  So the
index forgets, least recently used first: per instance what no longer fits its KV cache (where
that is known), over all instances what no longer fits the memory given.  The ends of chains are
forgotten before their beginnings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from smetric_model.live.router.chain import Chain, answered_key
from smetric_model.live.router.prefix_table import longest_prefixes

__all__ = ["ENTRY_BYTES", "ApproximateIndex"]

#: Memory of one key on one instance [bytes]: two dictionary places, two integers, a tuple, a mask
#: (measured, ``tests/live/router/test_approximate.py`` holds it).
ENTRY_BYTES = 400


class ApproximateIndex:
    """What every instance is believed to hold.

    Parameters
    ----------
    budget_bytes : int
        Memory of all entries together [bytes].
    """

    def __init__(self, budget_bytes: int):
        self._limit = max(1, budget_bytes // ENTRY_BYTES)
        self._masks: dict[int, int] = {}
        #: bit of an instance -> key -> (time of last use, tokens of the element)
        self._held: dict[int, OrderedDict[int, tuple[int, int]]] = {}
        self._tokens: dict[int, int] = {}
        self._entries = 0
        self._clock = 0
        self.forgotten = 0

    @property
    def entries(self) -> int:
        """Keys held, counted for every instance that holds them."""
        return self._entries

    @property
    def memory_bytes(self) -> int:
        """Memory of the entries, estimated [bytes]."""
        return self._entries * ENTRY_BYTES

    def hits(self, chain: Chain, wanted: int) -> dict[int, int]:
        """Return the longest prefix each wanted instance is believed to hold [tokens].

        A prefix is held with the answer that followed it where the same instance gave it.
        """
        found = longest_prefixes(chain.keys, (self._masks,), wanted)
        hits = {}
        for bit, count in found.items():
            last = count - 1
            tokens = chain.ends[last]
            if chain.answers[last] > tokens and self._holds(answered_key(chain.keys[last]), bit):
                tokens = chain.answers[last]
            hits[bit] = tokens
        return hits

    def _holds(self, key: int, bit: int) -> bool:
        return bool(self._masks.get(key, 0) & bit)

    def learn(self, chain: Chain, bit: int, capacity_tokens: int | None = None) -> None:
        """Record that an instance has begun to answer a prompt.

        Parameters
        ----------
        chain : Chain
            The prompt.
        bit : int
            Of the instance.
        capacity_tokens : int, optional
            Tokens its KV cache holds [tokens].
        """
        if not chain.keys:
            return
        held = self._held.setdefault(bit, OrderedDict())
        self._clock += 1
        ends = chain.ends
        # From the end: the beginnings are used last, and forgotten last.
        for index in range(len(chain.keys) - 1, -1, -1):
            tokens = ends[index] - (ends[index - 1] if index else 0)
            self._touch(held, chain.keys[index], bit, tokens)
        if capacity_tokens is not None:
            while held and self._tokens[bit] > capacity_tokens:
                self._forget_oldest(bit)
        self._keep_within_budget()

    def answered(self, chain: Chain, bit: int, tokens: int) -> None:
        """Record that an instance has answered a prompt to the end, with so many tokens."""
        held = self._held.get(bit)
        if held is None or not chain.keys or chain.keys[-1] not in held:
            return
        self._clock += 1
        self._touch(held, answered_key(chain.keys[-1]), bit, tokens)
        held.move_to_end(answered_key(chain.keys[-1]), last=True)
        for key in reversed(chain.keys):
            held.move_to_end(key)
        self._keep_within_budget()

    def last_use(self, chain: Chain, bit: int) -> int:
        """Return when an instance last used the longest prefix it holds; 0 if it holds none."""
        held = self._held.get(bit)
        if held:
            for key in reversed(chain.keys):
                if key in held:
                    return held[key][0]
        return 0

    def forget_until(self, bit: int, last_use: int) -> None:
        """Forget what an instance has not used since ``last_use``.

        An engine that has dropped one prefix has dropped what it used less recently, too.
        """
        held = self._held.get(bit)
        while held:
            if next(iter(held.values()))[0] > last_use:
                return
            self._forget_oldest(bit)

    def drop_instance(self, bit: int) -> None:
        """Forget everything about an instance (it restarted, or was removed)."""
        for key in self._held.pop(bit, ()):
            self._clear_bit(key, bit)
            self._entries -= 1
        self._tokens.pop(bit, None)

    def entries_of(self, bit: int) -> int:
        """Return how many keys an instance holds."""
        return len(self._held.get(bit, ()))

    # ----------------------------------------------------------------

    def _touch(
        self, held: OrderedDict[int, tuple[int, int]], key: int, bit: int, tokens: int
    ) -> None:
        old = held.get(key)
        held[key] = (self._clock, tokens)
        if old is not None:
            held.move_to_end(key)
            self._tokens[bit] += tokens - old[1]
            return
        self._masks[key] = self._masks.get(key, 0) | bit
        self._tokens[bit] = self._tokens.get(bit, 0) + tokens
        self._entries += 1

    def _keep_within_budget(self) -> None:
        while self._entries > self._limit:
            oldest: Sequence[tuple[int, int]] = [
                (next(iter(held.values()))[0], bit) for bit, held in self._held.items() if held
            ]
            self._forget_oldest(min(oldest)[1])

    def _forget_oldest(self, bit: int) -> None:
        held = self._held[bit]
        self._drop(held, next(iter(held)), bit)
        self.forgotten += 1

    def _drop(self, held: OrderedDict[int, tuple[int, int]], key: int, bit: int) -> None:
        self._tokens[bit] -= held.pop(key)[1]
        self._clear_bit(key, bit)
        self._entries -= 1

    def _clear_bit(self, key: int, bit: int) -> None:
        mask = self._masks.get(key, 0) & ~bit
        if mask:
            self._masks[key] = mask
        else:
            self._masks.pop(key, None)
