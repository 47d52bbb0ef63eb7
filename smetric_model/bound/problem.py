"""What a bound is computed from: requests, pieces of reusable prefix, capacities; plain arrays.

``docs/bound.md`` says why each number is on the safe side.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.minorant import Minorant, least_step_s, minorants
from smetric_model.errors import SpecError
from smetric_model.simulate.steps import TICKS_PER_S

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.inputs import Inputs, Replay
    from smetric_model.simulate.prepare import Prepared
    from smetric_model.workload.trace import Trace

__all__ = [
    "Capacities",
    "Layout",
    "Problem",
    "Timeline",
    "make_problem",
    "nominal_timeline",
    "problem_of",
    "realised_timeline",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_BY_REQUEST = (
    "row",
    "session",
    "arrival_s",
    "due_s",
    "value_tokens",
    "prompt_tokens",
    "output_tokens",
    "base_tokens",
    "base_pairs",
    "decode_tokens",
    "decode_keys",
    "pinned_tokens",
    "pool_share",
    "written_tokens",
    "slack_s",
    "decode_step_s",
    "nic_work_per_token",
    "decode_pinned_tokens",
    "moved_nic_bytes",
    "moved_pcie_bytes",
)

#: Where the global tier may put KV: spread over the nodes, or wherever it is needed next.
Layout = Literal["spread", "free"]


@dataclass(frozen=True)
class Timeline:
    """When requests arrive, and when each is complete at the latest; arrays of shape (requests,).

    Attributes
    ----------
    arrival_s : ndarray of float64
        Arrival [s]; NaN where it does not arrive.
    completion_s : ndarray of float64
        Latest completion that schedules of the class have [s].
    kind : {'nominal', 'realised'}
        As if each request were served alone, or as in a given run.
    """

    arrival_s: FloatArray
    completion_s: FloatArray
    kind: Literal["nominal", "realised"]


@dataclass(frozen=True)
class Capacities:
    """Capacities of the cluster; ``inf`` where a resource is not there or does not limit.

    Attributes
    ----------
    compute : float
        Instances that prefill (colocated: all) [engine seconds per second].
    decode_compute : float
        Instances that only decode; 0 when colocated.
    local_tokens, decode_local_tokens : float
        KV pools [tokens].
    global_tokens : float
        Global tier [tokens].
    nic_bytes_per_s, pcie_bytes_per_s : float
        One direction of all nodes' NICs; all instances' PCIe [bytes/s].
    """

    compute: float
    decode_compute: float
    local_tokens: float
    decode_local_tokens: float
    global_tokens: float
    nic_bytes_per_s: float
    pcie_bytes_per_s: float


@dataclass(frozen=True, eq=False)
class Problem:
    """Servable requests that arrive in the window, the pieces of their prefixes, the cluster.

    Arrays are of shape (requests,), in order of arrival, or (pieces,), sorted by request.

    Attributes
    ----------
    row, session : ndarray of int64
        Row of the trace, and session.
    arrival_s, due_s : ndarray of float64
        Work on a request that meets its SLO lies between the two [s].
    value_tokens : ndarray of float64
        Prompt and output tokens [tokens].
    prompt_tokens, output_tokens : ndarray of float64
        Lengths [tokens].
    base_tokens, base_pairs : ndarray of float64
        Prefill that no cache saves [tokens, tokens^2].
    decode_tokens, decode_keys : ndarray of float64
        Tokens after the first, and the sum of the contexts that they read [tokens].
    pinned_tokens, decode_pinned_tokens : ndarray of float64
        KV that a running request holds for itself, in its prefill and while it decodes [tokens].
    pool_share : ndarray of float64
        The latter over the pool.
    written_tokens : ndarray of float64
        Prompt tokens never seen before, which write-through stores [tokens].
    slack_s : ndarray of float64
        TTFT that the SLO leaves beyond host work and the base prefill [s]; below 0: hopeless.
    decode_step_s : ndarray of float64
        Least time of one of its decode steps [s].
    nic_work_per_token : ndarray of float64
        Least line capacity that a fetched token takes [bytes].
    moved_nic_bytes, moved_pcie_bytes : ndarray of float64
        Link capacity that handing it to a decode pool takes; 0 when colocated [bytes].
    offsets : ndarray of int64, shape (requests + 1,)
        Where each request's pieces begin.
    piece_tokens, piece_pairs : ndarray of float64
        What a hit saves [tokens, tokens^2].
    gap_start_s, gap_end_s : ndarray of float64
        Interval in which the piece must have been kept for a hit [s].
    start_s, end_s : float
        The window.
    kv_bytes_per_token : float
    capacities : Capacities
    pool_tokens : float
        Of one instance.
    rows : tuple of Minorant
        Minorants of the step time, colocated or of the prefill pool.
    decode_rows : tuple of Minorant
        Of the decode pool; empty when colocated.
    fastest_prefill : Minorant
        The one that counts a prefill alone best.
    write_through : bool
    layout : {'spread', 'free'}
    remote_ratio : float
        Share of a fetch that comes from other nodes.
    timeline : Timeline
    unservable : int
        Requests of the window left out.
    notes : list of str
    """

    row: IntArray
    session: IntArray
    arrival_s: FloatArray
    due_s: FloatArray
    value_tokens: FloatArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    base_tokens: FloatArray
    base_pairs: FloatArray
    decode_tokens: FloatArray
    decode_keys: FloatArray
    pinned_tokens: FloatArray
    decode_pinned_tokens: FloatArray
    pool_share: FloatArray
    written_tokens: FloatArray
    slack_s: FloatArray
    decode_step_s: FloatArray
    nic_work_per_token: FloatArray
    moved_nic_bytes: FloatArray
    moved_pcie_bytes: FloatArray
    offsets: IntArray
    piece_tokens: FloatArray
    piece_pairs: FloatArray
    gap_start_s: FloatArray
    gap_end_s: FloatArray
    start_s: float
    end_s: float
    kv_bytes_per_token: float
    capacities: Capacities
    pool_tokens: float
    rows: tuple[Minorant, ...]
    decode_rows: tuple[Minorant, ...]
    fastest_prefill: Minorant
    write_through: bool
    layout: Layout
    remote_ratio: float
    timeline: Timeline
    unservable: int
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Requests."""
        return int(self.row.size)

    @property
    def window_s(self) -> float:
        """Length of the window [s]."""
        return self.end_s - self.start_s

    @property
    def piece_request(self) -> IntArray:
        """Request (position, not row) of each piece."""
        return np.repeat(np.arange(self.size), np.diff(self.offsets))

    @property
    def hopeful(self) -> NDArray[np.bool_]:
        """Requests that can meet their SLO at all, alone on an idle instance with every hit."""
        return self.slack_s >= 0

    def with_capacities(self, **changes: float) -> Problem:
        """Return the same problem with other capacities, for sweeps and finite differences."""
        return replace(self, capacities=replace(self.capacities, **changes))

    def take(self, mask: NDArray[np.bool_]) -> Problem:
        """Return the problem of some of the requests; times and capacities stay."""
        keep = np.flatnonzero(mask)
        pieces = mask[self.piece_request]
        counts = np.diff(self.offsets)[keep]
        changes: dict[str, object] = {name: getattr(self, name)[keep] for name in _BY_REQUEST}
        changes |= {
            name: getattr(self, name)[pieces]
            for name in ("piece_tokens", "piece_pairs", "gap_start_s", "gap_end_s")
        }
        changes["offsets"] = np.concatenate(([0], np.cumsum(counts)))
        return replace(self, **changes)  # type: ignore[arg-type]


