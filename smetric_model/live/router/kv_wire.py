"""KV events as vLLM sends them, both generations.

Until June 2026 an event was a positional array (``["BlockStored", hashes, parent, …]``), since then
a map with ``type``; batches are arrays ``[ts, events, data_parallel_rank]`` or maps.  Keys that are
left out and keys not known are normal.  Block hashes are integers (the low 64 bits) or 32 bytes;
here they are opaque names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

__all__ = [
    "AllCleared",
    "BlocksRemoved",
    "BlocksStored",
    "KvBatch",
    "WireError",
    "decode_batch",
]

BlockHash = int | bytes


class WireError(ValueError):
    """A message is none of KV events."""


@dataclass(slots=True)
class BlocksStored:
    """Blocks in a row that were cached.

    Parameters
    ----------
    hashes : sequence of int or bytes
        The engine's names of the blocks.
    parent : int, bytes or None
        The block before the first; None: the prompt starts here.
    tokens : sequence of int
        Token ids of all of them.
    block_tokens : int
        Tokens of a block [tokens].
    medium : str or None
        Where they lie: ``GPU``, ``CPU`` …
    extra_keys : sequence or None
        For every block what else its hash holds (LoRA, cache salt, images).
    lora_name : str or None
        LoRA adapter.
    group : int or None
        KV cache group.
    kind : str or None
        Kind of attention of that group.
    """

    hashes: Sequence[BlockHash]
    parent: BlockHash | None
    tokens: Sequence[int]
    block_tokens: int
    medium: str | None = None
    extra_keys: Sequence[Any] | None = None
    lora_name: str | None = None
    group: int | None = None
    kind: str | None = None


@dataclass(slots=True)
class BlocksRemoved:
    """Blocks that were evicted."""

    hashes: Sequence[BlockHash]
    medium: str | None = None
    group: int | None = None


@dataclass(slots=True)
class AllCleared:
    """Everything was dropped."""


Event = BlocksStored | BlocksRemoved | AllCleared


@dataclass(slots=True)
class KvBatch:
    """What happened in one engine step.

    Parameters
    ----------
    time_s : float
        When [s since 1970].
    events : list
        In order.
    unknown : int
        Events of types not known here.
    """

    time_s: float
    events: list[Event]
    unknown: int = 0


#: positional fields after the type, first generation
_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED = ("block_hashes", "medium", "group_idx")
_decoder = msgspec.msgpack.Decoder()


def decode_batch(payload: bytes) -> KvBatch:
    """Read one message.

    Raises
    ------
    WireError
        If it is no batch of KV events.
    """
    try:
        raw = _decoder.decode(payload)
        if isinstance(raw, dict):
            time_s, events = raw["ts"], raw["events"]
        else:
            time_s, events = raw[0], raw[1]
        batch = KvBatch(float(time_s), [])
        for item in events:
            event = _event(item)
            if event is None:
                batch.unknown += 1
            else:
                batch.events.append(event)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise WireError(f"not a batch of KV events: {type(error).__name__}") from None
    return batch


def _event(item: Any) -> Event | None:
    if isinstance(item, dict):
        kind, fields = item["type"], item
    else:
        kind = item[0]
        names = {"BlockStored": _STORED, "BlockRemoved": _REMOVED}.get(kind, ())
        fields = dict(zip(names, item[1:], strict=False))
    if kind == "BlockStored":
        return _stored(fields)
    if kind == "BlockRemoved":
        return BlocksRemoved(
            _hashes(fields["block_hashes"]), fields.get("medium"), fields.get("group_idx")
        )
    return AllCleared() if kind == "AllBlocksCleared" else None


def _stored(fields: dict[str, Any]) -> BlocksStored:
    hashes = _hashes(fields["block_hashes"])
    tokens, block_tokens = fields["token_ids"], fields["block_size"]
    if not isinstance(tokens, list) or not isinstance(block_tokens, int) or block_tokens < 1:
        raise ValueError("tokens or block size")
    parent = fields.get("parent_block_hash")
    if parent is not None and not isinstance(parent, int | bytes):
        raise ValueError("parent")
    return BlocksStored(
        hashes,
        parent,
        tokens,
        block_tokens,
        fields.get("medium"),
        fields.get("extra_keys"),
        fields.get("lora_name"),
        fields.get("group_idx"),
        fields.get("kv_cache_spec_kind"),
    )


def _hashes(values: Any) -> Sequence[BlockHash]:
    if not isinstance(values, list) or not all(isinstance(value, int | bytes) for value in values):
        raise ValueError("hashes")
    return values
