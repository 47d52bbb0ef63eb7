"""How far a design is from what no router can beat, as plain values for a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["bound_beside_run", "bound_share"]


def bound_beside_run(scenario: Scenario, trace: Trace | None = None) -> dict[str, Any]:
    """Bound what any router could serve within SLO, beside what the scenario's own does.

    Both are about the same requests: the bound is for the arrivals of the simulated run.

    Parameters
    ----------
    scenario : Scenario
        A design, with its instances.
    trace : Trace, optional
        Its workload, if at hand.

    Returns
    -------
    dict
        ``bound_within_slo_tps``, ``simulated_within_slo_tps``, ``offered_tps`` [tokens/s];
        ``volume_load_multiple``: how many times this load any router could carry at any latency;
        ``binding``: what limits that; ``exact``: whether the solver proved its optimum (the bound
        holds either way).
    """
    from smetric_model.bound.problem import make_problem, realised_timeline
    from smetric_model.bound.timed import timed_bound
    from smetric_model.bound.volume import volume_bound
    from smetric_model.simulate.run import simulate_in_detail

    run = simulate_in_detail(scenario, trace)
    inputs = run.prepared.inputs
    problem = make_problem(scenario, inputs, realised_timeline(scenario, inputs, run.replay))
    volume = volume_bound(problem)
    goodput = timed_bound(problem, fallback=volume.prices)
    most = max(volume.elasticity, key=lambda name: volume.elasticity[name], default="")
    return {
        "bound_within_slo_tps": goodput.total_within_slo_tps,
        "simulated_within_slo_tps": run.outcome.number("total_within_slo_tps"),
        "offered_tps": float(problem.value_tokens.sum()) / problem.window_s,
        "volume_load_multiple": volume.load_multiple,
        "binding": most,
        "exact": goodput.status == "optimal",
    }


def bound_share(scenario: Scenario, trace: Trace | None = None) -> dict[str, Any]:
    """Bound the share of the offered tokens that any router could serve within SLO.

    For arrivals as if each request were served as fast as it can be: they do not depend on the
    number of instances, so that several can be compared.

    Parameters
    ----------
    scenario : Scenario
        A design, with its instances.
    trace : Trace, optional
        Its workload, if at hand.

    Returns
    -------
    dict
        ``bound_served_ratio``, ``exact`` as in :func:`bound_beside_run`.
    """
    from smetric_model.bound.problem import problem_of
    from smetric_model.bound.timed import timed_bound
    from smetric_model.bound.volume import volume_bound

    problem, _ = problem_of(scenario, trace)
    volume = volume_bound(problem)
    goodput = timed_bound(problem, fallback=volume.prices)
    return {"bound_served_ratio": goodput.served_ratio, "exact": goodput.status == "optimal"}