def problem_of(
    scenario: Scenario,
    trace: Trace | None = None,
    layout: Layout = "spread",
) -> tuple[Problem, Prepared]:
    """Work out the problem of a scenario on its nominal timeline.

    Parameters
    ----------
    scenario : Scenario
        The question.
    trace : Trace, optional
        Its workload, if at hand.
    layout : {'spread', 'free'}, default 'spread'
        Where the global tier may put KV.

    Returns
    -------
    problem : Problem
    prepared : Prepared
        The workload as replayed, also for simulations to compare with.

    Raises
    ------
    SpecError
        If the scenario cannot be resolved.
    TraceError
        If the trace cannot be read.
    """
    from smetric_model.simulate.prepare import prepare
    from smetric_model.simulate.workload import replayed_trace

    replayed, notes = replayed_trace(scenario, trace)
    prepared = prepare(_simulated_form(scenario), replayed)
    prepared.notes[:0] = notes
    timeline = nominal_timeline(scenario, prepared.inputs)
    return make_problem(scenario, prepared.inputs, timeline, layout, prepared.notes), prepared


def _simulated_form(scenario: Scenario) -> Scenario:
    """Return the scenario in a form whose arrays can be prepared: they are the same."""
    changes: dict[str, Any] = {"client": {}, "engine.kv_admission": "reserve"}
    return scenario.replace(**changes)


