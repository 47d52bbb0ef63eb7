"""``capacity``: a scenario's rate swept for any verb, until the criterion no longer holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from smetric_model.analytic.cluster_capacity import Criterion, predicted_capacity
from smetric_model.capacity.results import Capacity
from smetric_model.capacity.samples import Answer, Samples, standard_error
from smetric_model.capacity.search import attained_rate, best_rate, plateau
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.outcome import outcomes_frame

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["CRITERIA", "VERBS", "capacity"]

VERBS = ("predict", "simulate", "bound")
CRITERIA: tuple[Criterion, ...] = ("attainment", "peak_goodput")

#: where a search begins if there is no closed form: a busy instance of today
_START_RPS_PER_INSTANCE = 0.15


def capacity(
    scenario: Scenario,
    verb: str | Answer = "predict",
    criterion: Criterion = "attainment",
    *,
    seeds: int | None = None,
    tolerance: float = 0.03,
    start_rps: float | None = None,
    trace: Trace | None = None,
    demand: Demand | None = None,
    progress: Callable[[str], None] | None = None,
) -> Capacity:
    """Return the most that a scenario's cluster serves within its SLO, over all rates.

    Parameters
    ----------
    scenario : Scenario
        The question; its rate is not looked at, ``slo.attainment`` is the wanted share.
    verb : {"predict", "simulate", "bound"} or callable
        Who answers at each rate.  A callable takes a scenario and returns an Outcome: for
        measurements, or for ``simulate`` with choices of one's own.
    criterion : {"attainment", "peak_goodput"}
        Largest rate with the wanted share of the servable requests within SLO; or the rate with
        the most tokens/s within SLO, whatever share misses it.  ``bound`` knows the first only:
        at a high rate the clairvoyant optimum serves whatever is cheapest, without a peak.
    seeds : int, optional
        How many: ``scenario.seed`` and those that follow, the same at every rate.  Default 3, for
        ``bound`` 1.  The closed form has no use for them.
    tolerance : float, default 0.03
        Relative distance of the last two rates.  A search takes about 8 rates for ``attainment``,
        13 for ``peak_goodput``.
    start_rps : float, optional
        Where the search begins; by default the closed form's answer [requests/s].
    trace : Trace, optional
        The workload, if it is at hand (before it is brought to a rate).
    demand : Demand, optional
        For the closed form, as in :func:`~smetric_model.analytic.predict.predict`.
    progress : callable, optional
        Told what is being done.

    Returns
    -------
    Capacity

    Raises
    ------
    SpecError
        If verb, criterion, seeds or tolerance is not allowed, or the scenario cannot be resolved.
    SolveError
        If every rate is good enough.
    TraceError
        If the trace cannot be read.

    Notes
    -----
    ``docs/capacity.md``: the search, its noise, and how far the verbs are apart.

    Examples
    --------
    >>> from smetric_model import Scenario, capacity
    >>> found = capacity(Scenario.from_toml("data/scenarios/agents-small.toml"))  # closed form
    >>> found.rate_rps > 3, found.resource
    (True, 'compute')
    """
    if not callable(verb) and verb not in VERBS:
        raise SpecError(f"capacity: verb = {verb!r}; one of {', '.join(VERBS)}, or a function")
    if criterion not in CRITERIA:
        raise SpecError(f"capacity: criterion = {criterion!r}; one of {', '.join(CRITERIA)}")
    if seeds is not None and seeds < 1:
        raise SpecError(f"capacity: seeds = {seeds!r}: at least 1")
    if not 0 < tolerance < 1:
        raise SpecError(f"capacity: tolerance = {tolerance!r}: above 0 and below 1 is needed")
    if start_rps is not None and not 0 < start_rps < math.inf:
        raise SpecError(f"capacity: start_rps = {start_rps!r}: a finite number above 0 is needed")
    if verb == "bound" and criterion == "peak_goodput":
        raise SpecError(
            "capacity: criterion = 'peak_goodput' has no bound: the more arrives, the cheaper are"
            " the requests that a clairvoyant optimum serves; take 'attainment', or bound() at a"
            " rate"
        )
    tell = progress or (lambda _text: None)
    if verb == "predict":
        return _closed_form(scenario, criterion, trace, demand, tell)
    name = verb if isinstance(verb, str) else getattr(verb, "__name__", type(verb).__name__)
    if trace is None and scenario.workload.preset is None and not callable(verb):
        from smetric_model.analytic.demand import trace_of

        tell("reading the workload")
        trace = trace_of(scenario)  # once for all rates
    answer: Answer
    if callable(verb):
        answer = verb
    elif verb == "simulate":
        answer = _simulated(trace)
    else:
        answer = _bounded(trace)
    count = (1 if verb == "bound" else 3) if seeds is None else seeds
    samples = Samples(scenario, answer, tuple(scenario.seed + k for k in range(count)), tell)
    if start_rps is None:
        tell("closed form, for where to begin")
        start_rps = _start_rps(scenario, criterion, trace, demand)
    if criterion == "attainment":
        return _attainment(samples, name, scenario.slo.attainment, start_rps, tolerance)
    return _peak(samples, name, start_rps, tolerance)


def _closed_form(
    scenario: Scenario,
    criterion: Criterion,
    trace: Trace | None,
    demand: Demand | None,
    tell: Callable[[str], None],
) -> Capacity:
    tell("closed form")
    found = predicted_capacity(scenario, criterion, trace, demand)
    outcomes = () if found.outcome is None else (found.outcome,)
    frame = outcomes_frame(outcomes)
    frame.insert(0, "rate_rps", [found.rate_rps] * len(outcomes))
    rate = math.nan if found.rate_rps is None else found.rate_rps
    return Capacity(
        verb="predict",
        criterion=criterion,
        rate_rps=found.rate_rps,
        lower_rps=rate,
        upper_rps=rate,
        noise_rps=0.0,
        total_within_slo_tps=found.total_within_slo_tps,
        within_slo_ratio=found.within_slo_ratio,
        noise_within_slo_tps=0.0,
        resource=found.resource,
        seeds=(scenario.seed,),
        rows=frame,
        outcomes=outcomes,
    )


def _simulated(trace: Trace | None) -> Answer:
    from smetric_model.simulate.run import simulate

    return lambda scenario: simulate(scenario, trace)


def _bounded(trace: Trace | None) -> Answer:
    from smetric_model.bound.attainment import attainment_bound

    return lambda scenario: attainment_bound(scenario, trace)


def _start_rps(
    scenario: Scenario, criterion: Criterion, trace: Trace | None, demand: Demand | None
) -> float:
    """Rate at which the search begins: the closed form's answer, or a guess [requests/s]."""
    try:
        found = predicted_capacity(scenario, criterion, trace, demand)
    except (SpecError, UnstableError, SolveError):  # what it does not model may be simulated
        return _START_RPS_PER_INSTANCE * scenario.cluster.instances
    return found.rate_rps or 0.5 * found.saturation_rps


