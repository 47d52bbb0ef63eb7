"""Weka / cc-traces: one JSON document a session, subagents nested.

Ids are shared within a document only (``hash_id_scope: local``), one for every *full* block, so
the last tokens of a prompt belong to no block.  Times are seconds from the session's start; the
requests of a subagent count from the subagent's marker, or (in copies) from the session's start:
each document shows which.  KV is never shared across models.
Source: https://github.com/callanjfox/kv-cache-tester.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

from smetric_model.workload.formats._record import (
    BadLineError,
    Record,
    block_array,
    optional_seconds,
    require,
    seconds,
    text,
    tokens,
)
from smetric_model.workload.trace import LoadReport

__all__ = ["WekaReader"]

_MAX_NESTING = 8


class WekaReader:
    """Turns documents into records; remembers block size and documents seen.

    Parameters
    ----------
    report : LoadReport
        Where repairs are counted.
    drop_duplicates : bool
        Leave out a document whose requests repeat an earlier document's.
    """

    def __init__(self, report: LoadReport, drop_duplicates: bool) -> None:
        self.block_tokens: int | None = None
        self._report = report
        self._drop = drop_duplicates
        self._documents = 0
        self._digests: set[bytes] = set()
        self._names: set[str] = set()

    def parse(self, row: dict[str, Any], line: int) -> list[Record]:
        """All requests of one document."""
        block_tokens = tokens(require(row, "block_size"), "block_size")
        if block_tokens == 0:
            raise BadLineError("block_size is 0; at least 1 is needed")
        if self.block_tokens not in (None, block_tokens):
            raise BadLineError(
                f"block_size is {block_tokens}; earlier documents have {self.block_tokens}"
            )
        scope = text(row.get("hash_id_scope") or "local", "hash_id_scope")
        if scope not in ("local", "global"):
            self._report.add("noted", "an unknown hash_id_scope, taken as local", line)
        name = str(row.get("id") or f"document-{line}")
        if name in self._names:
            self._report.add("repaired", "two sessions of one name; the later renamed", line)
            name = f"{name}@{line}"
        document = self._documents
        if scope == "global":
            self._report.add(
                "noted",
                "ids shared by sessions without a common clock: order between them unknown",
                line,
            )
        namespace: Hashable = None if scope == "global" else document
        records: list[Record] = []
        self._session(require(row, "requests"), name, namespace, line, 0.0, None, records, 0)
        if not records:
            raise BadLineError("a document without requests")
        digest = _digest(records)
        if digest in self._digests:
            self._report.add(
                "dropped" if self._drop else "noted",
                "a session that repeats an earlier one exactly",
                line,
            )
            if self._drop:
                return []
        self._digests.add(digest)
        self._names.add(name)
        self._documents += 1
        self.block_tokens = block_tokens
        return records

    def _session(
        self,
        requests: Any,
        session: str,
        namespace: Hashable,
        line: int,
        start_s: float,
        spawned_by: Hashable,
        records: list[Record],
        depth: int,
    ) -> None:
        if not isinstance(requests, list):
            raise BadLineError("requests is not a list")
        if depth > _MAX_NESTING:
            raise BadLineError(f"subagents nested more than {_MAX_NESTING} deep")
        absolute = _absolute_clock(requests)
        last_key: Hashable = spawned_by
        agents = 0
        for item in requests:
            if not isinstance(item, dict):
                raise BadLineError("an entry of requests is not an object")
            kind = item.get("type") or "n"
            time_s = seconds(require(item, "t"), "t")
            if kind == "subagent":
                agents += 1
                agent = item.get("agent_id") or f"agent_{agents}"
                if absolute:
                    self._report.add("noted", "subagent times count from the session's start", line)
                if item.get("duration_ms") is None:
                    self._report.add("noted", "a subagent launched and never joined", line)
                self._session(
                    item.get("requests") or [],
                    f"{session}/{agent}#{agents}",
                    namespace,
                    line,
                    start_s if absolute else start_s + time_s,
                    last_key,
                    records,
                    depth + 1,
                )
                continue
            model = item.get("model")
            model = None if model is None else text(model, "model")
            key = (session, len(records))
            ids = item.get("hash_ids")
            if ids is None:
                self._report.add("noted", "a request without block ids; all of it is new", line)
            records.append(
                Record(
                    line=line,
                    arrival=start_s + time_s,
                    prompt_tokens=tokens(require(item, "in"), "in"),
                    output_tokens=tokens(require(item, "out"), "out"),
                    ids=None if ids is None else block_array(ids, "hash_ids"),
                    namespace=(namespace, model),
                    session=session,
                    key=key,
                    parent=last_key,
                    think_time_s=optional_seconds(item.get("think_time"), "think_time"),
                    e2e_s=optional_seconds(item.get("api_time"), "api_time"),
                    trigger=_trigger(item),
                    model=model,
                )
            )
            last_key = key


def _trigger(item: dict[str, Any]) -> str | None:
    """Who caused a request: one that brings a tool's result was sent by the agent."""
    kinds = item.get("input_types")
    if not isinstance(kinds, list) or not kinds:
        return None
    return "agent" if "tool_result" in kinds else "user"


def _absolute_clock(requests: list[Any]) -> bool:
    """Whether subagents' times count from the session's start instead of from their marker."""
    relative = absolute = 0
    for item in requests:
        if not isinstance(item, dict) or item.get("type") != "subagent":
            continue
        marker = item.get("t")
        inner = item.get("requests")
        if not isinstance(marker, int | float) or not isinstance(inner, list):
            continue
        times = [r.get("t") for r in inner if isinstance(r, dict)]
        known = [t for t in times if isinstance(t, int | float)]
        if not known or marker <= 1.0:
            continue  # both readings agree
        if min(known) < marker - 1.0:
            relative += 1
        else:
            absolute += 1
    return absolute > relative


def _digest(records: list[Record]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for record in records:
        head = (record.arrival, record.prompt_tokens, record.output_tokens, record.model)
        digest.update(repr(head).encode())
        if record.ids is not None:
            digest.update(record.ids.tobytes())
    return digest.digest()
