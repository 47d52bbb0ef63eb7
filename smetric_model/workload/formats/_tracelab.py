"""TraceLab: JSON lines, one LLM round of a coding session each; token counts, no block ids.

``input_tokens_total`` = ``prefix_tokens`` + ``newly_append_tokens`` is what the provider *did*
reuse (it evicts and times out), not what could be reused, so it is not read as reuse.  A round
arrives with its first timing event and completes with its last.
Source: https://github.com/uw-syfi/TraceLab.
"""

from __future__ import annotations

import datetime
from typing import Any

from smetric_model.workload.formats._record import (
    BadLineError,
    Record,
    require,
    text,
    tokens,
)
from smetric_model.workload.trace import LoadReport

__all__ = ["TracelabReader"]

_TRIGGERS = {"user_message": "user", "tool_result": "agent"}


def _epoch_s(value: Any) -> float:
    try:
        moment = datetime.datetime.fromisoformat(text(value, "timestamp"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        result = moment.timestamp()
    except (ValueError, OverflowError) as error:
        raise BadLineError(f"a timing event's timestamp: {error}") from None
    if result < 0:
        raise BadLineError(f"a timing event's timestamp is {value!r}; after 1970 is needed")
    return result


class TracelabReader:
    """Turns rounds into records.

    Parameters
    ----------
    report : LoadReport
        Where oddities are counted.
    """

    def __init__(self, report: LoadReport) -> None:
        self._report = report

    def parse(self, row: dict[str, Any], line: int) -> list[Record]:
        """One request."""
        events = require(row, "timing_events")
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise BadLineError("timing_events is not a list of objects")
        times = [_epoch_s(e["timestamp"]) for e in events if e.get("timestamp") is not None]
        if not times:
            raise BadLineError("timing_events holds no timestamp")
        total = tokens(require(row, "input_tokens_total"), "input_tokens_total")
        prefix, new = row.get("prefix_tokens"), row.get("newly_append_tokens")
        if (
            prefix is not None
            and new is not None
            and tokens(prefix, "prefix_tokens") + tokens(new, "newly_append_tokens") != total
        ):
            self._report.add(
                "noted", "prefix_tokens and newly_append_tokens do not sum to the input", line
            )
        model = row.get("model")
        first = events[0].get("event_type")
        turn = tokens(require(row, "round_index"), "round_index")
        return [
            Record(
                line=line,
                arrival=min(times),
                prompt_tokens=total,
                output_tokens=tokens(require(row, "output_tokens"), "output_tokens"),
                session="/".join(
                    str(row[key])
                    for key in ("user", "provider", "session_id")
                    if row.get(key) is not None
                ),
                turn=turn,
                e2e_s=max(times) - min(times),
                trigger=_TRIGGERS.get(first) if isinstance(first, str) else None,
                model=None if model is None else text(model, "model"),
            )
        ]
