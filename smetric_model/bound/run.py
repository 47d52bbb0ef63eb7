"""``bound``: what no router can beat on a scenario's requests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smetric_model.bound.solvers import SolverOptions

if TYPE_CHECKING:
    from smetric_model.bound.problem import Layout, Problem
    from smetric_model.bound.timed import Timed
    from smetric_model.bound.volume import Volume
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.simulate import Simulation
    from smetric_model.workload.trace import Trace

__all__ = ["BINDING", "Bound", "BoundOptions", "bound", "bound_in_detail"]


@dataclass(frozen=True)
class BoundOptions:
    """How a bound is computed; every choice gives a valid bound.

    Attributes
    ----------
    solver : SolverOptions
        Solver, tolerance, time limit of one solve.
    window_s : float
        Windows of the time-resolved bounds [s].
    detail : float, optional
        Merging of alike columns in the time-resolved bounds, bins per factor of e; ``inf``: none.
    block_requests : float, optional
        Requests of one time block; ``inf``: all.
    layout : {'spread', 'free'}
        Whether the global tier spreads KV evenly over the nodes, as the simulator does, or may put
        it where it is fetched next.
    timed : bool
        Whether the time-resolved bounds are computed; else only the volume bound.
    """

    solver: SolverOptions = field(default_factory=SolverOptions)
    window_s: float = 60.0
    detail: float | None = None
    block_requests: float | None = None
    layout: Layout = "spread"
    timed: bool = True


@dataclass(frozen=True, eq=False)
class Bound:
    """A scenario's bounds, with all that is known of them.

    Attributes
    ----------
    outcome : Outcome
        The row of the schema.
    problem : Problem
        What was bounded.
    volume, volume_within_slo : Volume
        Most load on average over time: at any latency, and with each TTFT within SLO.
    goodput, scale : Timed or None
        Most tokens within SLO of the window's requests; most load with all of them within SLO.
    """

    outcome: Outcome
    problem: Problem
    volume: Volume
    volume_within_slo: Volume
    goodput: Timed | None
    scale: Timed | None


def bound(
    scenario: Scenario,
    trace: Trace | None = None,
    options: BoundOptions | None = None,
    simulation: Simulation | None = None,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Bound what any router, cache policy and schedule can deliver on a scenario's requests.

    Parameters
    ----------
    scenario : Scenario
        The question; its router does not matter.
    trace : Trace, optional
        Its workload, if at hand.
    options : BoundOptions, optional
        Solver, windows, merging.
    simulation : Simulation, optional
        A run of the same scenario under some router: the bound is then on its realised arrivals
        (closed loop: a faster router has earlier ones), so that both are about the same requests.
    progress : callable, optional
        Told what is being done.

    Returns
    -------
    Outcome
        ``total_within_slo_tps`` is the goodput bound, ``total_tps`` the volume bound (any rate,
        any latency), or the goodput bound where that is larger; shares and utilisations are those
        of a plan that attains the volume bound's prices, no bounds.

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, or an option is wrong.
    TraceError
        If the trace cannot be read.

    Notes
    -----
    What is a bound on what, and why: ``docs/bound.md``.

    Examples
    --------
    >>> from smetric_model import Scenario, bound, simulate
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml").replace(
    ...     **{"workload.warmup_s": 120.0, "workload.window_s": 120.0}
    ... )
    >>> best = bound(scenario)
    >>> run = simulate(scenario)
    >>> run["total_tps"] < best["total_tps"]
    True
    """
    return bound_in_detail(scenario, trace, options, simulation, progress).outcome


