"""One design in closed form: the fewest instances for the rate, or what its instances attain.

:func:`size_design` answers for one scenario with plain values, so that a sweep can run it anywhere
and keep it on disk.  No price goes in: other prices need no new answers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from smetric_model.analytic.cluster_capacity import predicted_capacity
from smetric_model.analytic.cluster_outcome import outcome_of
from smetric_model.analytic.demand import Demand, cluster_of
from smetric_model.analytic.predict import cluster_form, steady_rate_rps
from smetric_model.designing.engine_time import time_shares
from smetric_model.errors import SolveError, UnstableError
from smetric_model.searches import fewest_near
from smetric_model.sweeping.work import shared_demand
from smetric_model.tuning.sizing import most_instances, with_instances

if TYPE_CHECKING:
    from smetric_model.analytic.cluster import ClusterState, ColocatedCluster
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario

__all__ = ["COLUMNS", "NO_NUMBER", "Sized", "evaluate", "size_design", "sized"]

#: why a design has no answer where it is not large enough at any size
NO_NUMBER = "no number of instances is enough"
#: columns of the outcome that a plan keeps
COLUMNS = (
    "within_slo_ratio",
    "total_tps",
    "total_within_slo_tps",
    "computed_prompt_tps",
    "reused_prompt_tps",
    "output_tps",
    "ttft_p50_s",
    "ttft_p90_s",
    "tpot_p50_s",
    "tpot_p90_s",
    "local_ratio",
    "global_ratio",
    "compute_utilisation_ratio",
    "kv_utilisation_ratio",
    "nic_in_utilisation_ratio",
    "binding_resource",
    "valid",
    "note",
)
_BUSY = 0.8  # share of the busiest resource from which the search begins


class Evaluated(NamedTuple):
    """A scenario's prediction with what is behind it."""

    outcome: Outcome
    cluster: ColocatedCluster
    state: ClusterState


class Sized(NamedTuple):
    """How many instances a rate needs.

    Attributes
    ----------
    instances : int or None
        Fewest; None where no number is enough.
    exact : float
        Where the share within SLO passes the wanted one, interpolated between two numbers of
        instances; NaN where the cluster with one instance less has no steady state.
    share : float
        Share within SLO with so many; without a number, with the most tried.
    evaluated : Evaluated or None
        The prediction for so many.
    tried : int
        Predictions made.
    why : str
        What keeps the most tried from being enough; empty where a number is.
    """

    instances: int | None
    exact: float
    share: float
    evaluated: Evaluated | None
    tried: int
    why: str = ""


def evaluate(scenario: Scenario, demand: Demand) -> Evaluated:
    """Predict a scenario, and keep what is behind it.

    Parameters
    ----------
    scenario : Scenario
    demand : Demand

    Raises
    ------
    UnstableError
        If there is no steady state.
    """
    cluster = cluster_form(scenario, demand)
    state = cluster.at(steady_rate_rps(cluster))
    return Evaluated(outcome_of(cluster, state), cluster, state)


def sized(scenario: Scenario, demand: Demand, start: int | None = None) -> Sized:
    """Find the fewest instances that serve a scenario's rate with its attainment.

    Parameters
    ----------
    scenario : Scenario
        The question; two pools keep its proportion.
    demand : Demand
        Its workload.
    start : int, optional
        Where to begin; by default where the busiest resource of the scenario's own instances
        would be used by :data:`_BUSY`.

    Returns
    -------
    Sized
    """
    wanted = scenario.slo.attainment
    least = 2 if scenario.cluster.serving == "disaggregated" else 1
    most = max(most_instances(scenario, demand), start or 1)
    rows: dict[int, Evaluated | None] = {}
    why: dict[int, str] = {}

    def at(instances: int) -> Evaluated | None:
        if instances not in rows:
            try:
                rows[instances] = evaluate(with_instances(scenario, instances), demand)
            except (UnstableError, SolveError) as error:
                rows[instances] = None
                why[instances] = str(error)
        return rows[instances]

    def share(instances: int) -> float:
        row = at(instances)
        return 0.0 if row is None else row.outcome.number("within_slo_ratio")

    if start is None:
        start = max(scenario.cluster.instances, least)
        row = at(start)
        if row is not None:
            used = max(
                row.outcome.number(f"{name}_utilisation_ratio")
                for name in ("compute", "kv", "nic_in")
            )
            start = max(math.ceil(start * used / _BUSY), least)
    found = fewest_near(lambda n: share(n) >= wanted, start, least, most)
    if found is None:
        best = share(most)
        reason = why.get(most) or f"with {most:,} {best:.1%} of the requests are within SLO"
        return Sized(None, math.nan, best, None, len(rows), reason)
    exact = math.nan
    if found == least:
        exact = float(found)
    elif rows.get(found - 1) is not None:
        below = share(found - 1)
        exact = found - 1 + (wanted - below) / max(share(found) - below, 1e-12)
    return Sized(found, exact, share(found), rows[found], len(rows))


def size_design(
    scenario: Scenario,
    capacity: bool = False,
    start: int | None = None,
    demand: Demand | None = None,
) -> dict[str, Any]:
    """Answer for one design in closed form.

    Parameters
    ----------
    scenario : Scenario
        The design.
    capacity : bool, default False
        Whether its instances are given and the largest rate with the asked share within SLO is
        sought; else its rate is given and the fewest instances are.
    start : int, optional
        Where the search for instances begins.
    demand : Demand, optional
        What the workload asks for, if it is at hand.

    Returns
    -------
    dict
        ``instances`` (None: no number is enough), ``instances_exact``, ``unservable_ratio``,
        ``gpus``, ``nodes``, ``rate_rps``, columns of the outcome (:data:`COLUMNS`), shares of the
        hardware's time by class of token (:mod:`smetric_model.designing.engine_time`),
        ``predictions``.
    """
    if demand is None:
        demand = shared_demand(scenario)
    if capacity:
        return _at_capacity(scenario, demand)
    found = sized(scenario, demand, start)
    row: dict[str, Any] = {
        "instances": found.instances,
        "instances_exact": found.exact,
        "within_slo_ratio": found.share,
        "predictions": found.tried,
        "unservable_ratio": demand.unservable_ratio,
    }
    if found.evaluated is None or found.instances is None:
        return row | {"note": f"{NO_NUMBER}: {found.why}"}
    return row | _columns(with_instances(scenario, found.instances), found.evaluated)


def _at_capacity(scenario: Scenario, demand: Demand) -> dict[str, Any]:
    found = predicted_capacity(scenario, demand=demand)
    row: dict[str, Any] = {
        "instances": scenario.cluster.instances,
        "within_slo_ratio": found.within_slo_ratio,
        "unservable_ratio": demand.unservable_ratio,
    }
    if found.rate_rps is None:
        return row | {"rate_rps": None, "note": "no rate attains the share within SLO"}
    here = scenario.replace(**{"workload.rate_rps": found.rate_rps})
    return row | _columns(here, evaluate(here, demand))


def _columns(scenario: Scenario, found: Evaluated) -> dict[str, Any]:
    cluster = cluster_of(scenario)
    row: dict[str, Any] = {
        "prefill_instances": scenario.cluster.prefill_instances,
        "decode_instances": scenario.cluster.decode_instances,
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "rate_rps": found.outcome.number("arrival_rate_rps"),
    }
    row |= {name: found.outcome[name] for name in COLUMNS}
    return row | time_shares(found.cluster, found.state, found.outcome)