def nominal_timeline(scenario: Scenario, inputs: Inputs) -> Timeline:
    """When requests arrive if each takes the least time it can.

    Closed loop: a turn comes a think time after its predecessor's earliest completion, and so
    early completions are exact for every schedule with these arrivals.  Open loop: as recorded; a
    request within SLO is complete at its deadline at the latest.

    Parameters
    ----------
    scenario : Scenario
        For its SLO.
    inputs : Inputs
        The workload.
    """
    data = inputs.requests
    n = data.turn.size
    arrival = data.arrival_tick / TICKS_PER_S
    least = _least_service_s(inputs)
    think = data.think_ticks / TICKS_PER_S
    limit = _deadline_s(scenario, inputs)
    waits = data.arrival_tick < 0
    if waits.any():
        # a session's requests in their order: predecessors have smaller rows
        done = np.where(data.unservable > 0, 0.0, least)
        _chain(data.previous, waits, think, done, arrival)
    completion = arrival + limit
    following = np.flatnonzero(waits)
    before = data.previous[following]
    completion[before] = arrival[following] - think[following]
    return (
        Timeline(arrival, np.maximum(completion, arrival), "nominal")
        if n
        else Timeline(arrival, arrival, "nominal")
    )


def realised_timeline(scenario: Scenario, inputs: Inputs, replay: Replay) -> Timeline:
    """When requests arrived in a run, and when each is complete at the latest.

    Parameters
    ----------
    scenario : Scenario
        For its SLO.
    inputs, replay : Inputs, Replay
        The run.  Where the next turn waited for a request, its completion is exact; else it is
        the later of the deadline and the run's.
    """
    arrived = replay.arrival >= 0
    arrival = np.where(arrived, replay.arrival / TICKS_PER_S, np.nan)
    end = replay.end_tick / TICKS_PER_S
    done = np.where(replay.done >= 0, replay.done / TICKS_PER_S, np.where(arrived, end, np.nan))
    completion = np.fmax(done, arrival + _deadline_s(scenario, inputs))
    data = inputs.requests
    following = np.flatnonzero((data.arrival_tick < 0) & arrived)
    before = data.previous[following]
    completion[before] = done[before]
    refused = data.unservable > 0
    completion[refused] = arrival[refused]
    return Timeline(arrival, completion, "realised")


def _chain(
    previous: IntArray,
    waits: NDArray[np.bool_],
    think: FloatArray,
    least: FloatArray,
    out: FloatArray,
) -> None:
    order = np.flatnonzero(waits)
    before = previous[order]
    # by depth in the session, so that each step is one array operation
    depth = np.zeros(previous.size, np.int64)
    for row, above in zip(order.tolist(), before.tolist(), strict=True):
        depth[row] = depth[above] + 1
    levels = depth[order]
    rank = np.argsort(levels, kind="stable")
    bounds = np.searchsorted(levels[rank], np.arange(levels.max(initial=0) + 2))
    for low, high in itertools.pairwise(bounds[1:]):
        rows = order[rank[low:high]]
        above = previous[rows]
        out[rows] = out[above] + least[above] + think[rows]


