"""Capacity of a cluster under its router in closed form, and rows over many rates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from smetric_model.analytic.demand import Demand, demand_of, trace_of
from smetric_model.analytic.predict import predict
from smetric_model.errors import SolveError, SpecError, UnstableError

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


def _steady(row: Outcome) -> bool:
    """Whether a row has figures; they may be invalid for what the scenario has beside them."""
    return not math.isnan(row.number("total_tps"))


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
    if demand is None:
        demand = demand_of(scenario, trace_of(scenario) if trace is None else trace)
    seen: dict[float, Outcome] = {}

    def at(rate: float) -> Outcome:
        if rate not in seen:
            seen[rate] = _row(scenario.replace(**{"workload.rate_rps": rate}), demand)
        return seen[rate]

    saturation, resource = _saturation(at)
    for load in _LOADS:
        at(float(load * saturation))
    stable = sorted(rate for rate, row in seen.items() if _steady(row))
    if criterion == "peak_goodput":
        best = max(stable, key=lambda rate: at(rate).number("total_within_slo_tps"))
        for _ in range(2):  # halve the distance to both neighbours
            place = stable.index(best)
            around = stable[max(place - 1, 0)], stable[min(place + 1, len(stable) - 1)]
            for other in around:
                at(0.5 * (best + other))
            stable = sorted(rate for rate, row in seen.items() if _steady(row))
            best = max(stable, key=lambda rate: at(rate).number("total_within_slo_tps"))
        return _answer(criterion, best, at(best), saturation, resource)
    wanted = scenario.slo.attainment
    met = [rate for rate in stable if at(rate).number("within_slo_ratio") >= wanted]
    if not met:
        idle = at(stable[0]).number("within_slo_ratio")
        return PredictedCapacity(criterion, None, 0.0, idle, saturation, resource, None)
    low = met[-1]
    above = [rate for rate in stable if rate > low]
    high = above[0] if above else saturation
    while high - low > _NARROW * low and above:
        middle = 0.5 * (low + high)
        row = at(middle)
        enough = _steady(row) and row.number("within_slo_ratio") >= wanted
        low, high = (middle, high) if enough else (low, middle)
    return _answer(criterion, low, at(low), saturation, resource)


def _saturation(at: object) -> tuple[float, str]:
    """Largest rate with a steady state, and what saturates above it."""
    assert callable(at)
    low, high = 0.0, 1.0
    for _ in range(_DOUBLINGS):
        if not _steady(at(high)):
            break
        low, high = high, 2 * high
    else:
        return low, "nothing"
    if low == 0.0:
        for _ in range(_DOUBLINGS):
            low = 0.5 * (low or high)
            if _steady(at(low)):
                break
            high = low
        else:
            raise UnstableError(str(at(low)["note"]), str(at(low)["binding_resource"]))
    while high - low > 2 * _NARROW * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _steady(at(middle)) else (low, middle)
    return low, str(at(high)["binding_resource"])


def _answer(
    criterion: Criterion, rate: float, row: Outcome, saturation: float, resource: str
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
