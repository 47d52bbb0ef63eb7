"""How far a design is from what no router can beat, as plain values for a sweep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smetric_model.analytic.demand import cluster_of
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

_NO_SHARE = 1e-6  # of the bound: none

__all__ = ["bound_beside_run", "bound_share", "fewest_by_volume"]


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
        ``binding``: what limits that, ``tier_elasticity`` and ``nic_elasticity``: how much of it
        the global tier and the links do; ``exact``: whether the solver proved its optimum (the
        bound holds either way).
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
        "tier_elasticity": float(volume.elasticity.get("global", 0.0)),
        "nic_elasticity": float(volume.elasticity.get("nic", 0.0)),
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


def fewest_by_volume(
    scenario: Scenario, load_multiple: float, node_share: float, nic_share: float
) -> int | None:
    """Return the fewest instances with which any router could carry the load, at any latency.

    The prices that prove the volume bound prove one for n of N instances too: no more than
    load_multiple · Σ_k e_k · (capacity k with n) / (capacity k with N), where the elasticities e_k
    of the resources add up to 1.  The global tier grows with nodes, the rest with instances.

    Parameters
    ----------
    scenario : Scenario
        A design, with its N instances.
    load_multiple : float
        Times its load that any router could carry.
    node_share, nic_share : float
        Elasticity of that to the global tier, and to the links.

    Returns
    -------
    int or None
        None where links limit too: how much is remote depends on the number of nodes.
    """
    if nic_share > _NO_SHARE or not math.isfinite(load_multiple) or load_multiple <= 0:
        return None
    whole = cluster_of(scenario)
    pools = scenario.cluster.serving == "disaggregated"
    for count in range(2 if pools else 1, whole.instances):
        fewer = with_instances(scenario, count)
        shares = [count / whole.instances]
        if pools:
            now, then = scenario.cluster, fewer.cluster
            shares = [
                (then.prefill_instances or 0) / (now.prefill_instances or 1),
                (then.decode_instances or 0) / (now.decode_instances or 1),
            ]
        nodes = cluster_of(fewer).nodes / whole.nodes
        share = (1 - node_share) * max(shares) + node_share * nodes
        if load_multiple * share >= 1 - 1e-9:
            return count
    return whole.instances
