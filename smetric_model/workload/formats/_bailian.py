"""Bailian (Qwen usage traces): JSON lines of requests linked by ``parent_chat_id``.

``chat_id`` names a *request*; a conversation is what the parent links join.  Ids are per-block
*content* hashes in two of the traces and chained in the others; the radix tree reads both.  Blocks
have 16 tokens, the last one partly filled; times are seconds; ``turn`` counts from 1.
Source: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

from typing import Any

from smetric_model.workload.formats._record import (
    BadLineError,
    Record,
    block_array,
    require,
    seconds,
    tokens,
)

__all__ = ["BLOCK_TOKENS", "parse"]

BLOCK_TOKENS = 16


def _chat(value: Any, name: str) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise BadLineError(f"{name} is neither an integer nor a string")
    return value


def parse(row: dict[str, Any], line: int) -> list[Record]:
    """One request."""
    parent = row.get("parent_chat_id")
    parent = None if parent is None else _chat(parent, "parent_chat_id")
    turn = tokens(row.get("turn", 0), "turn")
    return [
        Record(
            line=line,
            arrival=seconds(require(row, "timestamp"), "timestamp"),
            prompt_tokens=tokens(require(row, "input_length"), "input_length"),
            output_tokens=tokens(require(row, "output_length"), "output_length"),
            ids=block_array(require(row, "hash_ids"), "hash_ids"),
            turn=turn - 1 if turn else -1,
            key=_chat(require(row, "chat_id"), "chat_id"),
            parent=None if parent in (None, -1, "-1") else parent,
        )
    ]
