r"""What each request could reuse where, from the trace alone.

A request finds KV on an instance if an earlier turn of its session ran there, or if any session
of its framework did (the shared prefix).  Which of the two holds, and for how long, is the
router's and the tiers' business; this module works out once per trace what there is to find:

* ``own_tokens[d - 1]``: the prefix that turn ``k`` shares with turn ``k - d`` of its session,
* ``idle_s[d - 1]``: the think times from the completion of turn ``k - d`` to turn ``k``, in all,
* ``shared_tokens``: the prefix it shares with other sessions, and how often that is touched.

Common prefixes of paths in a tree are an ultrametric, so that the prefix shared with turn
``k - d`` is (at least) the least of the prefixes that consecutive turns in between share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from smetric_model.workload.trace import Trace

__all__ = ["TURNS_BACK", "SessionReuse", "session_reuse"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Turns back at which copies of a session's context are told apart.
TURNS_BACK = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, eq=False)
class SessionReuse:
    """Reuse of the requests by turn and framework; arrays of shape (n,) unless stated.

    Attributes
    ----------
    session : ndarray of int
        Session of each request; each its own where the trace names none.
    turn : ndarray of int
        Turns of the session before it, in the trace.
    first_turn : ndarray of bool
        Whether a router sees it as turn 0.
    own_tokens : ndarray, shape (len(TURNS_BACK), n)
        Prefix shared with the turn so many turns back; 0 where there is none [tokens].
    idle_s : ndarray, shape (len(TURNS_BACK), n)
        Think times since that turn completed, in all; ``inf`` where there is none.  The copy has
        been idle so long, plus the service of the turns in between [s].
    between_tokens : ndarray, shape (len(TURNS_BACK), n)
        Output tokens of the turns in between, which tell how long those took [tokens].
    think_s : ndarray
        Time from the completion of the previous turn; ``nan`` for a session's first [s].
    e2e_s : ndarray
        Time that the request took when the trace was recorded; ``nan`` where unknown [s].
    expected_tokens : ndarray
        What a router expects to be cached, min(previous prompt + output, prompt) [tokens].
    shared_tokens : ndarray
        Prefix within what sessions of the framework begin with [tokens].
    part_request, part : ndarray of int, shape (m,)
        The shared prefix in parts (segments of the radix tree): which request has which part.
    part_tokens : ndarray, shape (m,)
        How much of it [tokens]; a request's sum to its ``shared_tokens``.
    part_size_tokens : ndarray, shape (parts,)
        Length of each part [tokens].
    intra_tokens, system_tokens : ndarray
        Of an ideal hit, the tokens that the own session produced first, and those that another
        session did within the shared prefix [tokens].
    """

    session: IntArray
    turn: IntArray
    first_turn: NDArray[np.bool_]
    own_tokens: FloatArray
    idle_s: FloatArray
    between_tokens: FloatArray
    think_s: FloatArray
    e2e_s: FloatArray
    expected_tokens: FloatArray
    shared_tokens: FloatArray
    part_request: IntArray
    part: IntArray
    part_tokens: FloatArray
    part_size_tokens: FloatArray
    intra_tokens: FloatArray
    system_tokens: FloatArray


def session_reuse(trace: Trace, prompt_tokens: FloatArray) -> SessionReuse:
    """Work out what each request of a trace could reuse where.

    Parameters
    ----------
    trace : Trace
        Requests in order of arrival, as served (unservable ones left out).
    prompt_tokens : ndarray, shape (n,)
        Prompts as served [tokens].

    Returns
    -------
    SessionReuse
    """
    size = len(trace)
    arrival = trace.column("arrival_s").astype(float)
    session = trace.column("session_id").astype(np.int64)
    if trace.sessions is None:
        session = np.arange(size, dtype=np.int64)
    order = np.lexsort((np.arange(size), session))
    begins = np.append(True, session[order][1:] != session[order][:-1])[:size]
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, size))
    place = np.arange(size) - np.repeat(starts, lengths)
    turn = np.empty(size, np.int64)
    turn[order] = place
    output = np.maximum(trace.column("output_tokens").astype(float), 1.0)
    own1, shared, parts = _prefixes(trace, order, begins, prompt_tokens)

    e2e = trace.column("e2e_s").astype(float)
    think = _think_s(trace, arrival, e2e, order, begins)
    own, idle, between = _turns_back(order, place, own1, think, output)
    expected = np.zeros(size)
    later = np.flatnonzero(~begins)
    here, before = order[later], order[later - 1]
    expected[here] = np.minimum(prompt_tokens[before] + output[before], prompt_tokens[here])
    recorded = trace.column("turn").astype(np.int64)
    first = np.where(recorded >= 0, recorded, turn) == 0
    size_of = np.zeros(int(parts[1].max(initial=-1)) + 1)
    np.maximum.at(size_of, parts[1], parts[2])
    intra, system = _origins(trace, prompt_tokens)
    return SessionReuse(
        session,
        turn,
        first,
        own,
        idle,
        between,
        think,
        e2e,
        expected,
        shared,
        *parts,
        size_of,
        intra,
        system,
    )


_Parts = tuple[IntArray, IntArray, FloatArray]


def _prefixes(
    trace: Trace, order: IntArray, begins: NDArray[np.bool_], prompt: FloatArray
) -> tuple[FloatArray, FloatArray, _Parts]:
    """Prefix shared with the previous turn, prefix of the framework, and the latter's parts."""
    size = len(trace)
    zero = np.zeros(size)
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    if trace.tree is None:
        return zero, zero.copy(), nothing
    from smetric_model.analytic._session_kernels import common_blocks

    tree, block = trace.require_tree()
    previous = np.full(size, -1, np.int64)
    later = np.flatnonzero(~begins)
    previous[order[later]] = order[later - 1]
    common = np.zeros(size, np.int64)
    common_blocks(
        tree.parent,
        tree.start_block,
        tree.request_segment,
        tree.request_blocks,
        np.arange(size),
        previous,
        common,
    )
    own = np.minimum(common * float(block), prompt)
    if trace.sessions is None:
        return own, zero, nothing
    from smetric_model.workload.origin import common_prefix_blocks

    reach = common_prefix_blocks(trace)
    shared = np.minimum(reach * float(block), prompt)
    requests, nodes, tokens = [], [], []
    row = np.flatnonzero(reach > 0)
    node = tree.request_segment[row].astype(np.int64)
    while row.size:
        start, end = tree.start_block[node], tree.end_block[node]
        inside = np.minimum(end, reach[row]) - start
        there = inside > 0
        requests.append(row[there])
        nodes.append(node[there])
        # a last block that the prompt fills in part counts in part
        low = np.minimum(start[there] * float(block), shared[row[there]])
        high = np.minimum((start[there] + inside[there]) * float(block), shared[row[there]])
        tokens.append(high - low)
        node = tree.parent[node].astype(np.int64)
        row, node = row[node >= 0], node[node >= 0]
    if not requests:
        return own, shared, nothing
    _, part = np.unique(np.concatenate(nodes), return_inverse=True)
    return own, shared, (np.concatenate(requests), part.reshape(-1), np.concatenate(tokens))


