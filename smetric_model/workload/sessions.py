"""Sessions: inferred from prefixes where a trace names none, and what they look like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smetric_model.workload.reuse import Touches, ideal_reuse

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = ["InferredSessions", "infer_sessions", "session_table", "turn_table"]

#: A segment that parts into at least this many branches ends a prefix common to many sessions.
COMMON_BRANCHES = 16
#: A prompt shorter than this share of the one before it was compacted or reset.
RESET_RATIO = 0.6


@dataclass(frozen=True, eq=False)
class InferredSessions:
    """A trace with sessions inferred from prefixes, and how far that can be trusted.

    Attributes
    ----------
    trace : Trace
        The trace with ``session_id``, ``turn`` and ``parent`` filled in.
    limits : dict of str to float
        ``sessions``; ``first_turn_ratio``; ``ambiguous_ratio``, requests for which several earlier
        ones had equally long prefixes; ``branched_requests``, continued more than once (a fork, a
        retry or a guess that went wrong); ``short_ratio``, requests of no more than one block
        beyond the common prefix, which cannot be told apart and always count as first turns;
        ``reset_floor_ratio``, requests counted as first turns although they reuse something beyond
        the common prefix (rewritten history, or chance).
    """

    trace: Trace
    limits: dict[str, float]


def infer_sessions(trace: Trace) -> InferredSessions:
    """Infer sessions from prefixes.

    A request continues the earlier request whose prompt, all but its last block, is the longest
    prefix of its own; it must be longer, and the prefix must reach beyond what many sessions share
    (a segment of the tree with at least 16 branches).  Of several equally long, the first.  The
    last block is left out because the answer, padding and the template's end replace it.

    Parameters
    ----------
    trace : Trace
        A trace with block ids; sessions that it names are ignored.

    Returns
    -------
    InferredSessions

    Raises
    ------
    TraceError
        If the trace carries no block ids.

    Notes
    -----
    Not found: a session whose history was rewritten or compacted (it starts anew), turns whose
    predecessor came before the trace began, and turns of prompts shorter than about two blocks.
    Found in excess: forks and retries join their parent's session; two users with the same
    document share one.
    """
    from smetric_model.workload import _reuse_kernels

    tree, _ = trace.require_tree()
    children = np.bincount(tree.parent[tree.parent >= 0], minlength=tree.parent.size)
    common_segment = np.where(
        (children >= COMMON_BRANCHES) & (tree.parent >= 0), tree.end_block, tree.start_block
    )
    # everything above a common segment is common
    for segment in range(tree.parent.size - 1, -1, -1):
        above = tree.parent[segment]
        if above >= 0 and common_segment[segment] > tree.start_block[segment]:
            common_segment[above] = tree.end_block[above]
    common = np.empty(len(trace), np.int64)
    _reuse_kernels.common_reach(
        tree.parent,
        tree.end_block,
        common_segment,
        tree.request_segment,
        tree.request_blocks,
        common,
    )
    predecessor = np.empty(len(trace), np.int64)
    candidates = np.empty(len(trace), np.int64)
    prompt = trace.column("prompt_tokens")
    _reuse_kernels.continued(
        tree.parent,
        tree.start_block,
        tree.end_block,
        int(tree.path_lengths().max(initial=0)),
        tree.request_segment,
        tree.request_blocks,
        common,
        prompt,
        predecessor,
        candidates,
    )
    session = np.empty(len(trace), np.int64)
    sessions = 0
    for row, before in enumerate(predecessor.tolist()):
        if before < 0:
            session[row] = sessions
            sessions += 1
        else:
            session[row] = session[before]
    turn = np.zeros(len(trace), np.int64)
    by_session = np.argsort(session, kind="stable")
    starts = np.flatnonzero(np.diff(session[by_session], prepend=-1))
    turn[by_session] = np.arange(len(trace)) - np.repeat(
        starts, np.diff(np.append(starts, len(trace)))
    )
    requests = trace.requests.assign(session_id=session, turn=turn, parent=predecessor)
    found = predecessor >= 0
    reused = ideal_reuse(trace)
    _, block_tokens = trace.require_tree()
    limits = {
        "sessions": float(sessions),
        "first_turn_ratio": float((~found).mean()),
        "ambiguous_ratio": float((candidates > 1).mean()),
        "branched_requests": float((np.bincount(predecessor[found]) > 1).sum()),
        "short_ratio": float((tree.request_blocks - common <= 1).mean()),
        "reset_floor_ratio": float((~found & (reused > common * block_tokens)).mean()),
    }
    return InferredSessions(replace(trace, requests=requests, session_names=None), limits)


def turn_table(trace: Trace) -> pd.DataFrame:
    """Tabulate what each turn adds to the one before it, and what caused it.

    Parameters
    ----------
    trace : Trace
        A trace that names its sessions (or had them inferred).

    Returns
    -------
    DataFrame
        One row a request: ``session_id``; ``turn``; ``gap_s``, start to start from the parent;
        ``think_time_s``; ``growth_tokens``, prompt less the parent's prompt; ``kept_ratio``, share
        of the parent's blocks that the prompt begins with; ``history``; ``trigger``.  NaN on first
        turns, and ``kept_ratio`` also without block ids.

        ``history``: ``first`` (no parent in the same session); ``reset`` (prompt below 0.6 of the
        parent's: compaction or reset); ``rewritten`` (does not begin with all but the last block of
        the parent's prompt); else ``append``.

        ``trigger``: ``first`` for first turns; as recorded or derived by the reader (``user``,
        ``agent``, ``compaction``), with ``compaction`` for a ``reset``; ``unknown``.

    Raises
    ------
    TraceError
        If the trace names no sessions.
    """
    import pandas as pd

    session = trace.require_sessions()
    parent = trace.column("parent")
    safe = np.maximum(parent, 0)
    follows = (parent >= 0) & (session[safe] == session)
    arrival_s = trace.column("arrival_s")
    prompt = trace.column("prompt_tokens")
    kept = np.full(len(trace), np.nan)
    rewritten = np.zeros(len(trace), dtype=bool)
    if trace.tree is not None:
        shared = _shared_with(trace, np.where(follows, parent, -1))
        before = trace.tree.request_blocks[safe]
        kept = np.where(follows & (before > 0), shared / np.maximum(before, 1), np.nan)
        rewritten = follows & (shared < before - 1)
    reset = follows & (prompt < RESET_RATIO * prompt[safe])
    history = np.select(
        [~follows, reset, rewritten], ["first", "reset", "rewritten"], default="append"
    )
    recorded = trace.requests["trigger"].astype(object).to_numpy()
    trigger = np.where(pd.isna(recorded), "unknown", recorded)
    trigger = np.where(history == "reset", "compaction", trigger)
    trigger = np.where(history == "first", "first", trigger)
    return pd.DataFrame(
        {
            "session_id": session,
            "turn": trace.column("turn"),
            "gap_s": np.where(follows, arrival_s - arrival_s[safe], np.nan),
            "think_time_s": np.where(follows, trace.column("think_time_s"), np.nan),
            "growth_tokens": np.where(follows, prompt - prompt[safe], np.nan),
            "kept_ratio": kept,
            "history": pd.Categorical(history),
            "trigger": pd.Categorical(trigger),
        }
    )


def _shared_with(trace: Trace, other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Blocks that each request shares with another row; −1 where that is −1."""
    from smetric_model.workload import _reuse_kernels

    tree, _ = trace.require_tree()
    shared = np.empty(len(trace), np.int64)
    _reuse_kernels.shared_blocks(
        tree.parent,
        tree.end_block,
        tree.request_segment,
        tree.request_blocks,
        np.arange(len(trace)),
        other,
        shared,
    )
    return shared


def session_table(trace: Trace, touches: Touches | None = None) -> pd.DataFrame:
    """Length and token use of each session.

    Parameters
    ----------
    trace : Trace
        A trace that names its sessions (or had them inferred).
    touches : Touches, optional
        Result of :func:`~smetric_model.workload.reuse.last_touches`, if at hand.

    Returns
    -------
    DataFrame
        One row a session: ``turns``, ``start_s``, ``duration_s`` (first to last arrival),
        ``prompt_tokens``, ``output_tokens`` (sums), ``longest_prompt_tokens``; with block ids
        ``computed_tokens``, the prompt tokens that ideal reuse leaves to compute.

    Raises
    ------
    TraceError
        If the trace names no sessions.
    """
    import pandas as pd

    session = trace.require_sessions()
    frame = pd.DataFrame(
        {
            "arrival_s": trace.column("arrival_s"),
            "prompt_tokens": trace.column("prompt_tokens"),
            "output_tokens": trace.column("output_tokens"),
        }
    )
    if trace.tree is not None:
        if touches is None:
            reused = ideal_reuse(trace)
        else:
            reused = np.zeros(len(trace), np.int64)
            np.add.at(reused, touches.request, touches.tokens)
        frame["computed_tokens"] = frame["prompt_tokens"] - reused
    groups = frame.groupby(session)
    table = pd.DataFrame(
        {
            "turns": groups.size(),
            "start_s": groups["arrival_s"].min(),
            "duration_s": groups["arrival_s"].max() - groups["arrival_s"].min(),
            "prompt_tokens": groups["prompt_tokens"].sum(),
            "output_tokens": groups["output_tokens"].sum(),
            "longest_prompt_tokens": groups["prompt_tokens"].max(),
        }
    )
    if trace.tree is not None:
        table["computed_tokens"] = groups["computed_tokens"].sum()
    table.index.name = "session_id"
    return table
