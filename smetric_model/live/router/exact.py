"""Hits from KV events: which blocks every engine has in its GPU memory.

An engine names its blocks by hashes that depend on its version, its settings and a random seed.
They are taken for opaque names; the index's own keys are chained hashes of the token ids, so that
engines of any kind share one table and a prompt is hashed once.

Engines tell what they cached after the step that computed it.  Until then a prompt that was sent
counts as cached where it was sent (*speculation*): requests that share it and come meanwhile find
it.  Speculation ends with the event, or a while after the first token.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

import orjson
from xxhash import xxh3_64_intdigest

from smetric_model.live.router.chain import SEED
from smetric_model.live.router.fleet import Instance
from smetric_model.live.router.kv_wire import BlockHash, BlocksRemoved, BlocksStored
from smetric_model.live.router.prefix_table import longest_prefixes

__all__ = ["ExactIndex", "ExactPrompt", "Speculation", "block_keys"]

#: Kinds of attention whose blocks say that a prefix is there; a window's blocks do not.
FULL_ATTENTION = ("full_attention", "mla_attention", "sink_full_attention")
_TOKEN_BYTES = 4


def block_keys(
    data: bytes,
    block_tokens: int,
    *,
    lora: str | None = None,
    salt: str | None = None,
    known: Sequence[int] = (),
) -> list[int]:
    """Return the key of every whole block of a prompt.

    Parameters
    ----------
    data : bytes
        Token ids, four bytes each.
    block_tokens : int
        Tokens of a block [tokens].
    lora, salt : str, optional
        What else the engine's hash holds: the adapter in every block, the salt in the first.
    known : sequence of int
        Keys of the first blocks, if they are known.
    """
    step = block_tokens * _TOKEN_BYTES
    keys = list(known)
    key = keys[-1] if keys else SEED
    each = _extra([lora]) if lora else b""
    start = len(keys)
    if not start and len(data) >= step and salt:
        first = _extra([lora, salt] if lora else [salt])
        key = xxh3_64_intdigest(data[:step] + first, key)
        keys.append(key)
        start = 1
    if each:
        for begin in range(start * step, len(data) - step + 1, step):
            key = xxh3_64_intdigest(data[begin : begin + step] + each, key)
            keys.append(key)
    else:
        view = memoryview(data)
        for begin in range(start * step, len(data) - step + 1, step):
            key = xxh3_64_intdigest(view[begin : begin + step], key)
            keys.append(key)
    return keys


def _extra(items: Sequence[Any]) -> bytes:
    return orjson.dumps(list(items), default=repr) if items else b""


class ExactPrompt:
    """A prompt's tokens, and its keys for any block size.

    Parameters
    ----------
    data : bytes
        Token ids, four bytes each.
    lora, salt : str, optional
        What else the engine's hashes hold.
    """

    __slots__ = ("_keys", "data", "lora", "salt", "tokens")

    def __init__(self, data: bytes, lora: str | None = None, salt: str | None = None):
        self.data = data
        self.tokens = len(data) // _TOKEN_BYTES
        self.lora = lora
        self.salt = salt
        self._keys: dict[int, list[int]] = {}

    def keys(self, block_tokens: int, known: Sequence[int] = ()) -> list[int]:
        """Return the key of every whole block; hashed once."""
        keys = self._keys.get(block_tokens)
        if keys is None:
            keys = self._keys[block_tokens] = block_keys(
                self.data, block_tokens, lora=self.lora, salt=self.salt, known=known
            )
        return keys


class Speculation:
    """Blocks that count as cached before the engine says so."""

    __slots__ = ("_bit", "_index", "_keys")

    def __init__(self, index: ExactIndex, bit: int, keys: Sequence[int]):
        self._index = index
        self._bit = bit
        self._keys: Sequence[int] | None = keys

    def first_token(self) -> None:
        """Let it end a while from now: the engine has cached the prompt, and says so soon."""
        keys, self._keys = self._keys, None
        if keys:
            self._index._expire_later(self._bit, keys)

    def drop(self) -> None:
        """End it now: the request never got there."""
        keys, self._keys = self._keys, None
        if keys:
            self._index._unspeculate(self._bit, keys)


class ExactIndex:
    """Blocks of every instance.

    Parameters
    ----------
    speculative_s : float
        How long speculation lasts after the first token [s].
    clock : callable
        Monotonic seconds; for tests.
    """

    def __init__(self, speculative_s: float = 2.0, clock: Any = time.monotonic):
        self._speculative_s = speculative_s
        self._clock = clock
        self._masks: dict[int, int] = {}
        self._guesses: dict[int, int] = {}
        self._ending: deque[tuple[float, int, Sequence[int]]] = deque()
        #: bit -> engine's name of a block -> [own key, times stored]
        self._names: dict[int, dict[BlockHash, list[int]]] = {}
        self._block_tokens: dict[int, int] = {}
        self.live = 0
        self.orphans: dict[int, int] = {}
        self.loras: set[str] = set()

    # ---------------------------------------------------------------- asking

    @property
    def block_sizes(self) -> set[int]:
        """Block sizes of the engines [tokens]."""
        return set(self._block_tokens.values())

    def hits(self, prompt: ExactPrompt, instances: Sequence[Instance]) -> dict[int, int]:
        """Return the longest cached prefix [tokens] of every instance whose events are complete.

        At least one token is computed anew, as the engines do: a full hit ends a block earlier.
        """
        self._end_guesses()
        by_size: dict[int, int] = {}
        hits: dict[int, int] = {}
        for item in instances:
            if self.live & item.bit:
                hits[item.bit] = 0
                size = self._block_tokens.get(item.bit)
                if size is not None:
                    by_size[size] = by_size.get(size, 0) | item.bit
        tables = (self._masks, self._guesses) if self._guesses else (self._masks,)
        for size, wanted in by_size.items():
            most = max(prompt.tokens - 1, 0) // size
            for bit, count in longest_prefixes(prompt.keys(size), tables, wanted).items():
                hits[bit] = min(count, most) * size
        return hits

    def set_block_size(self, bit: int, block_tokens: int) -> None:
        """Take an engine's block size before its first event tells it [tokens]."""
        self._block_tokens.setdefault(bit, block_tokens)

    def blocks(self, bit: int) -> int:
        """Return how many blocks an instance has."""
        return len(self._names.get(bit, ()))

    # ---------------------------------------------------------------- speculation

    def speculate(self, prompt: ExactPrompt, bit: int) -> Speculation | None:
        """Count a prompt as cached on an instance it is sent to."""
        size = self._block_tokens.get(bit)
        if size is None or not self.live & bit:
            return None
        masks, guesses = self._masks, self._guesses
        keys = [
            key for key in prompt.keys(size) if not (masks.get(key, 0) | guesses.get(key, 0)) & bit
        ]
        for key in keys:
            guesses[key] = guesses.get(key, 0) | bit
        return Speculation(self, bit, keys)

    def _expire_later(self, bit: int, keys: Sequence[int]) -> None:
        self._ending.append((self._clock() + self._speculative_s, bit, keys))
        self._end_guesses()

    def _end_guesses(self) -> None:
        ending = self._ending
        if not ending:
            return
        now = self._clock()
        while ending and ending[0][0] <= now:
            _, bit, keys = ending.popleft()
            self._unspeculate(bit, keys)

    def _unspeculate(self, bit: int, keys: Sequence[int]) -> None:
        guesses = self._guesses
        for key in keys:
            _clear(guesses, key, bit)

    # ---------------------------------------------------------------- events

    def stored(self, bit: int, event: BlocksStored) -> None:
        """Take blocks that an engine has cached.

        Blocks of other media than the GPU, and of windows, say nothing about a local hit.
        """
        if not _counts(event.medium) or (
            event.kind is not None and event.kind not in FULL_ATTENTION
        ):
            return
        names = self._names.setdefault(bit, {})
        self._block_tokens[bit] = event.block_tokens
        if event.lora_name:
            self.loras.add(event.lora_name)
        if event.parent is None:
            key = SEED
        else:
            parent = names.get(event.parent)
            if parent is None:
                # Stored before the subscription: where it hangs cannot be known.
                self.orphans[bit] = self.orphans.get(bit, 0) + len(event.hashes)
                return
            key = parent[0]
        data = array("I", event.tokens).tobytes()
        step = event.block_tokens * _TOKEN_BYTES
        extras = event.extra_keys
        masks, guesses = self._masks, self._guesses
        for index, name in enumerate(event.hashes):
            piece = data[index * step : (index + 1) * step]
            if len(piece) < step:
                break
            if extras is not None:
                extra = extras[index] if index < len(extras) else None
                if extra:
                    piece += _extra(extra)
            elif event.lora_name:
                piece += _extra([event.lora_name])
            key = xxh3_64_intdigest(piece, key)
            entry = names.get(name)
            if entry is None:
                names[name] = [key, 1]
            else:
                entry[1] += 1
            masks[key] = masks.get(key, 0) | bit
            if guesses:
                _clear(guesses, key, bit)

    def removed(self, bit: int, event: BlocksRemoved) -> None:
        """Take blocks that an engine has evicted."""
        if not _counts(event.medium):
            return
        names = self._names.get(bit)
        if names is None:
            return
        for name in event.hashes:
            entry = names.get(name)
            if entry is None:
                continue
            entry[1] -= 1
            if entry[1] == 0:
                del names[name]
                _clear(self._masks, entry[0], bit)
                _clear(self._guesses, entry[0], bit)

    def cleared(self, bit: int) -> None:
        """Forget all blocks of an instance: it dropped them, restarted, or was removed."""
        for key, _ in self._names.pop(bit, {}).values():
            _clear(self._masks, key, bit)
        for key in [key for key, mask in self._guesses.items() if mask & bit]:
            _clear(self._guesses, key, bit)
        self.orphans.pop(bit, None)

    def forget(self, bit: int) -> None:
        """Forget an instance altogether."""
        self.cleared(bit)
        self._block_tokens.pop(bit, None)
        self.live &= ~bit


def _counts(medium: str | None) -> bool:
    return medium is None or medium.upper() == "GPU"


def _clear(table: dict[int, int], key: int, bit: int) -> None:
    mask = table.get(key, 0)
    if mask & bit:
        mask &= ~bit
        if mask:
            table[key] = mask
        else:
            del table[key]