def _think_s(
    trace: Trace, arrival: FloatArray, e2e: FloatArray, order: IntArray, begins: NDArray[np.bool_]
) -> FloatArray:
    """Return the recorded think time, else the gap between arrivals less the recorded duration."""
    recorded = trace.column("think_time_s").astype(float)
    think = np.full(arrival.size, np.nan)
    later = np.flatnonzero(~begins)
    here, before = order[later], order[later - 1]
    gap = arrival[here] - arrival[before] - np.nan_to_num(e2e[before])
    think[here] = np.maximum(np.where(np.isnan(recorded[here]), gap, recorded[here]), 0.0)
    return think


def _turns_back(
    order: IntArray,
    place: IntArray,
    own1: FloatArray,
    think: FloatArray,
    output: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Shared prefixes, think times and outputs in between, at each of TURNS_BACK."""
    size = order.size
    own = np.zeros((len(TURNS_BACK), size))
    idle = np.full((len(TURNS_BACK), size), np.inf)
    step = own1[order]
    least = step.copy()
    between = np.zeros((len(TURNS_BACK), size))
    generated = np.cumsum(output[order])
    thought = np.cumsum(np.nan_to_num(think[order]))
    rows = {d: i for i, d in enumerate(TURNS_BACK)}
    deepest = int(place.max(initial=0))
    for d in range(1, min(TURNS_BACK[-1], deepest) + 1):
        if d > 1:
            # the prefix shared d turns back, from what the turn before shared d - 1 back
            least = np.minimum(step, np.append(0.0, least[:-1]))
        if d not in rows:
            continue
        there = place >= d
        at = np.flatnonzero(there)
        own[rows[d], order[at]] = least[at]
        idle[rows[d], order[at]] = np.maximum(thought[at] - thought[at - d], 0.0)
        between[rows[d], order[at]] = generated[at - 1] - generated[at - d]
    return own, idle, between


def _origins(trace: Trace, prompt: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ideal reuse by who produced it first: the own session, another's shared prefix."""
    if trace.tree is None or trace.sessions is None:
        return np.zeros(len(trace)), np.zeros(len(trace))
    from smetric_model.workload.origin import reuse_origin

    origin = reuse_origin(trace)
    intra, system = (
        np.minimum(origin[f"{name}_tokens"].to_numpy(dtype=float), prompt)
        for name in ("intra", "system")
    )
    return intra, system