def _deadline_s(scenario: Scenario, inputs: Inputs) -> FloatArray:
    """Longest time from arrival to completion within SLO; the drain limit caps it."""
    data = inputs.requests
    ttft = scenario.slo.ttft_s(data.prompt_tokens.astype(np.float64))
    tail = np.where(
        data.output_tokens > 1, scenario.slo.tpot_s * np.maximum(data.output_tokens - 1, 1), 0.0
    )
    whole = (inputs.window.drain_end - inputs.window.start) / TICKS_PER_S
    return np.minimum(ttft + tail, whole)


def _least_prefill_s(inputs: Inputs, tokens: FloatArray, pairs: FloatArray) -> FloatArray:
    """Least time of prefill steps: the largest of the minorants of pure prefill."""
    engine = inputs.engine
    family = minorants(inputs.model, engine.token_budget, engine.max_running_requests, mixed=False)
    result = np.zeros(tokens.shape)
    for token_s, pair_s in {(m.prefill_token_s, m.prefill_pair_s) for m in family}:
        result = np.maximum(result, token_s * tokens + pair_s * pairs)
    return result


def _least_step_s(inputs: Inputs) -> tuple[float, float]:
    engine = inputs.engine
    return least_step_s(inputs.model, engine.token_budget, engine.max_running_requests)


