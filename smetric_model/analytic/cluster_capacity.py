"""Capacity of a cluster under its router in closed form, and rows over many rates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from smetric_model.analytic.demand import Demand, demand_of, trace_of
from smetric_model.analytic.predict import cluster_form, predict, predict_goodput
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["Criterion", "PredictedCapacity", "predict_at_rates", "predicted_capacity"]

Criterion = Literal["peak_goodput", "attainment"]

_LOADS = np.array([0.1, 0.3, 0.45, 0.6, 0.7, 0.8, 0.88, 0.95])
_DOUBLINGS = 40
_NARROW = 0.01  # width of the last bracket, as a share of the rate


@dataclass(frozen=True)
class PredictedCapacity:
    """Capacity of a scenario's cluster.

    Attributes
    ----------
    criterion : {"peak_goodput", "attainment"}
        Most tokens/s within SLO over all rates, or the largest rate with the wanted share.
    rate_rps : float or None
        Requests per second of the cluster at which it is reached; None where no rate attains the
        share [requests/s].
    total_within_slo_tps : float
        Tokens within SLO there; 0 without a rate [tokens/s].
    within_slo_ratio : float
        Share of the requests there; without a rate, of an idle cluster.
    saturation_rps : float
        Largest rate with a steady state [requests/s].
    resource : str
        What saturates above it.
    outcome : Outcome or None
        The row at that rate.
    """

    criterion: Criterion
    rate_rps: float | None
    total_within_slo_tps: float
    within_slo_ratio: float
    saturation_rps: float
    resource: str
    outcome: Outcome | None


def predict_at_rates(
    scenario: Scenario,
    rates_rps: Iterable[float],
    trace: Trace | None = None,
    demand: Demand | None = None,
) -> list[Outcome]:
    """Predict a scenario at many rates; a rate without a steady state is a flagged row.

    Parameters
    ----------
    scenario : Scenario
        The question; its rate is replaced.
    rates_rps : iterable of float
        Requests per second of the cluster [requests/s].
    trace : Trace, optional
        The workload, if it is at hand.
    demand : Demand, optional
        As in :func:`~smetric_model.analytic.predict.predict`.

    Returns
    -------
    list of Outcome
        One a rate.  Where there is no steady state ``valid`` is False, ``binding_resource`` names
        what saturates (none where the equations were not solved), ``note`` says why, and the
        figures are missing.

    Examples
    --------
    >>> from smetric_model import Scenario, predict_at_rates
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> few, many = predict_at_rates(scenario, [3.0, 1000.0])  # requests/s
    >>> few["valid"], many["valid"], many["binding_resource"]
    (True, False, 'compute')
    """
    if demand is None:
        demand = demand_of(scenario, trace_of(scenario) if trace is None else trace)
    return [_row(scenario.replace(**{"workload.rate_rps": float(r)}), demand) for r in rates_rps]


def _row(scenario: Scenario, demand: Demand) -> Outcome:
    from smetric_model.outcome import unstable_outcome

    try:
        return predict(scenario, demand=demand)
    except (UnstableError, SolveError) as error:
        row = unstable_outcome(scenario, "predict", error)
        work = scenario.workload
        return row.replace(
            requests=row.number("arrival_rate_rps") * work.window_s,
            unservable_ratio=demand.unservable_ratio,
        )


def predicted_capacity(
    scenario: Scenario,
    criterion: Criterion = "attainment",
    trace: Trace | None = None,
    demand: Demand | None = None,
) -> PredictedCapacity:
    """Return the capacity of a scenario's cluster under its router.

    Parameters
    ----------
    scenario : Scenario
        The question; its rate is not looked at, ``slo.attainment`` is the wanted share.
    criterion : {"peak_goodput", "attainment"}
        Which capacity.
    trace : Trace, optional
        The workload, if it is at hand.
    demand : Demand, optional
        As in :func:`~smetric_model.analytic.predict.predict`.

    Returns
    -------
    PredictedCapacity

    Raises
    ------
    SpecError
        If the criterion is unknown, or the scenario cannot be resolved.

    Examples
    --------
    >>> from smetric_model import Scenario, predicted_capacity
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> found = predicted_capacity(scenario)
    >>> found.within_slo_ratio >= scenario.slo.attainment, found.rate_rps < found.saturation_rps
    (True, True)
    """
    if criterion not in ("peak_goodput", "attainment"):
        raise SpecError(f"criterion = {criterion!r}; one of peak_goodput, attainment")
    check_equal_instances(scenario, "capacity in closed form")
    if demand is None:
        demand = demand_of(scenario, trace_of(scenario) if trace is None else trace)
    search = _Search(scenario, demand)
    saturation, resource = _saturation(search)
    for load in _LOADS:
        search.goodput(float(load * saturation))
    if criterion == "peak_goodput":
        best = search.best()
        for _ in range(2):  # halve the distance to both neighbours
            stable = search.rates()
            place = stable.index(best)
            for other in stable[max(place - 1, 0)], stable[min(place + 1, len(stable) - 1)]:
                search.goodput(0.5 * (best + other))
            best = search.best()
        return _answer(criterion, search.row(best), best, saturation, resource)
    wanted = scenario.slo.attainment
    stable = search.rates()
    met = [rate for rate in stable if search.attains(rate, wanted)]
    if not met:
        idle = search.seen[stable[0]]["within_slo_ratio"]
        return PredictedCapacity(criterion, None, 0.0, idle, saturation, resource, None)
    low = met[-1]
    above = [rate for rate in stable if rate > low]
    high = above[0] if above else saturation
    while high - low > _NARROW * low:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if search.attains(middle, wanted) else (low, middle)
    return _answer(criterion, search.row(low), low, saturation, resource)


class _Search:
    """A scenario at the rates that a search asks for, each worked out once and no further."""

    def __init__(self, scenario: Scenario, demand: Demand):
        self.scenario, self.demand = scenario, demand
        self._cluster = cluster_form(scenario, demand)
        #: goodput by rate; nothing where there is no steady state
        self.seen: dict[float, dict[str, float]] = {}

    def saturates(self, rate_rps: float) -> UnstableError | SolveError | None:
        """Say why there is no steady state at a rate; None where there is one."""
        try:
            self._cluster.at(rate_rps * (1 - self.demand.unservable_ratio))
        except (UnstableError, SolveError) as error:
            return error
        return None

    def goodput(self, rate_rps: float) -> dict[str, float]:
        """Return the goodput at a rate; empty without a steady state."""
        if rate_rps not in self.seen:
            asked = self.scenario.replace(**{"workload.rate_rps": rate_rps})
            try:
                self.seen[rate_rps] = predict_goodput(asked, self.demand)
            except (UnstableError, SolveError):
                self.seen[rate_rps] = {}
        return self.seen[rate_rps]

    def attains(self, rate_rps: float, wanted: float) -> bool:
        """Whether a rate has a steady state with so large a share within SLO."""
        return self.goodput(rate_rps).get("within_slo_ratio", -1.0) >= wanted

    def rates(self) -> list[float]:
        """Return the rates with a steady state, ascending."""
        return sorted(rate for rate, found in self.seen.items() if found)

    def best(self) -> float:
        """Return the rate with most tokens within SLO."""
        return max(self.rates(), key=lambda rate: self.seen[rate]["total_within_slo_tps"])

    def row(self, rate_rps: float) -> Outcome:
        """Return the whole prediction at a rate."""
        return _row(self.scenario.replace(**{"workload.rate_rps": rate_rps}), self.demand)


def _saturation(search: _Search) -> tuple[float, str]:
    """Largest rate with a steady state, and what saturates above it."""
    asked = search.scenario.workload.rate_rps
    # a power of two: the bracket, and so the answer, does not depend on the rate asked for
    low, high = 0.0, 1.0 if asked == "trace" else 2.0 ** round(math.log2(asked))
    error = None
    for _ in range(_DOUBLINGS):
        error = search.saturates(high)
        if error is not None:
            break
        low, high = high, 2 * high
    else:
        return low, "nothing"
    if low == 0.0:
        for _ in range(_DOUBLINGS):
            low = 0.5 * (low or high)
            lower = search.saturates(low)
            if lower is None:
                break
            high, error = low, lower
        else:
            raise UnstableError(str(error), getattr(error, "resource", ""))
    while high - low > 2 * _NARROW * high:
        middle = 0.5 * (low + high)
        found = search.saturates(middle)
        low, high = (middle, high) if found is None else (low, middle)
        error = found or error
    return low, getattr(error, "resource", "")


def _answer(
    criterion: Criterion, row: Outcome, rate: float, saturation: float, resource: str
) -> PredictedCapacity:
    return PredictedCapacity(
        criterion,
        rate,
        row.number("total_within_slo_tps"),
        row.number("within_slo_ratio"),
        saturation,
        resource,
        row,
    )
