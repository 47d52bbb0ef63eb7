"""Parts of a plan that are no rows of a table, each worked out once and then found on disk."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from smetric_model.analytic.demand import trace_of
from smetric_model.designing.results import DesignResult
from smetric_model.designing.sensitivity import (
    Limit,
    Looser,
    Sensitivity,
    looser_slo,
    sensitivities,
)
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.operations.findings import Finding, from_record, to_record
from smetric_model.operations.overview import operational_findings
from smetric_model.planning.build import no_rate_note, rate_of, without_placement
from smetric_model.planning.build import plan as placement_plan
from smetric_model.planning.results import Plan
from smetric_model.sweeping.kept import from_plain, to_plain
from smetric_model.sweeping.work import shared_trace
from smetric_model.tuning import Tuning, tune
from smetric_model.tuning.sizing import most_instances, with_instances

if TYPE_CHECKING:
    from collections.abc import Callable

    from smetric_model.designing.runs import Runs
    from smetric_model.scenario import Scenario

__all__ = [
    "operations_of",
    "placement_of",
    "thresholds",
    "what_could_be",
    "what_limits",
    "workload_rate",
]

#: thresholds that are tried
_OVERLOADS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, float("inf"))
_HIT_RATIOS = (0.25, 0.5, 0.75)


def workload_rate(runs: Runs, scenario: Scenario) -> tuple[float | None, str]:
    """Return the rate to serve, and why there is none.

    Parameters
    ----------
    runs : Runs
    scenario : Scenario

    Returns
    -------
    rate_rps : float or None
        Requests of the cluster; None where neither the scenario nor its trace has one.
    note : str
        Then why; else empty.
    """
    if scenario.workload.rate_rps != "trace":
        return float(scenario.workload.rate_rps), ""

    def work() -> list[Any]:
        runs.tell("reuse of the trace")
        demand = runs.demand(scenario)
        rate = rate_of(scenario, demand)
        return [rate, no_rate_note(demand.trace) if rate is None else ""]

    rate, note = runs.keep("workload", scenario, workload_rate, work, list, list)
    return rate, note


def thresholds(runs: Runs, scenario: Scenario) -> Tuning | None:
    """Return OVERLOAD and HIT_RATIO for a scenario; None without a steady state.

    Parameters
    ----------
    runs : Runs
    scenario : Scenario
        At its answer.
    """
    options: dict[str, Any] = {"loss": None, "overloads": _OVERLOADS, "hit_ratios": _HIT_RATIOS}

    def work() -> Tuning | None:
        runs.tell("thresholds")
        try:
            demand = runs.demand(scenario)
            return tune(scenario, demand=demand, progress=runs.tell, **options)
        except (UnstableError, SolveError, SpecError):
            return None  # there is nothing to choose

    tuning: Tuning | None = runs.keep(
        "thresholds",
        scenario,
        partial(tune, **options),
        work,
        to_plain,
        lambda values: None if values is None else from_plain(Tuning, values),
    )
    return tuning


def what_limits(
    runs: Runs, design: DesignResult, rate_rps: float | None
) -> tuple[Limit | None, tuple[Sensitivity, ...]]:
    """Return what ends a design's capacity, and what moves its number of instances.

    Parameters
    ----------
    runs : Runs
    design : DesignResult
    rate_rps : float or None
        To serve; None for what the design attains [requests/s].
    """
    sized = design.sized
    rate = design.number("rate_rps") if rate_rps is None else rate_rps
    if sized is None:
        return None, ()
    return runs.keep(
        "sensitivities",
        sized,
        partial(sensitivities, rate_rps=rate),
        lambda: sensitivities(sized, runs.demand(sized), rate, runs.tell),
        lambda found: [to_plain(part) for part in found],
        lambda values: (
            None if values[0] is None else from_plain(Limit, values[0]),
            from_plain(tuple[Sensitivity, ...], values[1]),
        ),
    )


def what_could_be(runs: Runs, scenario: Scenario) -> Looser:
    """Return the SLO that could be met, for a scenario that no number of instances serves.

    Parameters
    ----------
    runs : Runs
    scenario : Scenario
    """

    def work() -> Looser:
        runs.tell("which SLO could be met")
        demand = runs.demand(scenario)
        return looser_slo(with_instances(scenario, most_instances(scenario, demand)), demand)

    looser: Looser = runs.keep(
        "sensitivities", scenario, looser_slo, work, to_plain, partial(from_plain, Looser)
    )
    return looser


def placement_of(runs: Runs, scenario: Scenario, design: DesignResult) -> Plan:
    """Return capacity under perfect placement, tiers and steps of a design at its answer.

    Parameters
    ----------
    runs : Runs
    scenario : Scenario
        The question: looked at where the design has no answer.
    design : DesignResult

    Returns
    -------
    Plan
        Of two pools :func:`~smetric_model.planning.build.without_placement`.
    """
    asked = design.sized or scenario
    pools = asked.cluster.serving == "disaggregated"

    def work() -> Plan:
        runs.tell("what reuse is worth")
        trace = runs.trace if runs.trace is not None else shared_trace(asked)
        trace = trace_of(asked) if trace is None else trace
        if pools:
            return without_placement(asked, trace, runs.demand(asked))
        return placement_plan(asked, trace, runs.tell, runs.demand(asked))

    plan: Plan = runs.keep(
        "reuse and tiers",
        asked,
        without_placement if pools else placement_plan,
        work,
        lambda plan: to_plain(plan, leave_out=("scenario",)),
        lambda values: from_plain(Plan, values, {"scenario": asked}),
    )
    return plan


def operations_of(
    runs: Runs, scenario: Scenario, design: DesignResult, seeds: int | None
) -> tuple[Finding, ...]:
    """Return what happens in operation to a design at its answer.

    Parameters
    ----------
    runs : Runs
    scenario : Scenario
        The question: looked at where the design has no answer.
    design : DesignResult
    seeds : int or None
        Simulated; 0: closed form only; None: nothing is asked.
    """
    if seeds is None:
        return ()
    asked = design.sized or scenario

    def keep(title: str, work: Callable[[], Finding]) -> Finding:
        question = partial(_operation, title=title, seeds=seeds)
        return runs.keep("operations", asked, question, work, to_record, from_record)

    trace = runs.trace
    return tuple(
        operational_findings(asked, seeds=seeds, trace=trace, progress=runs.tell, keep=keep)
    )


def _operation(_scenario: Scenario, title: str, seeds: int) -> None:
    """Stand for an operational question, where its answer is looked for."""
