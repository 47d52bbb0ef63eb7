"""``predict``: the closed-form answer to a scenario.

By default the scenario's router places the requests (:mod:`smetric_model.analytic.cluster`).  The
ends between which any router lies, perfect placement with no reuse, with the scenario's tiers or
with a store that forgets nothing, are in :mod:`smetric_model.analytic.perfect_placement`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from smetric_model.analytic.demand import Demand, demand_of, trace_of
from smetric_model.analytic.perfect_placement import Prediction, Reuse
from smetric_model.errors import SpecError
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    from smetric_model.analytic.cluster import ColocatedCluster
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["Prediction", "Reuse", "cluster_form", "predict", "predict_goodput", "steady_rate_rps"]


def predict(
    scenario: Scenario,
    reuse: Reuse | Literal["router"] = "router",
    trace: Trace | None = None,
    demand: Demand | None = None,
) -> Outcome:
    """Answer a scenario in closed form.

    Parameters
    ----------
    scenario : Scenario
        The question; ``workload.rate_rps`` counts all requests, unservable ones included.
    reuse : {"router", "none", "tiers", "ideal"}
        ``"router"``: the scenario's policy on its tiers.  The others place perfectly, see
        :mod:`smetric_model.analytic.perfect_placement`.
    trace : Trace, optional
        The workload, if it is at hand; else it is loaded.
    demand : Demand, optional
        What the workload asks for, if it is at hand (``demand_of``): saves most of the time where
        many scenarios share workload, LLM and engine; that they do is not checked.

    Returns
    -------
    Outcome

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, or asks for what is not modelled.
    UnstableError
        If there is no steady state; names the resource that saturates.

    Notes
    -----
    The equations and how far they are from a simulation: ``docs/cluster-model.md``.

    Examples
    --------
    >>> from smetric_model import Scenario, predict
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> outcome = predict(scenario)
    >>> outcome["binding_resource"], outcome["valid"]
    ('compute', True)
    >>> round(outcome["local_ratio"] + outcome["global_ratio"] + outcome["recomputed_ratio"], 9)
    1.0
    """
    check_equal_instances(scenario, "predict")
    if demand is None:
        demand = demand_of(scenario, trace_of(scenario) if trace is None else trace)
    if reuse != "router":
        return Prediction(scenario, demand, reuse).outcome(_servable_rps(scenario, demand))
    from smetric_model.analytic.cluster_outcome import outcome_of

    cluster = cluster_form(scenario, demand)
    return outcome_of(cluster, cluster.at(steady_rate_rps(cluster)))


def predict_goodput(scenario: Scenario, demand: Demand) -> dict[str, float]:
    """Return what :func:`predict` says of the goodput, in less time: for searches.

    Parameters
    ----------
    scenario, demand
        As of :func:`predict`.

    Returns
    -------
    dict of str to float
        ``within_slo_ratio`` and the columns in tokens per second.

    Raises
    ------
    UnstableError
        If there is no steady state; names the resource that saturates.
    """
    from smetric_model.analytic.cluster_outcome import goodput_of

    cluster = cluster_form(scenario, demand)
    return goodput_of(cluster, cluster.at(steady_rate_rps(cluster)))


def cluster_form(scenario: Scenario, demand: Demand) -> ColocatedCluster:
    """Return the closed form of a scenario's cluster under its router, for any rate.

    Parameters
    ----------
    scenario : Scenario
        The question; its rate is not looked at.
    demand : Demand
        Its workload.

    Returns
    -------
    ColocatedCluster
        A :class:`~smetric_model.analytic.disaggregated.DisaggregatedCluster` where it is one.
    """
    from smetric_model.analytic.cluster import ColocatedCluster
    from smetric_model.analytic.cluster_demand import with_sessions

    form: type[ColocatedCluster] = ColocatedCluster
    if scenario.cluster.serving == "disaggregated":
        from smetric_model.analytic.disaggregated import DisaggregatedCluster

        form = DisaggregatedCluster
    return form(scenario, with_sessions(demand))


def steady_rate_rps(cluster: ColocatedCluster) -> float:
    """Return the rate that a cluster's scenario asks for.

    Parameters
    ----------
    cluster : ColocatedCluster
        From :func:`cluster_form`.

    Returns
    -------
    float
        Servable requests of the cluster; of the window where the trace is replayed as it is
        [requests/s].

    Raises
    ------
    SpecError
        If the rate is the trace's, and its sessions share no clock.
    """
    scenario = cluster.scenario
    if scenario.workload.rate_rps == "trace" and np.isfinite(cluster.work.rate_rps):
        return float(cluster.work.rate_rps)
    return _servable_rps(scenario, cluster.demand)


def _servable_rps(scenario: Scenario, demand: Demand) -> float:
    """Servable requests per second of the scenario's cluster."""
    rate = scenario.workload.rate_rps
    if rate == "trace":
        rate = demand.trace_rate_rps
        if not np.isfinite(rate):
            raise SpecError(
                f"workload.rate_rps = 'trace': the sessions of {demand.source} share no clock;"
                " give a number"
            )
    return float(rate * (1 - demand.unservable_ratio))