def _usable(inputs: Inputs) -> IntArray:
    """Longest hit of each request [tokens]."""
    engine, prompt = inputs.engine, inputs.requests.prompt_tokens
    most = np.minimum(inputs.nodes.blocks * engine.cache_block_tokens, np.maximum(prompt - 1, 0))
    return np.asarray(most // engine.block_tokens * engine.block_tokens)


def _least_service_s(inputs: Inputs) -> FloatArray:
    """Least time from arrival to completion: host, what no cache saves, decode alone."""
    data = inputs.requests
    prompt = data.prompt_tokens.astype(np.float64)
    hit = _usable(inputs).astype(np.float64)
    step, key = _least_step_s(inputs)
    prefill = _least_prefill_s(inputs, prompt - hit, 0.5 * (prompt**2 - hit**2))
    decode = (data.output_tokens - 1) * (step + key * prompt)
    return np.asarray(data.host_ticks / TICKS_PER_S + prefill + decode)


def make_problem(
    scenario: Scenario,
    inputs: Inputs,
    timeline: Timeline,
    layout: Layout = "spread",
    notes: list[str] | None = None,
) -> Problem:
    """Work out the problem of a workload on a timeline.

    Parameters
    ----------
    scenario : Scenario
        SLO, tiers, serving.
    inputs : Inputs
        Workload, instance and links, as prepared for a simulation.
    timeline : Timeline
        Arrivals and latest completions.
    layout : {'spread', 'free'}, default 'spread'
        Where the global tier may put KV.
    notes : list of str, optional
        Passed on.

    Returns
    -------
    Problem

    Raises
    ------
    SpecError
        If no servable request arrives in the window.
    """
    from smetric_model.bound._pieces import find_pieces, private_tokens

    data, nodes, engine, window = inputs.requests, inputs.nodes, inputs.engine, inputs.window
    arrival, completion = timeline.arrival_s, timeline.completion_s
    comes = ~np.isnan(arrival) & (data.unservable == 0)
    order = np.flatnonzero(comes)
    order = order[np.argsort(arrival[order], kind="stable")]
    in_order = scenario.workload.loop == "closed"
    session = data.session_key.astype(np.int64)
    usable = _usable(inputs)
    patience = scenario.slo.ttft_s(data.prompt_tokens.astype(np.float64))
    arguments = (
        nodes.parent,
        nodes.start,
        nodes.end,
        nodes.longest_path(),
        nodes.leaf,
        nodes.blocks,
        order,
        session,
        in_order,
        arrival,
        completion,
        np.minimum(patience, 1e18),
        usable,
        engine.cache_block_tokens,
    )
    offsets = np.empty(order.size + 1, np.int64)
    fresh = np.empty(order.size)
    one = np.empty(1)
    count = find_pieces(*arguments, offsets, one, one, one.copy(), one, fresh, False)
    tokens, pairs, gap_start, gap_end = (np.empty(max(count, 1)) for _ in range(4))
    count = find_pieces(*arguments, offsets, tokens, pairs, gap_start, gap_end, fresh, True)
    private = np.zeros(arrival.size)
    private_tokens(
        nodes.parent,
        nodes.start,
        nodes.end,
        nodes.leaf,
        nodes.blocks,
        order,
        session,
        in_order,
        arrival,
        completion,
        data.prompt_tokens,
        engine.cache_block_tokens,
        private,
    )
    start_s, end_s = window.start / TICKS_PER_S, window.end / TICKS_PER_S
    here = arrival[order]
    inside = (here >= start_s) & (here < end_s)
    if not inside.any():
        raise SpecError("bound: no servable request arrives in the window")
    rows = order[inside]
    counts = np.diff(offsets)[inside]
    kept = np.repeat(inside, np.diff(offsets))
    tokens, pairs = tokens[:count][kept], pairs[:count][kept]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    request = np.repeat(np.arange(rows.size), counts)
    prompt = data.prompt_tokens[rows].astype(np.float64)
    output = data.output_tokens[rows].astype(np.float64)
    base = prompt - np.bincount(request, tokens, rows.size)
    base_pairs = 0.5 * prompt**2 - np.bincount(request, pairs, rows.size)
    split = scenario.cluster.serving == "disaggregated"
    step, key = _least_step_s(inputs)
    pinned = private[rows] + engine.fixed_state_tokens
    pool = float(engine.pool_tokens)
    decode_pinned = pinned
    moved_nic = moved_pcie = np.zeros(rows.size)
    if split:
        # the decode pool keeps no prefixes: every sequence holds its whole prompt there
        decode_pinned = prompt + engine.fixed_state_tokens
        moved_nic, moved_pcie = _moved(inputs, prompt, output)
    ttft = scenario.slo.ttft_s(prompt)
    host = data.host_ticks[rows] / TICKS_PER_S
    slack = ttft - host - _least_prefill_s(inputs, base, base_pairs)
    decode_step = step + key * prompt
    slow = (output > 1) & (decode_step > scenario.slo.tpot_s)
    slack = np.where(slow, -1.0, slack)
    first_step, places = engine.token_budget, engine.max_running_requests
    family = minorants(inputs.model, first_step, places, mixed=not split)
    alone = minorants(inputs.model, first_step, places, mixed=False)
    problem = Problem(
        row=rows,
        session=session[rows],
        arrival_s=arrival[rows],
        due_s=arrival[rows] + _deadline_s(scenario, inputs)[rows],
        value_tokens=prompt + output,
        prompt_tokens=prompt,
        output_tokens=output,
        base_tokens=base,
        base_pairs=np.maximum(base_pairs, 0.0),
        decode_tokens=output - 1,
        decode_keys=(output - 1) * (prompt + 0.5 * output),
        pinned_tokens=pinned,
        decode_pinned_tokens=decode_pinned,
        pool_share=np.clip(decode_pinned / pool, 0.0, 1.0),
        written_tokens=fresh[inside],
        slack_s=slack,
        decode_step_s=decode_step,
        nic_work_per_token=_nic_work(inputs, usable[rows], layout),
        moved_nic_bytes=moved_nic,
        moved_pcie_bytes=moved_pcie,
        offsets=offsets,
        piece_tokens=tokens,
        piece_pairs=pairs,
        gap_start_s=gap_start[:count][kept],
        gap_end_s=gap_end[:count][kept],
        start_s=start_s,
        end_s=end_s,
        kv_bytes_per_token=inputs.fabric.block_bytes / engine.block_tokens,
        capacities=_capacities(scenario, inputs, layout),
        pool_tokens=pool,
        rows=tuple(family),
        decode_rows=tuple(alone) if split else (),
        fastest_prefill=max(alone, key=lambda m: m.prefill_token_s),
        write_through=scenario.global_tier.write == "through",
        layout=layout,
        remote_ratio=0.0 if layout == "free" else 1.0 - 1.0 / inputs.fabric.nodes,
        timeline=timeline,
        unservable=int(np.sum((data.unservable > 0) & (arrival >= start_s) & (arrival < end_s))),
        notes=list(notes or []),
    )
    return _with_few_rows(problem)


def _nic_work(inputs: Inputs, usable: IntArray, layout: Layout) -> FloatArray:
    """Least line capacity per fetched token, over all sizes up to the request's longest hit."""
    fabric, engine = inputs.fabric, inputs.engine
    if fabric.nodes == 1 or layout == "free":
        return np.zeros(usable.size)
    size = np.arange(1, fabric.nic_work_idle.size)
    work = np.minimum(fabric.nic_work_idle, fabric.nic_work_busy)[1:]
    least = np.minimum.accumulate(work / (size * engine.block_tokens))
    longest = np.clip(-(-usable // engine.block_tokens), 1, size.size)
    return np.asarray(least[longest - 1])


def _moved(inputs: Inputs, prompt: FloatArray, output: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Least link capacity that handing a prompt's KV to the decode pool takes."""
    fabric, engine = inputs.fabric, inputs.engine
    blocks = np.floor(prompt / engine.block_tokens).astype(np.int64)
    moved = np.where(output > 1, blocks, 0)
    pcie = moved * fabric.block_bytes
    work = fabric.transfer_work_idle
    shares_a_node = fabric.prefill_instances % fabric.instances_per_node != 0
    if shares_a_node or work.size == 0 or fabric.nodes == 1:
        return np.zeros(prompt.size), pcie  # it may stay within the node
    least = np.minimum(work, fabric.transfer_work_busy)
    # capacity taken by a size or any larger one
    least = np.minimum.accumulate(least[::-1])[::-1]
    return least[np.clip(moved, 0, least.size - 1)], pcie


def _capacities(scenario: Scenario, inputs: Inputs, layout: Layout) -> Capacities:
    fabric, engine, cluster = inputs.fabric, inputs.engine, scenario.cluster
    split = cluster.serving == "disaggregated"
    prefill = cluster.prefill_instances if split else fabric.instances
    decode = cluster.decode_instances if split else 0
    one_node = fabric.nodes == 1 or (layout == "free" and not split)
    return Capacities(
        compute=float(prefill or 0),
        decode_compute=float(decode or 0),
        local_tokens=float((prefill or 0) * engine.pool_tokens),
        decode_local_tokens=float((decode or 0) * engine.pool_tokens),
        global_tokens=float(fabric.global_blocks * engine.cache_block_tokens),
        nic_bytes_per_s=np.inf if one_node else fabric.nodes * fabric.node_nic_bytes_per_s,
        pcie_bytes_per_s=float(fabric.instances * fabric.pcie_bytes_per_s),
    )


#: Rows of the compute resource that are kept, and requests looked at to choose them.
_MOST_ROWS, _SAMPLE = 4, 20_000


def _with_few_rows(problem: Problem) -> Problem:
    """Keep the minorants that count most, for several shares of prefix reuse."""
    step = max(1, problem.size // _SAMPLE)
    share = problem.pool_share[::step]
    decode = problem.decode_tokens[::step]
    keys = float(problem.decode_keys[::step].sum())
    base = float(problem.base_tokens[::step].sum()), float(problem.base_pairs[::step].sum())
    request = problem.piece_request
    picked = request % step == 0
    pieces = float(problem.piece_tokens[picked].sum()), float(problem.piece_pairs[picked].sum())

    def best(family: tuple[Minorant, ...], prefills: bool) -> tuple[Minorant, ...]:
        decoding = np.array([float((m.decode_token_s(share) * decode).sum()) for m in family])
        chosen: dict[int, None] = {}
        for recomputed in (0.0, 0.1, 0.3, 1.0) if prefills else (0.0,):
            total = decoding + keys * np.array([m.decode_key_s for m in family])
            if prefills:
                total = total + np.array(
                    [
                        m.prefill_token_s * (base[0] + recomputed * pieces[0])
                        + m.prefill_pair_s * (base[1] + recomputed * pieces[1])
                        for m in family
                    ]
                )
            chosen[int(np.argmax(total))] = None
        return tuple(family[k] for k in list(chosen)[:_MOST_ROWS])

    if problem.decode_rows:
        fastest = max(problem.rows, key=lambda m: m.prefill_token_s)
        return replace(problem, rows=(fastest,), decode_rows=best(problem.decode_rows, False))
    return replace(problem, rows=best(problem.rows, True))
