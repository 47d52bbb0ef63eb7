"""LMCache agent traces: JSON lines with the *text* of prompt and answer.

There are no token counts: a token is taken as four bytes of UTF-8, and a block as 64 such tokens,
hashed.  The estimate is noted in the report; ratios depend on it little, totals directly.  Times
are microseconds since 1970, not in order.
Source: https://huggingface.co/datasets/sammshen/lmcache-agentic-traces.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import orjson

from smetric_model.workload.formats._record import BadLineError, Record, require, seconds
from smetric_model.workload.trace import LoadReport

__all__ = ["BLOCK_TOKENS", "BYTES_PER_TOKEN", "LmcacheReader"]

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 64


def _bytes(value: Any, name: str) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, list | dict):  # chat messages
        return orjson.dumps(value)
    raise BadLineError(f"{name} is neither text nor messages")


class LmcacheReader:
    """Turns lines into records.

    Parameters
    ----------
    report : LoadReport
        Where estimates are counted.
    """

    def __init__(self, report: LoadReport) -> None:
        self._report = report

    def parse(self, row: dict[str, Any], line: int) -> list[Record]:
        """One request."""
        prompt = _bytes(require(row, "input"), "input")
        output = _bytes(require(row, "output"), "output")
        step = BYTES_PER_TOKEN * BLOCK_TOKENS
        hashes = b"".join(
            hashlib.blake2b(prompt[at : at + step], digest_size=8).digest()
            for at in range(0, len(prompt), step)
        )
        session = row.get("session_id")
        record = Record(
            line=line,
            arrival=seconds(require(row, "timestamp"), "timestamp"),
            prompt_tokens=-(-len(prompt) // BYTES_PER_TOKEN),
            output_tokens=-(-len(output) // BYTES_PER_TOKEN),
            ids=np.frombuffer(hashes, dtype="<i8").astype(np.int64),
            session=None if session is None else str(session),
        )
        self._report.add("noted", f"tokens estimated from text, {BYTES_PER_TOKEN} bytes each", line)
        return [record]
