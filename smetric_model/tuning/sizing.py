"""How many instances a rate needs: the inverse of ``predict``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smetric_model.analytic.demand import Demand, demand_of, trace_of
from smetric_model.analytic.predict import predict, predict_goodput
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.searches import fewest

if TYPE_CHECKING:
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["InstancesNeeded", "fewest_instances", "most_instances", "with_instances"]

#: largest cluster that is tried: so many times the scenario's, or the seconds between two requests
#: of an instance; beyond it nothing waits any more
_MOST_TIMES = 1024


@dataclass(frozen=True)
class InstancesNeeded:
    """Fewest instances that serve a scenario's rate with the wanted share within SLO.

    Attributes
    ----------
    attainment : float
        The wanted share of the requests.
    instances : int or None
        Fewest instances; None where no number is enough.
    prefill_instances, decode_instances : int or None
        Of these, where there are two pools.
    within_slo_ratio : float
        Share of the requests within SLO with so many; without a number, with the most tried.
    outcome : Outcome or None
        The prediction for so many.
    """

    attainment: float
    instances: int | None
    prefill_instances: int | None
    decode_instances: int | None
    within_slo_ratio: float
    outcome: Outcome | None


def with_instances(scenario: Scenario, instances: int) -> Scenario:
    """Return a scenario with so many instances; two pools share them as the scenario's do.

    Parameters
    ----------
    scenario : Scenario
        The question.
    instances : int
        At least 1, at least 2 for two pools.

    Returns
    -------
    Scenario

    Raises
    ------
    SpecError
        If there are too few.
    """
    section = scenario.cluster
    changes: dict[str, int] = {"cluster.instances": instances}
    if section.serving == "disaggregated":
        if instances < 2:
            raise SpecError(f"cluster.instances = {instances}: two pools need 2 at least")
        prefill = round(instances * (section.prefill_instances or 1) / section.instances)
        prefill = min(max(prefill, 1), instances - 1)
        changes |= {
            "cluster.prefill_instances": prefill,
            "cluster.decode_instances": instances - prefill,
        }
    return scenario.replace(**changes)


def most_instances(scenario: Scenario, demand: Demand) -> int:
    """Return the largest number of instances that is worth trying: nothing waits on so many.

    Parameters
    ----------
    scenario : Scenario
        The question.
    demand : Demand
        Its workload.
    """
    rate = scenario.workload.rate_rps
    asked = demand.trace_rate_rps if rate == "trace" else rate
    seconds = math.ceil(asked) if math.isfinite(asked) else 1
    return _MOST_TIMES * max(scenario.cluster.instances, seconds)


def fewest_instances(
    scenario: Scenario,
    attainment: float | None = None,
    trace: Trace | None = None,
    demand: Demand | None = None,
) -> InstancesNeeded:
    """Return the fewest instances that serve a scenario's rate within its SLO, in closed form.

    Nodes, and with them the global tier and the interfaces, grow with the instances; the router is
    the scenario's.

    Parameters
    ----------
    scenario : Scenario
        The question; ``cluster.instances`` is where the search begins, and two pools keep its
        proportion.
    attainment : float, optional
        Share of the requests that must meet the SLO, in (0, 1]; by default ``slo.attainment``.
    trace : Trace, optional
        The workload, if it is at hand.
    demand : Demand, optional
        As in :func:`~smetric_model.analytic.predict.predict`.

    Returns
    -------
    InstancesNeeded

    Raises
    ------
    SpecError
        If the share is not allowed, or the scenario cannot be resolved.

    Examples
    --------
    >>> from smetric_model import Scenario, fewest_instances
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> found = fewest_instances(scenario)  # for its 3 requests/s
    >>> found.instances < scenario.cluster.instances, found.within_slo_ratio >= found.attainment
    (True, True)
    """
    wanted = scenario.slo.attainment if attainment is None else attainment
    if not 0 < wanted <= 1:
        raise SpecError(f"attainment = {wanted}: a share above 0, at most 1, is needed")
    if demand is None:
        demand = demand_of(scenario, trace_of(scenario) if trace is None else trace)
    pools = scenario.cluster.serving == "disaggregated"
    shares: dict[int, float] = {}

    def enough(instances: int) -> bool:
        if instances < (2 if pools else 1):
            return False
        try:
            found = predict_goodput(with_instances(scenario, instances), demand)
        except (UnstableError, SolveError):
            found = {}
        shares[instances] = found.get("within_slo_ratio", 0.0)
        return shares[instances] >= wanted

    most = most_instances(scenario, demand)
    found = fewest(enough, scenario.cluster.instances, most=most)
    if found is None:
        return InstancesNeeded(wanted, None, None, None, shares[most], None)
    sized = with_instances(scenario, found)
    section = sized.cluster
    return InstancesNeeded(
        wanted,
        found,
        section.prefill_instances if pools else None,
        section.decode_instances if pools else None,
        shares[found],
        predict(sized, demand=demand),
    )
