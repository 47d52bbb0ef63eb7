"""From records to a :class:`~smetric_model.workload.trace.Trace`: one home for every repair."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smetric_model.errors import TraceError
from smetric_model.workload.formats._record import Record
from smetric_model.workload.prefix_tree import PrefixTreeBuilder
from smetric_model.workload.trace import MAX_EXAMPLES, LoadReport, SessionClock, Trace

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Collector"]

_SCALE_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
#: Lower ends of what a time since 1970 (1973 to 2286) looks like in each unit.
_EPOCH_FROM = {"ns": 1e17, "us": 1e14, "ms": 1e11, "s": 1e8}
_BATCH_BLOCKS = 1 << 20
_BATCH_PATHS = 1 << 14


class Collector:
    """Takes records in file order and builds the trace.

    Parameters
    ----------
    source : Path
        File or directory, for messages.
    format_name : str
        Name of the format.
    unit : {'s', 'ms', 'us', 'ns'}
        Unit of the format's time stamps.
    session_clock : {'shared', 'per-session'}
        Whether stamps of different sessions can be compared.
    report : LoadReport
        Shared with the reader.
    time_unit : str, default 'auto'
        Unit demanded by the caller.
    keep_origin : bool, default False
        Leave the first arrival where it is instead of moving it to 0.
    sessions_from_parents : bool, default False
        A session is what the parent links join, also through a parent outside the trace.
    """

    def __init__(
        self,
        source: Path,
        format_name: str,
        *,
        unit: str,
        session_clock: SessionClock,
        report: LoadReport,
        time_unit: str = "auto",
        keep_origin: bool = False,
        sessions_from_parents: bool = False,
    ) -> None:
        self.source = source
        self.format_name = format_name
        self.unit = unit
        self.session_clock: SessionClock = session_clock
        self.report = report
        self.time_unit = time_unit
        self.keep_origin = keep_origin
        self.sessions_from_parents = sessions_from_parents
        self.block_tokens: int | None = None
        self._builder = PrefixTreeBuilder()
        self._any_blocks = False
        self._pending: list[Record] = []
        self._pending_blocks = 0
        self._numbers: dict[str, list[npt.NDArray[np.float64]]] = {}
        self._labels: dict[str, list[npt.NDArray[np.int64]]] = {}
        self._codes: dict[str, dict[Hashable, int]] = {
            name: {} for name in ("session", "key", "trigger", "model")
        }
        self._duplicate_keys = 0

    # -- taking records ------------------------------------------------------------------------

    def extend(self, records: Iterable[Record]) -> None:
        """Take the requests of one line."""
        for record in records:
            if record.prompt_tokens == 0:
                self.report.add("dropped", "a prompt of no tokens", record.line)
                continue
            if record.output_tokens == 0:
                self.report.add("noted", "an output of no tokens, kept", record.line)
            self._check_blocks(record)
            self._pending.append(record)
            self._pending_blocks += 0 if record.ids is None else record.ids.size
            if self._pending_blocks > _BATCH_BLOCKS or len(self._pending) >= _BATCH_PATHS:
                self._flush()

    def extend_columns(
        self,
        columns: dict[str, Any],
        runs: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]] | None,
    ) -> None:
        """Take many requests at once, all of them sound.

        Parameters
        ----------
        columns : dict
            Arrays ``line``, ``arrival``, ``prompt_tokens``, ``output_tokens``, ``turn``,
            ``think_time_s``, ``e2e_s`` and lists ``key``, ``parent``, ``session``, ``trigger``,
            ``model`` (None: unknown); as in :class:`Record`.  Models are the namespaces.
        runs : tuple of ndarray or None
            Offsets, first ids and lengths of each path's runs.
        """
        self._flush()
        silent = columns["output_tokens"] == 0
        if silent.any():
            lines = columns["line"][silent]
            for line in lines[:MAX_EXAMPLES].tolist():
                self.report.add("noted", "an output of no tokens, kept", line)
            if lines.size > MAX_EXAMPLES:
                self.report.add(
                    "noted", "an output of no tokens, kept", count=lines.size - MAX_EXAMPLES
                )
        for name in ("arrival", "think_time_s", "e2e_s"):
            self._numbers.setdefault(name, []).append(columns[name])
        for name in ("line", "prompt_tokens", "output_tokens", "turn"):
            self._labels.setdefault(name, []).append(columns[name])
        for name in ("session", "trigger", "model", "parent", "key"):
            kind = "key" if name == "parent" else name
            codes = np.array([self._code(kind, value) for value in columns[name]], dtype=np.int64)
            self._labels.setdefault(name, []).append(codes)
        roots = [self._builder.root(model) for model in columns["model"]]
        if runs is None:
            empty = np.zeros(0, np.int64)
            self._builder.add_runs(roots, empty, empty, np.zeros(len(roots) + 1, np.int64))
        else:
            self._any_blocks = True
            offsets, first, count = runs
            self._builder.add_runs(roots, first, count, offsets)

    def _check_blocks(self, record: Record) -> None:
        if record.ids is None or self.block_tokens is None:
            return
        self._any_blocks = True
        blocks = record.ids.size if record.counts is None else int(record.counts.sum())
        most = -(-record.prompt_tokens // self.block_tokens)
        if blocks > most:
            self.report.add(
                "repaired", "more block ids than the prompt fills; the rest left off", record.line
            )
            if record.counts is None:
                record.ids = record.ids[:most]
            else:
                ends = np.minimum(np.cumsum(record.counts), most)
                counts = np.diff(ends, prepend=0)
                record.ids = record.ids[counts > 0]
                record.counts = counts[counts > 0]
        elif blocks < most - 1:
            self.report.add(
                "noted",
                "fewer block ids than the prompt fills; the rest counts as new",
                record.line,
            )

    def _code(self, name: str, value: Hashable) -> int:
        return -1 if value is None else self._codes[name].setdefault(value, len(self._codes[name]))

    def _flush(self) -> None:
        records = self._pending
        if not records:
            return
        for name in ("arrival", "think_time_s", "e2e_s"):
            self._numbers.setdefault(name, []).append(
                np.array([getattr(record, name) for record in records], dtype=np.float64)
            )
        labels = {
            "line": [r.line for r in records],
            "prompt_tokens": [r.prompt_tokens for r in records],
            "output_tokens": [r.output_tokens for r in records],
            "turn": [r.turn for r in records],
            "session": [self._code("session", r.session) for r in records],
            "trigger": [self._code("trigger", r.trigger) for r in records],
            "model": [self._code("model", r.model) for r in records],
            "parent": [self._code("key", r.parent) for r in records],
            "key": [self._code("key", r.key) for r in records],
        }
        for name, values in labels.items():
            self._labels.setdefault(name, []).append(np.array(values, dtype=np.int64))
        self._insert(records)
        self._pending = []
        self._pending_blocks = 0

    def _insert(self, records: list[Record]) -> None:
        empty = np.zeros(0, np.int64)
        roots = [self._builder.root(r.namespace) for r in records]
        ids = [empty if r.ids is None else r.ids for r in records]
        offsets = np.concatenate(([0], np.cumsum([part.size for part in ids])))
        first = np.concatenate(ids)
        if any(r.counts is not None for r in records):
            counts = np.concatenate(
                [
                    np.ones(part.size, np.int64) if r.counts is None else r.counts
                    for r, part in zip(records, ids, strict=True)
                ]
            )
            self._builder.add_runs(roots, first, counts, offsets)
        else:
            self._builder.add_ids(roots, first, offsets)

    # -- building ------------------------------------------------------------------------------

    def build(self) -> Trace:
        """Sort, number and finish.

        Raises
        ------
        TraceError
            If there is no request.
        """
        import pandas as pd

        self._flush()
        if not self._numbers:
            raise TraceError("no requests in this file", self.source)
        numbers = {name: np.concatenate(parts) for name, parts in self._numbers.items()}
        labels = {name: np.concatenate(parts) for name, parts in self._labels.items()}
        arrival_s = self._to_seconds(numbers["arrival"])
        if self.session_clock == "shared":
            late = int((np.diff(arrival_s) < 0).sum())
            if late:
                self.report.add("repaired", "time stamps out of order; sorted", count=late)
        order = np.lexsort((labels["turn"], arrival_s))
        labels = {name: values[order] for name, values in labels.items()}
        arrival_s = arrival_s[order]

        if self.sessions_from_parents:
            labels["session"] = self._components(labels["key"], labels["parent"])
        session_id, names = self._sessions(labels["session"])
        parent = self._parents(labels, session_id)
        turn = self._turns(labels["turn"], session_id)
        think_time_s, e2e_s = numbers["think_time_s"][order], numbers["e2e_s"][order]
        think_time_s = self._think_times(session_id, turn, arrival_s, e2e_s, think_time_s)
        requests = pd.DataFrame(
            {
                "request_id": np.arange(order.size, dtype=np.int64),
                "session_id": session_id,
                "turn": turn,
                "parent": parent,
                "arrival_s": arrival_s,
                "prompt_tokens": labels["prompt_tokens"],
                "output_tokens": labels["output_tokens"],
                "think_time_s": think_time_s,
                "e2e_s": e2e_s,
                "trigger": self._category("trigger", labels["trigger"]),
                "model": self._category("model", labels["model"]),
                "source_line": labels["line"],
            }
        )
        tree = self._builder.build().take(order) if self._any_blocks else None
        return Trace(
            requests=requests,
            tree=tree,
            block_tokens=self.block_tokens if self._any_blocks else None,
            session_clock=self.session_clock,
            report=self.report,
            source=self.source.name,
            format=self.format_name,
            session_names=names,
        )

    def _category(self, name: str, codes: npt.NDArray[np.int64]) -> pd.Categorical:
        import pandas as pd

        categories = pd.Index([str(label) for label in self._codes[name]], dtype=object)
        return pd.Categorical.from_codes(codes, categories=categories)

    def _to_seconds(self, stamps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        unit = self.unit
        if self.time_unit != "auto":
            unit = self.time_unit
        elif self.session_clock == "shared":
            middle = float(np.median(stamps))
            # No stamp near zero: they count from 1970, and their size tells the unit.
            if float(stamps.min()) > 0.5 * middle:
                found = next((u for u, low in _EPOCH_FROM.items() if middle >= low), unit)
                if found != unit:
                    self.report.add(
                        "repaired",
                        f"time stamps since 1970 read as {found} (the format says {unit})",
                        count=stamps.size,
                    )
                    unit = found
        if self.session_clock == "shared" and not self.keep_origin:
            stamps = stamps - stamps.min()
        return stamps * _SCALE_S[unit] if unit != "ms" else stamps / 1e3

    def _sessions(
        self, codes: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], tuple[str, ...] | None]:
        """Give each session a number by first arrival; all −1 where no request names one."""
        unnamed = int((codes < 0).sum())
        if unnamed:
            if unnamed < codes.size:
                self.report.add(
                    "repaired", "no session named; each taken as one of its own", count=unnamed
                )
                codes = codes.copy()
                codes[codes < 0] = len(self._codes["session"]) + np.arange(unnamed)
            else:
                return codes, None
        old, first = np.unique(codes, return_index=True)
        by_arrival = old[np.argsort(first)]
        rank = np.zeros(int(old.max()) + 1, dtype=np.int64)
        rank[by_arrival] = np.arange(old.size)
        known = list(self._codes["session"])
        names = tuple(
            str(known[code]) if code < len(known) else f"unnamed-{code - len(known)}"
            for code in by_arrival
        )
        if self.sessions_from_parents:
            return rank[codes], None
        return rank[codes], names

    def _components(
        self, key: npt.NDArray[np.int64], parent: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        size = len(self._codes["key"])
        linked = parent >= 0
        graph = coo_array(
            (np.ones(int(linked.sum()), np.int8), (key[linked], parent[linked])), (size, size)
        )
        component = connected_components(graph, directed=False)[1].astype(np.int64)
        result: npt.NDArray[np.int64] = component[key]
        return result

    def _parents(
        self, labels: dict[str, npt.NDArray[np.int64]], session_id: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Row of each request's parent: as the file says, else the session's request before."""
        rows = np.arange(session_id.size)
        parent = np.full(session_id.size, -1, dtype=np.int64)
        key, named = labels["key"], labels["parent"]
        row_of = np.full(len(self._codes["key"]) + 1, -1, dtype=np.int64)
        has_key = key >= 0
        row_of[key[has_key][::-1]] = rows[has_key][::-1]  # the first of equal keys
        repeated = int(has_key.sum()) - np.unique(key[has_key]).size
        if repeated:
            self.report.add("noted", "a request id used more than once", count=repeated)
        given = named >= 0
        parent[given] = row_of[named[given]]
        missing = given & (parent < 0)
        if missing.any():
            self.report.add(
                "noted",
                "parent not in the trace",
                int(labels["line"][np.argmax(missing)]),
                int(missing.sum()),
            )
        backward = parent >= rows
        if backward.any():
            self.report.add(
                "repaired",
                "parent arrives no earlier than its child; link left off",
                int(labels["line"][np.argmax(backward)]),
                int(backward.sum()),
            )
            parent[backward] = -1
        if (session_id >= 0).all() and not self.sessions_from_parents:
            before = _previous_in_session(session_id)
            fill = ~given & (before >= 0)
            parent[fill] = before[fill]
        return parent

    @staticmethod
    def _turns(
        turn: npt.NDArray[np.int64], session_id: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        if (turn >= 0).all() or (session_id < 0).any():
            return turn
        by_session = np.argsort(session_id, kind="stable")
        starts = np.flatnonzero(np.diff(session_id[by_session], prepend=-1))
        lengths = np.diff(np.append(starts, session_id.size))
        counted = np.empty_like(turn)
        counted[by_session] = np.arange(turn.size) - np.repeat(starts, lengths)
        return np.where(turn >= 0, turn, counted)

    def _think_times(
        self,
        session_id: npt.NDArray[np.int64],
        turn: npt.NDArray[np.int64],
        arrival_s: npt.NDArray[np.float64],
        e2e_s: npt.NDArray[np.float64],
        think_time_s: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.float64]:
        """Fill in think times from arrivals and service times; a first turn has none."""
        if (session_id < 0).any():
            return think_time_s
        before = _previous_in_session(session_id)
        think_time_s = np.where(before < 0, np.nan, think_time_s)
        derived = arrival_s - arrival_s[before] - e2e_s[before]
        fill = (before >= 0) & np.isnan(think_time_s) & ~np.isnan(derived)
        if fill.any():
            self.report.add(
                "repaired",
                "think time missing; arrival less the previous completion",
                count=int(fill.sum()),
            )
            overlap = int((derived[fill] < 0).sum())
            if overlap:
                self.report.add(
                    "noted",
                    "arrival before the previous turn's completion; think time 0",
                    count=overlap,
                )
            think_time_s[fill] = np.maximum(derived[fill], 0.0)
        return think_time_s


def _previous_in_session(session_id: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Row of the session's request before each row; −1 for the first."""
    by_session = np.argsort(session_id, kind="stable")
    previous = np.full(session_id.size, -1, dtype=np.int64)
    same = session_id[by_session][1:] == session_id[by_session][:-1]
    previous[by_session[1:][same]] = by_session[:-1][same]
    return previous
