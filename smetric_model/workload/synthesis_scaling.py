"""Other rates of the same traffic: whole sessions are taken out or added, never single requests.

Intra-session reuse does not change.  Reuse between sessions does: fewer sessions meet the same
system prompt, and a subagent whose parent is left out has nobody to share its context with
(``docs/synthesis.md`` shows by how much).

More of the same traffic is other users who do the same at other times (:func:`superpose_copies`),
or the same users at the same times, several of each (:func:`replicate`): n of the first vary √n
times less about their mean than the trace, n of the second as much as it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smetric_model.errors import SpecError, TraceError
from smetric_model.workload.prefix_tree import PrefixTree
from smetric_model.workload.synthesis_build import compact_tree, ordered_tree

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.workload.trace import Trace

__all__ = [
    "copies_for_rate",
    "replicate",
    "scale_to_rate",
    "superpose",
    "superpose_copies",
    "thin",
    "trace_rate_rps",
]

IntArray = npt.NDArray[np.int64]

#: Copies of a session start this much later at most, unless told otherwise [s].
JITTER_S = 60.0


def trace_rate_rps(trace: Trace) -> float:
    """Work out the requests per second of a trace over the span of its arrivals.

    Parameters
    ----------
    trace : Trace
        A trace with one clock.

    Returns
    -------
    float
        (requests − 1) ÷ span [1/s].

    Raises
    ------
    TraceError
        If its sessions share no clock, or all requests arrive at once.
    """
    trace.require_shared_clock()
    span = float(np.ptp(trace.column("arrival_s")))
    if span == 0:
        raise TraceError("all requests arrive at once: there is no rate", trace.source)
    return (len(trace) - 1) / span


def _marks(trace: Trace, seed: int, keep_forks: bool) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each session, equal within a family where families stay whole."""
    from smetric_model.workload.starts import root_sessions

    marks = np.random.default_rng(seed).random(trace.sessions)
    return marks[root_sessions(trace)] if keep_forks else marks


def thin(trace: Trace, share: float, seed: int = 0, *, keep_forks: bool = True) -> Trace:
    """Keep a random share of the sessions, each whole.

    Parameters
    ----------
    trace : Trace
        A trace that names its sessions.
    share : float
        Probability with which each is kept, in (0, 1].  With one seed, a smaller share keeps some
        of the sessions that a larger one keeps.
    seed : int, default 0
    keep_forks : bool, default True
        Whether a session and the subagents it spawned are kept or left out together; if not,
        subagents lose parents, and the reuse they share.

    Returns
    -------
    Trace

    Raises
    ------
    SpecError
        If the share is not in (0, 1], or no session is left.
    TraceError
        If the trace names no sessions.
    """
    if not 0 < share <= 1:
        raise SpecError(f"share = {share!r}: a number above 0, at most 1, is needed")
    session = trace.require_sessions()
    if share == 1:
        return trace
    return _kept(trace, _marks(trace, seed, keep_forks)[session] < share)


def _kept(trace: Trace, chosen: npt.NDArray[np.bool_]) -> Trace:
    rows = np.flatnonzero(chosen)
    if not rows.size:
        raise SpecError(f"no session of {trace.source} is left: a larger share is needed")
    part = trace.take(rows)
    return part if part.tree is None else replace(part, tree=compact_tree(part.tree))


def copies_for_rate(trace: Trace, rate_rps: float) -> int:
    """Return how many copies of a trace it takes to reach a rate.

    Parameters
    ----------
    trace : Trace
        A trace with one clock.
    rate_rps : float
        Requests per second wanted [1/s].

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    SpecError
        If the rate is not positive.
    TraceError
        If the sessions share no clock, or all requests arrive at once.
    """
    if not (np.isfinite(rate_rps) and rate_rps > 0):
        raise SpecError(f"rate_rps = {rate_rps!r}: a finite number above 0 is needed")
    return max(int(np.ceil(rate_rps / trace_rate_rps(trace) - 1e-9)), 1)


def scale_to_rate(
    trace: Trace,
    rate_rps: float,
    seed: int = 0,
    *,
    in_step: bool = False,
    jitter_s: float = JITTER_S,
) -> Trace:
    """Bring a trace to a rate by leaving out or copying whole sessions.

    Parameters
    ----------
    trace : Trace
        A trace with one clock that names its sessions.
    rate_rps : float
        Requests per second wanted [1/s].
    seed : int, default 0
    in_step : bool, default False
        Whether copies rise and fall with the trace (:func:`replicate`), so that a day keeps its
        shape, and bursts their size relative to the mean; if not, each has its own time
        (:func:`superpose_copies`).
    jitter_s : float, default 60
        See :func:`replicate`; copies in step only.

    Returns
    -------
    Trace
        Its number of requests is as near to the wanted one as whole families allow.

    Raises
    ------
    SpecError
        If the rate is not positive, or so low that no session is left.
    TraceError
        If the sessions share no clock or are not named.
    """
    copies = copies_for_rate(trace, rate_rps)
    wanted = rate_rps / trace_rate_rps(trace) * len(trace)
    if copies > 1 and in_step:
        trace = replicate(trace, copies, seed, jitter_s=jitter_s)
    elif copies > 1:
        trace = superpose_copies(trace, copies, seed)
    session = trace.require_sessions()
    marks = _marks(trace, seed, True)[session]
    order = np.argsort(marks, kind="stable")
    # after each family in the order of the marks, how many requests are kept
    ends = np.append(np.flatnonzero(np.diff(marks[order])) + 1, marks.size)
    best = ends[np.argmin(np.abs(ends - wanted))]
    return trace if best == marks.size else _kept(trace, marks <= marks[order[best - 1]])


