"""What a bound is computed from: requests, pieces of reusable prefix, capacities; plain arrays.

``docs/bound.md`` says why each number is on the safe side.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smetric_model.bound.minorant import Minorant, minorants
from smetric_model.bound.resources import (
    Capacities,
    Layout,
    capacities_of,
    handover_work,
    nic_work,
)
from smetric_model.bound.rows import Row
from smetric_model.bound.timeline import (
    Timeline,
    deadline_s,
    least_decode_step_s,
    least_prefill_s,
    longest_hit_tokens,
    nominal_timeline,
    realised_timeline,
)
from smetric_model.errors import SpecError
from smetric_model.scenario_groups import check_equal_instances
from smetric_model.simulate.steps import TICKS_PER_S

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.inputs import Inputs
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
    pool_tokens, fixed_tokens : float
        Of one instance; the part of it that each running request takes besides its prompt.
    rows : tuple of Row
        Of all instances, or of the prefill pool.
    decode_rows : tuple of Row
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
    fixed_tokens: float
    rows: tuple[Row, ...]
    decode_rows: tuple[Row, ...]
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

    check_equal_instances(scenario, "bound")
    replayed, notes = replayed_trace(scenario, trace)
    prepared = prepare(_simulated_form(scenario), replayed)
    prepared.notes[:0] = notes
    timeline = nominal_timeline(scenario, prepared.inputs)
    return make_problem(scenario, prepared.inputs, timeline, layout, prepared.notes), prepared


def _simulated_form(scenario: Scenario) -> Scenario:
    """Return the scenario in a form whose arrays can be prepared: they are the same."""
    changes: dict[str, Any] = {"client": {}, "engine.kv_admission": "reserve"}
    return scenario.replace(**changes)


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
    check_equal_instances(scenario, "bound")
    from smetric_model.bound._pieces import find_pieces, private_tokens
    from smetric_model.bound.row_choice import with_rows

    data, nodes, engine, window = inputs.requests, inputs.nodes, inputs.engine, inputs.window
    arrival, completion = timeline.arrival_s, timeline.completion_s
    comes = ~np.isnan(arrival) & (data.unservable == 0)
    order = np.flatnonzero(comes)
    order = order[np.argsort(arrival[order], kind="stable")]
    in_order = scenario.workload.loop == "closed"
    session = data.session_key.astype(np.int64)
    usable = longest_hit_tokens(inputs)
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
    step, key = least_decode_step_s(inputs)
    pinned = private[rows] + engine.fixed_state_tokens
    pool = float(engine.pool_tokens)
    decode_pinned = pinned
    moved_nic = moved_pcie = np.zeros(rows.size)
    if split:
        # the decode pool keeps no prefixes: every sequence holds its whole prompt there
        decode_pinned = prompt + engine.fixed_state_tokens
        moved_nic, moved_pcie = handover_work(inputs, prompt, output)
    ttft = scenario.slo.ttft_s(prompt)
    host = data.host_ticks[rows] / TICKS_PER_S
    slack = ttft - host - least_prefill_s(inputs, base, base_pairs)
    decode_step = step + key * prompt
    slow = (output > 1) & (decode_step > scenario.slo.tpot_s)
    slack = np.where(slow, -1.0, slack)
    first_step, places = engine.token_budget, engine.max_running_requests
    alone = minorants(inputs.model, first_step, places, mixed=False)
    problem = Problem(
        row=rows,
        session=session[rows],
        arrival_s=arrival[rows],
        due_s=arrival[rows] + deadline_s(scenario, inputs)[rows],
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
        nic_work_per_token=nic_work(inputs, usable[rows], layout),
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
        capacities=capacities_of(scenario, inputs, layout),
        pool_tokens=pool,
        fixed_tokens=float(engine.fixed_state_tokens),
        rows=(),
        decode_rows=(),
        fastest_prefill=max(alone, key=lambda m: m.prefill_token_s),
        write_through=scenario.global_tier.write == "through",
        layout=layout,
        remote_ratio=0.0 if layout == "free" else 1.0 - 1.0 / inputs.fabric.nodes,
        timeline=timeline,
        unservable=int(np.sum((data.unservable > 0) & (arrival >= start_s) & (arrival < end_s))),
        notes=list(notes or []),
    )
    return with_rows(problem, inputs)
