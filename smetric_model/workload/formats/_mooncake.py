"""Mooncake: JSON lines of ``timestamp`` [ms], ``input_length``, ``output_length``, ``hash_ids``.

Ids are chained (an id stands for its whole prefix), one for every begun block of 512 tokens: the
partly filled last block has an id of its own.  Dialects add ``session_id``, ``delay`` and more;
columns that are not known are ignored.
Source: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces).
"""

from __future__ import annotations

from typing import Any

from smetric_model.workload.formats._record import (
    Record,
    block_array,
    require,
    seconds,
    tokens,
)

__all__ = ["BLOCK_TOKENS", "parse"]

BLOCK_TOKENS = 512


def parse(row: dict[str, Any], line: int) -> list[Record]:
    """One request."""
    session = row.get("session_id")
    return [
        Record(
            line=line,
            arrival=seconds(require(row, "timestamp"), "timestamp"),
            prompt_tokens=tokens(require(row, "input_length"), "input_length"),
            output_tokens=tokens(require(row, "output_length"), "output_length"),
            ids=block_array(require(row, "hash_ids"), "hash_ids"),
            session=None if session is None else str(session),
        )
    ]
