"""Mooncake: JSON lines of ``timestamp`` [ms], ``input_length``, ``output_length``, ``hash_ids``.

Ids are chained (an id stands for its whole prefix), one for every begun block of 512 tokens: the
partly filled last block has an id of its own.  Dialects add ``session_id`` and, on later turns, a
``delay`` [ms] after the previous turn in place of ``timestamp``; other columns are ignored.
Source: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces).
"""

from __future__ import annotations

import math
from typing import Any

from smetric_model.workload.formats._record import (
    BadLineError,
    Record,
    block_array,
    require,
    seconds,
    tokens,
)
from smetric_model.workload.trace import LoadReport

__all__ = ["BLOCK_TOKENS", "MooncakeReader"]

BLOCK_TOKENS = 512


class MooncakeReader:
    """Turns lines into records; remembers when each session last asked, for ``delay``.

    Parameters
    ----------
    report : LoadReport
        Where repairs are counted.
    """

    def __init__(self, report: LoadReport) -> None:
        self._report = report
        self._last_ms: dict[str, float] = {}

    def parse(self, row: dict[str, Any], line: int) -> list[Record]:
        """One request."""
        if "chat_id" in row and "parent_chat_id" in row:
            # it has all the keys, but its times are seconds and its blocks others
            raise BadLineError("a Bailian line (chat_id) in a Mooncake file; one format a file")
        session = row.get("session_id")
        session = None if session is None else str(session)
        think_time_s = math.nan
        if "timestamp" not in row and "delay" in row and session in self._last_ms:
            delay_ms = seconds(row["delay"], "delay")
            arrival = self._last_ms[session] + delay_ms
            think_time_s = delay_ms / 1e3
            self._report.add(
                "repaired", "no time stamp; delay counted from the previous turn's arrival", line
            )
        else:
            arrival = seconds(require(row, "timestamp"), "timestamp")
        record = Record(
            line=line,
            arrival=arrival,
            prompt_tokens=tokens(require(row, "input_length"), "input_length"),
            output_tokens=tokens(require(row, "output_length"), "output_length"),
            ids=block_array(require(row, "hash_ids"), "hash_ids"),
            session=session,
            think_time_s=think_time_s,
        )
        if session is not None:
            self._last_ms[session] = arrival
        return [record]


def parse_tair(row: dict[str, Any], line: int) -> list[Record]:
    """One request of a tair trace: as Mooncake, but ``block_ids`` of pages of 256 tokens.

    Time stamps are milliseconds since 1970 with a fraction, ids have 63 bits.
    Source: https://github.com/alibaba/tair-kvcache (schedule_simulator).
    """
    ids = row.get("block_ids")
    if ids is None and "device_cache_hit_length" not in row:
        raise BadLineError("key 'block_ids' is missing")
    return [
        Record(
            line=line,
            arrival=seconds(require(row, "timestamp"), "timestamp"),
            prompt_tokens=tokens(require(row, "input_length"), "input_length"),
            output_tokens=tokens(require(row, "output_length"), "output_length"),
            ids=None if ids is None else block_array(ids, "block_ids"),
        )
    ]
