"""A request trace in memory: columns, prefix structure, and what loading did to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from smetric_model.errors import TraceError
from smetric_model.workload.prefix_tree import PrefixTree

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LoadReport", "ReportEntry", "SessionClock", "Trace", "load_trace", "write_trace"]

SessionClock = Literal["shared", "per-session"]
Action = Literal["repaired", "dropped", "noted"]

#: Examples of lines kept for each kind of repair.
MAX_EXAMPLES = 5


@dataclass
class ReportEntry:
    """One kind of thing that loading repaired, dropped or noticed.

    Attributes
    ----------
    action : {'repaired', 'dropped', 'noted'}
        ``repaired``: a value was replaced; ``dropped``: a request was left out; ``noted``: kept
        as it is, but worth knowing.
    kind : str
        What it was, in words.
    count : int
        How often.
    lines : list of int
        The first few lines where it happened.
    """

    action: Action
    kind: str
    count: int = 0
    lines: list[int] = field(default_factory=list)


class LoadReport:
    """What loading repaired, dropped and noticed; nothing is changed silently."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Action, str], ReportEntry] = {}

    def add(self, action: Action, kind: str, line: int | None = None, count: int = 1) -> None:
        """Count one more case of ``kind``."""
        entry = self._entries.setdefault((action, kind), ReportEntry(action, kind))
        entry.count += count
        if line is not None and len(entry.lines) < MAX_EXAMPLES:
            entry.lines.append(line)

    def __iter__(self) -> Iterator[ReportEntry]:
        return iter(self._entries.values())

    def total(self, action: Action) -> int:
        """Cases of one action."""
        return sum(entry.count for entry in self if entry.action == action)

    @property
    def repaired(self) -> int:
        """Values replaced."""
        return self.total("repaired")

    @property
    def dropped(self) -> int:
        """Requests (or lines) left out."""
        return self.total("dropped")

    def __repr__(self) -> str:
        return f"LoadReport(repaired={self.repaired}, dropped={self.dropped})"

    def to_frame(self) -> pd.DataFrame:
        """One row a kind: ``action, kind, count, lines``."""
        import pandas as pd

        return pd.DataFrame(
            [(e.action, e.kind, e.count, tuple(e.lines)) for e in self],
            columns=["action", "kind", "count", "lines"],
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival, with the prefix structure of their prompts.

    Attributes
    ----------
    requests : DataFrame
        One row a request, sorted by arrival; the columns of
        :data:`smetric_model.workload.columns.REQUEST_COLUMNS`.  Treat it as read-only.
    tree : PrefixTree or None
        Radix tree of the prompts, rows in the order of ``requests``; None where the trace carries
        no block ids.
    block_tokens : int or None
        Tokens of a KV block.
    session_clock : {'shared', 'per-session'}
        ``per-session``: ``arrival_s`` counts from each session's own start, and sessions cannot be
        laid on one time axis without further assumptions.
    report : LoadReport
        What loading repaired, dropped and noticed.
    source : str
        Name of the file.
    format : str
        Format that was found.
    session_names : tuple of str, optional
        The file's own name of each ``session_id``.
    """

    requests: pd.DataFrame
    tree: PrefixTree | None
    block_tokens: int | None
    session_clock: SessionClock
    report: LoadReport
    source: str
    format: str
    session_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.requests)

    def __repr__(self) -> str:
        sessions = "sessions unknown" if self.sessions is None else f"{self.sessions:,} sessions"
        return (
            f"Trace({self.source}: {len(self):,} requests, {sessions}, "
            f"{self.block_tokens} tokens a block, clock {self.session_clock})"
        )

    def column(self, name: str) -> npt.NDArray[Any]:
        """One column as a NumPy array.

        Parameters
        ----------
        name : str
            A column of ``requests`` that holds numbers.

        Returns
        -------
        ndarray, shape (requests,)
        """
        result: npt.NDArray[Any] = self.requests[name].to_numpy()
        return result

    @property
    def sessions(self) -> int | None:
        """Number of sessions; None where the trace does not say (they can be inferred)."""
        codes = self.column("session_id")
        if not codes.size or (codes < 0).any():
            return None
        return int(codes.max()) + 1

    def require_tree(self) -> tuple[PrefixTree, int]:
        """Tree and block size.

        Raises
        ------
        TraceError
            If the trace carries no block ids.
        """
        if self.tree is None or self.block_tokens is None:
            raise TraceError(
                f"the {self.format} trace carries no block ids: reuse cannot be known", self.source
            )
        return self.tree, self.block_tokens

    def require_sessions(self) -> npt.NDArray[np.int64]:
        """Session of each request.

        Raises
        ------
        TraceError
            If the trace names no sessions.
        """
        if self.sessions is None:
            remedy = (
                "and carries no block ids to infer them from"
                if self.tree is None
                else "infer them first (infer_sessions, or --infer-sessions)"
            )
            raise TraceError(f"the {self.format} trace names no sessions, {remedy}", self.source)
        return self.column("session_id").astype(np.int64)

    def require_shared_clock(self) -> None:
        """Check that the sessions lie on one time axis.

        Raises
        ------
        TraceError
            If each session has its own clock.
        """
        if self.session_clock != "shared":
            raise TraceError(
                "every session of this trace starts at its own 0: give them starts first "
                "(with_poisson_starts, or --session-rate)",
                self.source,
            )

    def take(self, rows: npt.NDArray[np.intp]) -> Trace:
        """Trace of some of the requests, renumbered.

        Parameters
        ----------
        rows : ndarray of int
            Distinct rows, in the order of arrival.

        Returns
        -------
        Trace
            ``request_id`` counts from 0 again; a ``parent`` that is not among the rows becomes −1;
            sessions keep their numbers only if all of them remain.
        """
        requests = self.requests.iloc[rows].reset_index(drop=True)
        new_row = np.full(len(self), -1, dtype=np.int64)
        new_row[rows] = np.arange(len(rows))
        parent = requests["parent"].to_numpy()
        requests["parent"] = np.where(parent >= 0, new_row[parent], -1)
        requests["request_id"] = np.arange(len(rows), dtype=np.int64)
        names = self.session_names
        codes = requests["session_id"].to_numpy()
        if codes.size and (codes >= 0).all():
            old, first = np.unique(codes, return_index=True)
            by_arrival = old[np.argsort(first)]
            rank = np.zeros(int(old.max()) + 1, dtype=np.int64)
            rank[by_arrival] = np.arange(old.size)
            requests["session_id"] = rank[codes]
            names = None if names is None else tuple(names[code] for code in by_arrival)
        return replace(
            self,
            requests=requests,
            tree=None if self.tree is None else self.tree.take(rows),
            session_names=names,
        )


def load_trace(
    path: str | Path,
    *,
    on_error: Literal["raise", "skip"] = "raise",
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = "auto",
    duplicates: Literal["keep", "drop"] = "keep",
    format: str | None = None,
    block_tokens: int | None = None,
    seed: int = 0,
) -> Trace:
    """Load a trace of any known format, found by its content.

    Parameters
    ----------
    path : str or Path
        A plain, gzip or zstandard file, or a directory of such files of one trace.
    on_error : {'raise', 'skip'}, default 'raise'
        A line that cannot be read raises, or is skipped and counted in ``report``.
    time_unit : {'auto', 's', 'ms', 'us', 'ns'}, default 'auto'
        Unit of time stamps.  ``auto``: the format's own unit; stamps that can only be times since
        1970 in another unit are recognised.
    duplicates : {'keep', 'drop'}, default 'keep'
        Sessions that repeat an earlier one exactly are kept (and counted), or dropped.
    format : str, optional
        Name of the format, instead of looking at the content.
    block_tokens : int, optional
        Tokens of a KV block, where the file does not say and differs from its format's usual size
        (which is otherwise checked against the lengths of the first lines).
    seed : int, default 0
        For ServeGen only, whose requests are drawn at random.

    Returns
    -------
    Trace

    Raises
    ------
    TraceError
        If the file is not a trace, or a line is wrong (names file and line).
    OSError
        If the file cannot be opened.

    Examples
    --------
    >>> from smetric_model import load_trace
    >>> trace = load_trace("data/traces/agents-small.parquet")
    >>> trace.format, len(trace)
    ('smetric', 4179)
    """
    from smetric_model.workload.formats import read

    return read(
        Path(path),
        on_error=on_error,
        time_unit=time_unit,
        duplicates=duplicates,
        format_name=format,
        block_tokens=block_tokens,
        seed=seed,
    )


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace in the documented schema (``smetric-model trace schema``).

    Parameters
    ----------
    trace : Trace
        Any trace.
    path : str or Path
        ``.parquet``, ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``.

    Raises
    ------
    TraceError
        For any other ending.
    """
    from smetric_model.workload.formats._native import write

    write(trace, Path(path))