def _attainment(
    samples: Samples, verb: str, wanted: float, start_rps: float, tolerance: float
) -> Capacity:
    found = attained_rate(samples, wanted, start_rps, tolerance)
    rate = samples.rates[0] if found.low_rps is None else found.low_rps
    return _answer(
        samples,
        verb,
        "attainment",
        rate,
        found.low_rps is not None,
        (math.nan if found.low_rps is None else rate, found.high_rps),
        found.noise_rps,
    )


def _peak(samples: Samples, verb: str, start_rps: float, tolerance: float) -> Capacity:
    rate = best_rate(samples, start_rps, tolerance)
    return _answer(samples, verb, "peak_goodput", rate, True, plateau(samples, rate), math.nan)


def _answer(
    samples: Samples,
    verb: str,
    criterion: Criterion,
    rate: float,
    reached: bool,
    around: tuple[float, float],
    noise_rps: float,
) -> Capacity:
    goodput = samples.values(rate, "total_within_slo_tps")
    outcomes = samples.at(rate)
    return Capacity(
        verb=verb,
        criterion=criterion,
        rate_rps=rate if reached else None,
        lower_rps=around[0],
        upper_rps=around[1],
        noise_rps=noise_rps,
        total_within_slo_tps=float(goodput.mean()) if reached else 0.0,
        within_slo_ratio=samples.mean(rate, "within_slo_ratio"),
        noise_within_slo_tps=standard_error(goodput) if reached else math.nan,
        resource=str(outcomes[0]["binding_resource"]),
        seeds=samples.seeds,
        rows=samples.frame(),
        outcomes=outcomes if reached else (),
    )