def superpose_copies(trace: Trace, copies: int, seed: int = 0) -> Trace:
    """Lay independent populations like a trace's over each other, each at its own time.

    Every copy but the first is cut in two at a time drawn evenly over the trace, and its second
    part is played first: the trace is taken as one turn of a circle, which each copy enters
    elsewhere.  At its cut, and where end and beginning of the trace meet, sessions end and begin
    as they do at the ends of the trace.

    Parameters
    ----------
    trace : Trace
        A trace with one clock that names its sessions.
    copies : int
        Number of copies, the trace itself included; at least 1.
    seed : int, default 0
        Of the cuts.

    Returns
    -------
    Trace
        ``copies`` times the requests over the same time.  Copies, and the parts of one, share the
        frameworks' common prefixes
        (:func:`~smetric_model.workload.origin.common_prefix_blocks`), nothing else.

    Raises
    ------
    SpecError
        If ``copies`` is below 1.
    TraceError
        If the sessions share no clock or are not named, or all requests arrive at once.

    Notes
    -----
    The rate of n copies varies √n times less about its mean than the trace's, as that of n
    independent populations does; what all share (the time of day) is lost: see :func:`replicate`.
    A session that goes on over a cut becomes two, of which the later begins with a long prompt
    that nobody has computed, as sessions under way do at the beginning of the trace.
    """
    trace.require_sessions()
    _check_copies(copies)
    rate = trace_rate_rps(trace)
    if copies == 1:
        return trace
    arrival = trace.column("arrival_s")
    first, period = float(arrival.min()), len(trace) / rate
    rng = np.random.default_rng([seed, 2])
    moved, kept = [arrival], [np.ones(len(trace), np.bool_)]
    for _ in range(copies - 1):
        # whole milliseconds, as traces have them
        cut = round(float(rng.random()) * period, 3)
        later = arrival - first >= cut
        moved += [arrival - cut, arrival - cut + period]
        kept += [later, ~later]
    tree = None if trace.tree is None else _copied_tree(trace, len(moved))
    frames = [trace.requests.assign(arrival_s=np.round(times, 6)) for times in moved]
    source = f"{trace.source}, {copies} copies"
    return _assembled(frames, tree, trace, source, np.concatenate(kept))


def replicate(trace: Trace, copies: int, seed: int = 0, *, jitter_s: float = JITTER_S) -> Trace:
    """Lay copies of a trace over each other; a copy's sessions are sessions of their own.

    Parameters
    ----------
    trace : Trace
        A trace with one clock that names its sessions.
    copies : int
        Number of copies, the trace itself included; at least 1.
    seed : int, default 0
    jitter_s : float, default 60
        In all copies but the first, each session starts later by a time drawn evenly from 0 to
        this (with the subagents it spawned) [s].

    Returns
    -------
    Trace
        Copies share the frameworks' common prefixes
        (:func:`~smetric_model.workload.origin.common_prefix_blocks`), nothing else.

    Raises
    ------
    SpecError
        If ``copies`` is below 1 or ``jitter_s`` negative.
    TraceError
        If the sessions share no clock or are not named.

    Notes
    -----
    Bursts keep their relative size: n copies vary as much as one trace, relative to the mean,
    where n traces of independent users (:func:`superpose_copies`) would vary √n times less.
    """
    from smetric_model.workload.starts import root_sessions

    trace.require_shared_clock()
    trace.require_sessions()
    _check_copies(copies)
    if not (np.isfinite(jitter_s) and jitter_s >= 0):
        raise SpecError(f"jitter_s = {jitter_s!r}: a finite number of at least 0 is needed")
    if copies == 1:
        return trace
    root = root_sessions(trace)
    rng = np.random.default_rng([seed, 1])
    session = trace.column("session_id")
    later = [np.zeros(len(trace))]
    for _ in range(copies - 1):
        # whole milliseconds, as traces have them
        shift = np.round(rng.random(root.size) * jitter_s, 3)
        later.append(shift[root][session])
    tree = None if trace.tree is None else _copied_tree(trace, copies)
    frames = [
        trace.requests.assign(arrival_s=np.round(trace.column("arrival_s") + shift, 6))
        for shift in later
    ]
    return _assembled(frames, tree, trace, f"{trace.source}, {copies} copies")


def _check_copies(copies: int) -> None:
    if isinstance(copies, bool) or not isinstance(copies, int | np.integer) or copies < 1:
        raise SpecError(f"copies = {copies!r}: an integer of at least 1 is needed")