def bound_in_detail(
    scenario: Scenario,
    trace: Trace | None = None,
    options: BoundOptions | None = None,
    simulation: Simulation | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bound:
    """Bound and keep everything; arguments and errors as of :func:`bound`.

    Parameters
    ----------
    scenario, trace, options, simulation, progress
        See :func:`bound`.

    Returns
    -------
    Bound
    """
    from smetric_model.bound.problem import make_problem, problem_of, realised_timeline
    from smetric_model.bound.timed import timed_bound
    from smetric_model.bound.volume import volume_bound

    options = options or BoundOptions()
    tell = progress or (lambda _text: None)
    tell("preparing the workload")
    if simulation is not None:
        inputs = simulation.prepared.inputs
        timeline = realised_timeline(scenario, inputs, simulation.replay)
        problem = make_problem(
            scenario, inputs, timeline, options.layout, simulation.prepared.notes
        )
    else:
        problem, _ = problem_of(scenario, trace, options.layout)
    tell("volume bound")
    volume = volume_bound(problem, options.solver)
    within = volume_bound(problem, options.solver, within_slo=True)
    goodput = scale = None
    if options.timed:
        shared: dict[str, Any] = {
            "window_s": options.window_s,
            "detail": options.detail,
            "block_requests": options.block_requests,
            "fallback": within.prices,
        }
        goodput = timed_bound(
            problem,
            options.solver,
            objective="goodput",
            progress=lambda text: tell(f"goodput bound, {text}"),
            **shared,
        )
        if not goodput.interrupted and problem.hopeful.any():
            scale = timed_bound(
                problem,
                options.solver,
                objective="scale",
                progress=lambda text: tell(f"time-resolved bound, {text}"),
                **shared,
            )
    outcome = _outcome(scenario, problem, volume, goodput, scale)
    return Bound(outcome, problem, volume, within, goodput, scale)


_UTILISATION = {"compute": "compute", "local": "kv", "nic": "nic_in", "pcie": "pcie"}
#: resource of the programs -> what the schema calls it
BINDING = {
    "compute": "compute",
    "decode_compute": "compute",
    "local": "kv",
    "decode_local": "kv",
    "global": "kv",
    "nic": "nic_in",
    "pcie": "pcie",
}


def _outcome(
    scenario: Scenario,
    problem: Problem,
    volume: Volume,
    goodput: Timed | None,
    scale: Timed | None,
) -> Outcome:
    from smetric_model.outcome import Outcome

    window_s = problem.window_s
    prompt = float(problem.prompt_tokens.sum())
    offered = float(problem.value_tokens.sum())
    mode = volume.costs.mode
    tokens = problem.piece_tokens
    local, fetched = (float(tokens[mode == k].sum()) / prompt for k in (0, 1))
    shares = {
        "prompt": prompt / offered,
        "computed_prompt": prompt / offered * (1 - local - fetched),
        "reused_prompt": prompt / offered * (local + fetched),
        "output": 1 - prompt / offered,
        "total": 1.0,
    }
    # of a mix, a window may serve the cheaper part: no rate of the whole mix is that high
    total = volume.total_tps
    if goodput is not None:
        total = max(total, goodput.total_within_slo_tps)
    requests = problem.size + problem.unservable
    status = {volume.status, *(part.status for part in (goodput, scale) if part is not None)}
    notes = [*problem.notes, *volume.notes, *_notes(scenario, problem, volume)]
    row: dict[str, Any] = {
        "scenario_id": scenario.scenario_id,
        "verb": "bound",
        "policy": "volume" if goodput is None else "timed",
        "seed": scenario.seed,
        "arrival_rate_rps": requests / window_s,
        "warmup_s": scenario.workload.warmup_s,
        "window_s": scenario.workload.window_s,
        "requests": requests,
        "unservable_ratio": problem.unservable / requests,
        **{f"{name}_tps": share * total for name, share in shares.items()},
        "local_ratio": local,
        "global_ratio": fetched,
        "peer_ratio": 0.0,
        "recomputed_ratio": 1 - local - fetched,
        "valid": math.isfinite(volume.total_tps),
    }
    row |= _utilisations(problem, volume)
    most = max(volume.elasticity, key=lambda name: volume.elasticity[name], default="")
    row["binding_resource"] = BINDING.get(most, "")
    if goodput is not None:
        row |= _within_slo(goodput, shares)
        notes += goodput.notes
    if scale is not None:
        notes += scale.notes
        notes.append(
            f"all requests within SLO at up to {scale.load_multiple:.3g} times the load"
            " (every session so many times)"
        )
    if not status <= {"optimal"}:
        notes.append("some solve gave no exact answer: the bound is valid, and weaker")
    row["note"] = "; ".join(notes)
    return Outcome(row)


def _utilisations(problem: Problem, volume: Volume) -> dict[str, float]:
    """Use of each resource at the bound's load, by what its prices choose."""
    from smetric_model.bound.volume import usage_of

    used = usage_of(problem, volume.costs.mode)
    multiple = volume.load_multiple / problem.window_s
    result = {}
    for name, column in _UTILISATION.items():
        if name in used:
            result[f"{column}_utilisation_ratio"] = min(1.0, float(used[name].max()) * multiple)
    if "nic_in_utilisation_ratio" in result:
        result["nic_out_utilisation_ratio"] = result["nic_in_utilisation_ratio"]
    return result


def _within_slo(goodput: Timed, shares: dict[str, float]) -> dict[str, float]:
    """Return the goodput bound, split as the volume bound's plan splits it."""
    result = {
        f"{name}_within_slo_tps": share * goodput.total_within_slo_tps
        for name, share in shares.items()
    }
    plan = goodput.plan
    if plan.get("offered_requests", 0.0) > 0:
        result["within_slo_ratio"] = min(plan["requests"] / plan["offered_requests"], 1.0)
    return result


def _notes(scenario: Scenario, problem: Problem, volume: Volume) -> list[str]:
    notes = []
    if scenario.workload.loop == "closed":
        notes.append(
            "closed loop: the goodput bound is for the arrivals of "
            + (
                "requests served as fast as they can be"
                if problem.timeline.kind == "nominal"
                else "the given run"
            )
        )
    if not problem.hopeful.all():
        count = int((~problem.hopeful).sum())
        notes.append(f"{count} requests cannot meet their SLO even alone on an idle instance")
    limits = ", ".join(f"{k} {v:.2f}" for k, v in volume.elasticity.items() if v > 0.005)
    notes.append(f"share of the bottleneck: {limits}")
    return notes
