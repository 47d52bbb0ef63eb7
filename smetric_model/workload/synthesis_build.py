"""From session families to a trace: the window, the radix tree, the table of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from smetric_model.errors import SpecError
from smetric_model.workload.prefix_tree import PrefixTree
from smetric_model.workload.synthesis_arrivals import level_of, starts_after, starts_before
from smetric_model.workload.synthesis_parameters import WorkloadParameters
from smetric_model.workload.synthesis_sessions import (
    Families,
    FamilySource,
    Streams,
    mean_requests,
    mean_sessions,
)

if TYPE_CHECKING:
    from smetric_model.workload.trace import Trace

__all__ = ["compact_tree", "generate", "ordered_tree"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Turns simulated at a time, about.
_CHUNK_TURNS = 1_000_000
#: More requests than this are a mistake in the rate or the window.
_MAX_REQUESTS = 200_000_000
_TRIGGERS = ("user", "agent", "compaction")


def generate(
    parameters: WorkloadParameters,
    *,
    rate_rps: float | None = None,
    window_s: float | None = None,
    sessions: float | None = None,
    seed: int = 0,
    start: Literal["equilibrium", "cold"] = "equilibrium",
    ends: Literal["cut", "whole"] = "cut",
) -> Trace:
    """Generate a trace.

    Parameters
    ----------
    parameters : WorkloadParameters
    rate_rps : float, optional
        Mean rate of requests [1/s].  Default: that of the parameters, or what ``sessions`` and
        ``window_s`` give.
    window_s : float, optional
        Length of the window [s].  Default: that of the parameters, or what ``sessions`` and
        ``rate_rps`` give.
    sessions : float, optional
        Mean number of sessions that start in the window, subagents' included.
    seed : int, default 0
        Equal seeds give equal traces.  What a session holds depends neither on the rate nor on the
        window: the n-th session to start in (or before) the window is the same.
    start : {'equilibrium', 'cold'}, default 'equilibrium'
        ``equilibrium``: sessions are in progress when the window opens, as they are at any moment
        of a steady state (long ones more often); their earlier turns are not in the trace.
        ``cold``: no session has started before.
    ends : {'cut', 'whole'}, default 'cut'
        ``cut``: requests after the window are left out; ``whole``: sessions that started in time
        run to their end.

    Returns
    -------
    Trace
        ``request_id`` in order of arrival; a first turn in the trace that is not the session's
        first has a ``turn`` above 0 and no parent.

    Raises
    ------
    SpecError
        If a value is not allowed, all of rate, window and sessions are given, or no request falls
        into the window.
    """
    rate_rps, window_s = _rate_and_window(parameters, rate_rps, window_s, sessions)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise SpecError(f"seed = {seed!r}: an integer of at least 0 is needed")
    for name, value, allowed in (
        ("start", start, ("equilibrium", "cold")),
        ("ends", ends, ("cut", "whole")),
    ):
        if value not in allowed:
            raise SpecError(f"{name} = {value!r}: {' or '.join(allowed)} is needed")
    family_rate = rate_rps / mean_requests(parameters)
    inside, before = Streams(int(seed), 0), Streams(int(seed), 1)
    history_s = parameters.history_s if start == "equilibrium" else 0.0
    level = level_of(parameters.arrivals, history_s, window_s, inside("level"), before("level"))
    window = (0.0, np.inf if ends == "whole" else window_s)
    parts: list[tuple[Families, FloatArray]] = []
    if history_s > 0:
        starts = starts_before(before("arrivals"), level, family_rate, history_s)
        parts += _families(parameters, before, starts, window)
    starts = starts_after(inside("arrivals"), level, family_rate, window_s)
    parts += _families(parameters, inside, starts, window)
    if not parts:
        raise SpecError(
            f"no request falls into {window_s:g} s at {rate_rps:g} requests/s: a higher rate, a "
            "longer window or another seed is needed"
        )
    families = Families.join([part for part, _ in parts])
    starts = np.concatenate([part_starts for _, part_starts in parts])
    return _trace(parameters, families, starts, window, f"{parameters.name}, seed {seed}")


def _rate_and_window(
    parameters: WorkloadParameters,
    rate_rps: float | None,
    window_s: float | None,
    sessions: float | None,
) -> tuple[float, float]:
    given = {"rate_rps": rate_rps, "window_s": window_s, "sessions": sessions}
    for name, value in given.items():
        if value is not None and not (np.isfinite(value) and value > 0):
            raise SpecError(f"{name} = {value!r}: a finite number above 0 is needed")
    if sessions is not None:
        each = mean_requests(parameters) / mean_sessions(parameters)
        if rate_rps is not None and window_s is not None:
            raise SpecError(
                "rate_rps, window_s and sessions are given: any two of them are allowed"
            )
        if rate_rps is not None:
            window_s = sessions * each / rate_rps
        else:
            window_s = parameters.window_s if window_s is None else window_s
            rate_rps = sessions * each / window_s
    rate_rps = parameters.rate_rps if rate_rps is None else rate_rps
    window_s = parameters.window_s if window_s is None else window_s
    if rate_rps * (window_s + parameters.history_s) > _MAX_REQUESTS:
        raise SpecError(
            f"{rate_rps:g} requests/s over {window_s:g} s and {parameters.history_s:g} s of "
            f"history are more than {_MAX_REQUESTS:,} requests"
        )
    return float(rate_rps), float(window_s)


def _families(
    parameters: WorkloadParameters,
    streams: Streams,
    starts: FloatArray,
    window: tuple[float, float],
) -> list[tuple[Families, FloatArray]]:
    """Draw the families of ``starts``; keep those with a request in the window."""
    source = FamilySource(parameters, streams)
    size = max(int(_CHUNK_TURNS / mean_requests(parameters)), 1)
    kept = []
    for first in range(0, starts.size, size):
        part_starts = np.round(starts[first : first + size], 3)
        part = source.draw(part_starts.size)
        arrival = part.arrival_s + part_starts[part.row_family]
        hits = (arrival >= window[0]) & (arrival < window[1])
        seen = np.bincount(part.row_family, weights=hits, minlength=part_starts.size) > 0
        if seen.any():
            kept.append((part.select(seen), part_starts[seen]))
    return kept


def _trace(
    parameters: WorkloadParameters,
    families: Families,
    starts: FloatArray,
    window: tuple[float, float],
    source: str,
) -> Trace:
    import pandas as pd

    from smetric_model.workload.trace import LoadReport, Trace

    arrival = np.round(families.arrival_s + starts[families.row_family], 3)
    visible = np.flatnonzero((arrival >= window[0]) & (arrival < window[1]))
    session = np.repeat(np.arange(families.turns.size), families.turns)
    turn = np.arange(session.size) - np.repeat(families.offsets[:-1], families.turns)
    # rows stand session by session, turn by turn: ties of arrival keep that order
    rows = visible[np.lexsort((turn[visible], arrival[visible]))]
    tree = _tree(parameters, families).take(rows)

    new_row = np.full(session.size, -1, np.int64)
    new_row[rows] = np.arange(rows.size)
    first_turn = turn == 0
    parent = np.where(first_turn, families.parent_row[session], np.arange(session.size) - 1)
    parent = np.where(parent >= 0, new_row[parent], -1)[rows]
    think = np.where(new_row[np.maximum(np.arange(session.size) - 1, 0)] >= 0, 1.0, np.nan)
    think = (think * families.think_time_s)[rows]
    codes = session[rows]
    numbers, first = np.unique(codes, return_index=True)
    rank = np.empty(int(numbers.max()) + 1, np.int64)
    rank[numbers[np.argsort(first)]] = np.arange(numbers.size)
    trigger = families.trigger[rows]
    present, first = np.unique(trigger, return_index=True)
    present = present[np.argsort(first)]
    place = np.zeros(len(_TRIGGERS), np.int8)
    place[present] = np.arange(present.size)
    requests = pd.DataFrame(
        {
            "request_id": np.arange(rows.size, dtype=np.int64),
            "session_id": rank[codes],
            "turn": turn[rows],
            "parent": parent,
            "arrival_s": arrival[rows],
            "prompt_tokens": families.prompt_tokens[rows],
            "output_tokens": families.output_tokens[rows],
            "think_time_s": think,
            "e2e_s": families.e2e_s[rows],
            "trigger": pd.Categorical.from_codes(
                place[trigger], categories=pd.Index([_TRIGGERS[c] for c in present], dtype=object)
            ),
            "model": pd.Categorical.from_codes(
                np.full(rows.size, -1, np.int8), categories=pd.Index([], dtype=object)
            ),
            "source_line": np.full(rows.size, -1, dtype=np.int64),
        }
    )
    return Trace(
        requests=requests,
        tree=compact_tree(tree),
        block_tokens=parameters.block_tokens,
        session_clock="shared",
        report=LoadReport(),
        source=source,
        format="synthetic",
    )


def _tree(parameters: WorkloadParameters, families: Families) -> PrefixTree:
    """Radix tree of all turns, in their order; segments parents first."""
    from smetric_model.workload._synthesis_kernels import grow_tree
    from smetric_model.workload._tree_kernels import resolve_leaves

    size = parameters.block_tokens
    blocks = families.prompt_tokens // size
    system_tokens, whole_tokens = parameters.frameworks.prefix_tokens()
    tenant = families.tenant if parameters.tenants.salted else np.zeros_like(families.tenant)
    # one root a tenant, below it each framework's system prompt, below that its tool descriptions
    tenants, tenant_of = np.unique(tenant, return_inverse=True)
    system, system_of = np.unique(
        np.stack([tenant_of, families.framework]), axis=1, return_inverse=True
    )
    system_of = system_of.reshape(-1)
    tools, tools_of = np.unique(
        np.stack([system_of, families.toolset]), axis=1, return_inverse=True
    )
    tools_of = tools_of.reshape(-1)
    shared = tenants.size + system.shape[1] + tools.shape[1]
    capacity = shared + 2 * blocks.size
    parent = np.full(capacity, -1, np.int32)
    start, end = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    has_child = np.zeros(capacity, np.bool_)
    at_system = slice(tenants.size, tenants.size + system.shape[1])
    at_tools = slice(at_system.stop, shared)
    parent[at_system] = system[0]
    end[at_system] = system_tokens[system[1]] // size
    parent[at_tools] = tenants.size + tools[0]
    start[at_tools] = end[at_system][tools[0]]
    end[at_tools] = whole_tokens[system[1][tools[0]], tools[1]] // size
    has_child[:shared] = True
    # a prefix without a whole block is no segment: its place is the one above
    stand_in = np.where((end > start) | (parent < 0), np.arange(capacity), parent)
    parent[at_tools] = stand_in[parent[at_tools]]
    origin = np.arange(at_tools.start, shared)
    origin = np.where((end > start)[at_tools], origin, parent[at_tools])
    leaf = np.zeros(blocks.size, np.int32)
    nodes = grow_tree(
        families.offsets,
        families.parent_row,
        origin[tools_of],
        families.keep_tokens // size,
        blocks,
        parent,
        start,
        end,
        has_child,
        shared,
        leaf,
    )
    parent, start, end = parent[:nodes], start[:nodes], end[:nodes]
    resolve_leaves(parent, start, leaf, blocks)
    return ordered_tree(parent, start, end, leaf, blocks)


def ordered_tree(
    parent: npt.NDArray[np.int32],
    start: IntArray,
    end: IntArray,
    leaf: npt.NDArray[np.int32],
    blocks: IntArray,
) -> PrefixTree:
    """Renumber segments so that parents come first: roots, then by depth.

    Parameters
    ----------
    parent, start, end : ndarray, shape (segments,)
        Parent (−1 for a root) and depths [blocks] of the segments, in any order.
    leaf, blocks : ndarray, shape (requests,)
        Segment in which each request ends and its depth [blocks].

    Returns
    -------
    PrefixTree
    """
    from smetric_model.workload._tree_kernels import root_of

    order = np.lexsort((start, parent >= 0))
    rank = np.empty(parent.size, np.int32)
    rank[order] = np.arange(parent.size, dtype=np.int32)
    new_parent = parent[order]
    new_parent = np.where(new_parent >= 0, rank[new_parent], -1).astype(np.int32)
    return PrefixTree(
        parent=new_parent,
        start_block=start[order],
        end_block=end[order],
        root=root_of(new_parent),
        request_segment=rank[leaf],
        request_blocks=blocks,
    )


def compact_tree(tree: PrefixTree) -> PrefixTree:
    """Tree without what no request touches, chains of segments joined.

    Parameters
    ----------
    tree : PrefixTree
        Such as one of which some requests were taken.

    Returns
    -------
    PrefixTree
        The same requests and prefixes with the least segments.
    """
    from smetric_model.workload._synthesis_kernels import merge_chains

    nodes = tree.parent.size
    used = np.empty(nodes, np.int64)
    stands_for, top = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    merge_chains(
        tree.parent,
        tree.start_block,
        tree.request_segment,
        tree.request_blocks,
        used,
        stands_for,
        top,
    )
    is_root = tree.parent < 0
    touched = np.zeros(nodes, np.bool_)
    touched[tree.root[tree.request_segment]] = True
    keep = np.flatnonzero(
        np.where(is_root, touched, used > tree.start_block)
        & (stands_for == np.arange(nodes, dtype=np.int32))
    )
    number = np.full(nodes, -1, np.int32)
    number[keep] = np.arange(keep.size, dtype=np.int32)
    above = tree.parent[top[keep]]
    parent = np.where(above >= 0, number[stands_for[above]], -1).astype(np.int32)
    start = np.where(above >= 0, tree.start_block[top[keep]], 0)
    end = np.where(above >= 0, used[keep], 0)
    # a request that ended in a segment without length, or of which nothing is left, ends above it
    leaf = number[stands_for[tree.request_segment]]
    return ordered_tree(parent, start, end, leaf, tree.request_blocks)