def superpose(traces: Sequence[Trace]) -> Trace:
    """Lay different traces over each other on one clock.

    Parameters
    ----------
    traces : sequence of Trace
        Traces with one clock each that name their sessions and have equal block sizes.

    Returns
    -------
    Trace
        All requests.  Block ids of different traces have nothing to do with each other: no prefix
        is shared between them.  (For more of one kind of traffic, generate it at a higher rate, or
        see :func:`replicate`.)

    Raises
    ------
    SpecError
        If there is no trace, or their block sizes differ.
    TraceError
        If sessions share no clock or are not named.
    """
    if not traces:
        raise SpecError("no trace to superpose: at least 1 is needed")
    sizes = {trace.block_tokens for trace in traces}
    if len(sizes) > 1:
        raise SpecError(f"block sizes are {sizes}: equal ones are needed to superpose traces")
    for trace in traces:
        trace.require_shared_clock()
        trace.require_sessions()
    trees = [trace.tree for trace in traces if trace.tree is not None]
    joined = _joined_tree(trees) if len(trees) == len(traces) else None
    source = " + ".join(trace.source for trace in traces)
    return _assembled([trace.requests for trace in traces], joined, traces[0], source)


def _joined_tree(trees: list[PrefixTree]) -> PrefixTree:
    first = np.cumsum([0] + [tree.parent.size for tree in trees])
    return ordered_tree(
        np.concatenate(
            [
                np.where(tree.parent >= 0, tree.parent + first[number], -1)
                for number, tree in enumerate(trees)
            ]
        ).astype(np.int32),
        np.concatenate([tree.start_block for tree in trees]),
        np.concatenate([tree.end_block for tree in trees]),
        np.concatenate(
            [tree.request_segment + first[number] for number, tree in enumerate(trees)]
        ).astype(np.int32),
        np.concatenate([tree.request_blocks for tree in trees]),
    )


def _copied_tree(trace: Trace, copies: int) -> PrefixTree:
    """Tree of several copies: each segment's common part once, the rest once a copy."""
    from smetric_model.workload._synthesis_kernels import mark_common
    from smetric_model.workload.origin import common_prefix_blocks

    tree, _ = trace.require_tree()
    common = tree.start_block.copy()
    reach = common_prefix_blocks(trace)
    mark_common(tree.parent, tree.start_block, tree.end_block, tree.request_segment, reach, common)
    is_root = tree.parent < 0
    shared = np.flatnonzero(is_root | (common > tree.start_block))
    own = np.flatnonzero(~is_root & (tree.end_block > common))
    nodes = tree.parent.size
    shared_at, own_at = np.full(nodes, -1), np.full(nodes, -1)
    shared_at[shared] = np.arange(shared.size)
    own_at[own] = np.arange(own.size)
    above = np.maximum(tree.parent, 0)
    parent = [np.where(is_root[shared], -1, shared_at[above[shared]])]
    start, end = [tree.start_block[shared]], [common[shared]]
    leaf = []
    beyond = tree.request_blocks > common[tree.request_segment]
    for copy in range(copies):
        first = shared.size + copy * own.size
        # below the segment's own common part, else below the parent's last part
        over = np.where(own_at[above] >= 0, first + own_at[above], shared_at[above])
        parent.append(np.where(shared_at[own] >= 0, shared_at[own], over[own]))
        start.append(common[own])
        end.append(tree.end_block[own])
        segment = tree.request_segment
        leaf.append(np.where(beyond, first + own_at[segment], shared_at[segment]))
    return ordered_tree(
        np.concatenate(parent).astype(np.int32),
        np.concatenate(start),
        np.concatenate(end),
        np.concatenate(leaf).astype(np.int32),
        np.tile(tree.request_blocks, copies),
    )


def _assembled(
    frames: list[pd.DataFrame],
    tree: PrefixTree | None,
    like: Trace,
    source: str,
    kept: npt.NDArray[np.bool_] | None = None,
) -> Trace:
    """Trace of several tables, or the rows kept of them; rows of ``tree`` in the same order."""
    import pandas as pd

    rows = sessions = 0
    shifted = []
    for frame in frames:
        parent = frame["parent"].to_numpy()
        shifted.append(
            frame.assign(
                request_id=frame["request_id"] + rows,
                session_id=frame["session_id"] + sessions,
                parent=np.where(parent >= 0, parent + rows, -1),
            )
        )
        rows += len(frame)
        sessions += int(frame["session_id"].max()) + 1
    table = pd.concat(shifted, ignore_index=True)
    for name in ("trigger", "model"):
        # tables with different categories lose them
        table[name] = table[name].astype("category")
    order = np.lexsort((table["turn"].to_numpy(), table["arrival_s"].to_numpy()))
    if kept is not None:
        order = order[kept[order]]
    whole = replace(like, requests=table, tree=tree, session_names=None, source=source)
    result = whole.take(order)
    return result if result.tree is None else replace(result, tree=compact_tree(result.tree))
