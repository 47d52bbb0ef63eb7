"""Peak of a day and replicas over time: what a changing rate needs, hour by hour."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.errors import SpecError
from smetric_model.operations.autoscaling import Autoscaler, Schedule, instances_at_rates, schedule
from smetric_model.operations.findings import (
    Figure,
    Finding,
    Progress,
    demand_for,
    gpu_hours,
    silent,
)
from smetric_model.operations.rate_curve import DAY_S, RateCurve
from smetric_model.planning.words import duration, number, percent
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["replicas_over_time"]

_QUASI_STATIC = "quasi-static: each interval as if its rate had always been"


def replicas_over_time(
    scenario: Scenario,
    curve: RateCurve,
    autoscaler: Autoscaler | None = None,
    *,
    simulated: Trace | None = None,
    trace: Trace | None = None,
    demand: Demand | None = None,
    progress: Progress = silent,
) -> Finding:
    """Return how many instances a changing rate needs over time, and what they cost.

    Parameters
    ----------
    scenario : Scenario
        LLM, engines, tiers, router and SLO; ``slo.attainment`` is the wanted share.  Its rate and
        its number of instances are not looked at.
    curve : RateCurve
        The rate of requests by interval.
    autoscaler : Autoscaler, optional
        How instances come and go; by default 5 minutes to start and 5 minutes kept.
    simulated : Trace, optional
        A workload with this curve: it is simulated on the instances that an autoscaler which knows
        the curve has ready, and on the peak's.
    trace : Trace, optional
        The scenario's workload, if it is at hand.
    demand : Demand, optional
        What it asks for, if it is at hand.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    Finding
        Table ``replicas``: one line a step with ``start_s``, ``rate_rps`` and the instances
        ``needed``, ``ideal``, ``paid`` (knows the day ahead), ``reactive_paid``,
        ``reactive_ready``.  Table ``simulated``: one line an interval with ``within_slo_ratio``
        and ``failed`` requests on ``ready`` instances, and ``static_within_slo_ratio`` on the
        peak's.

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, or no number of instances serves the peak.

    Notes
    -----
    Equations: :mod:`smetric_model.operations.autoscaling`, ``docs/operations.md``.
    """
    check_equal_instances(scenario, "operations replicas")
    started = time.perf_counter()
    scaler = autoscaler or Autoscaler()
    demand = demand_for(scenario, trace, demand)
    needed = instances_at_rates(scenario, curve.rate_rps, demand, progress)
    if (needed < 0).any():
        worst = float(curve.rate_rps[needed < 0].min())
        raise SpecError(
            f"no number of instances serves {worst:.4g} requests/s with"
            f" {scenario.slo.attainment:.0%} within the SLO: a looser SLO, or a faster engine, is"
            " needed"
        )
    plan = schedule(curve, needed, scaler)
    figures, words = _figures(scenario, curve, plan, scaler), _words(scenario, curve, plan, scaler)
    tables = {"replicas": _table(curve, plan)}
    if simulated is not None:
        tables["simulated"] = _simulated(scenario, curve, plan, scaler, simulated, progress)
        figures += _simulated_figures(tables["simulated"])
        words += _simulated_words(scenario, figures)
    return Finding(
        question="replicas",
        title="Peak of the day, and instances over time",
        figures=figures,
        words=words,
        notes=_notes(curve, scaler),
        tables=tables,
        elapsed_s=time.perf_counter() - started,
    )


def _hours_a_day(scenario: Scenario, plan: Schedule, instances: np.ndarray) -> float:
    """GPU-hours per day [h]."""
    seconds = float(instances.sum()) * plan.step_s
    return gpu_hours(scenario, seconds * DAY_S / (plan.step_s * instances.size))


def _figures(
    scenario: Scenario, curve: RateCurve, plan: Schedule, scaler: Autoscaler
) -> tuple[Figure, ...]:
    peak = int(plan.ideal.max())
    static = np.full(plan.ideal.size, peak)
    rates = "counted" if curve.counted else ""
    return (
        Figure("mean_rate_rps", "mean rate", curve.mean_rps, "requests/s", "given", rates),
        Figure("peak_rate_rps", "rate of the busiest interval", curve.peak_rps, "requests/s",
               "given", rates),
        Figure("peak_to_mean_rate_ratio", "peak ÷ mean of the rate", curve.peak_to_mean_ratio, "",
               "given", rates),
        Figure("peak_instances", "instances at the peak", peak, "", "closed form", _QUASI_STATIC),
        Figure("least_instances", "instances at the quietest time", int(plan.ideal.min()), "",
               "closed form", _QUASI_STATIC),
        Figure("mean_instances", "instances on average, ideal autoscaler",
               float(plan.ideal.mean()), "", "closed form", _QUASI_STATIC),
        Figure("peak_to_mean_instances_ratio", "peak ÷ mean of the instances",
               peak / float(plan.ideal.mean()), "", "closed form", _QUASI_STATIC),
        Figure("static_gpu_hours_per_day", "GPU-hours a day, always the peak's instances",
               _hours_a_day(scenario, plan, static), "h", "closed form"),
        Figure("ideal_gpu_hours_per_day", "GPU-hours a day, instances that come and go at once",
               _hours_a_day(scenario, plan, plan.ideal), "h", "closed form",
               "no autoscaler does better at this share within SLO"),
        Figure("forecast_gpu_hours_per_day", "GPU-hours a day, autoscaler that knows the day ahead",
               _hours_a_day(scenario, plan, plan.paid), "h", "closed form",
               f"start-up {duration(scaler.startup_s)}, warm after {duration(scaler.warm_s)},"
               f" kept {duration(scaler.keep_s)}"),
        Figure("reactive_gpu_hours_per_day",
               "GPU-hours a day, autoscaler that sees the present only",
               _hours_a_day(scenario, plan, plan.reactive_paid), "h", "closed form"),
        Figure("reactive_short_ratio", "share of the day in which that one has too few ready",
               plan.short_ratio, "", "closed form"),
    )  # fmt: skip


def _words(
    scenario: Scenario, curve: RateCurve, plan: Schedule, scaler: Autoscaler
) -> tuple[str, ...]:
    peak, least = int(plan.ideal.max()), int(plan.ideal.min())
    static = _hours_a_day(scenario, plan, np.full(plan.ideal.size, peak))
    ideal = _hours_a_day(scenario, plan, plan.ideal)
    ahead = _hours_a_day(scenario, plan, plan.paid)
    if peak == least:
        return (f"The rate needs {peak} instances all the time: an autoscaler saves nothing.",)
    when = float(np.argmax(plan.ideal)) * plan.step_s
    reactive = (
        f"One that only sees the present has too few ready for {percent(plan.short_ratio)} of the"
        f" time (start-up and warming take {duration(scaler.lead_s)})."
    )
    return (
        f"The peak needs {peak} instances (first at {when / 3600:.1f} h), the quietest time"
        f" {least}, the mean is {number(float(plan.ideal.mean()))}: peak ÷ mean"
        f" {number(peak / float(plan.ideal.mean()))} for a rate of"
        f" {number(curve.peak_to_mean_ratio)}.",
        f"Ideal autoscaling takes {number(ideal)} GPU-hours a day against {number(static)} for the"
        f" peak's instances all day: {percent(1 - ideal / static)} less.",
        f"Ordering ahead of time so that none is ever missing takes {number(ahead)}"
        f" ({percent(ahead / ideal - 1)} above ideal).",
        reactive,
    )


def _simulated(
    scenario: Scenario,
    curve: RateCurve,
    plan: Schedule,
    scaler: Autoscaler,
    trace: Trace,
    progress: Progress,
) -> pd.DataFrame:
    from smetric_model.operations.day import simulated_day

    ready = plan.ready(scaler)
    peak = np.full(ready.size, int(ready.max()))
    tables = []
    for text, instances in (("as scheduled", ready), ("the peak's instances", peak)):

        def tell(what: str, text: str = text) -> None:
            progress(f"{what}, {text}")

        # the last of the time for which it is kept though not needed, it finishes what it has
        day = simulated_day(
            scenario, curve, instances, plan.step_s, trace, tell, drain_s=scaler.keep_s
        )
        tables.append(day)
    parts = ready.size // curve.rate_rps.size
    return tables[0].assign(
        ready=ready.reshape(-1, parts).min(axis=1),
        static_within_slo_ratio=tables[1]["within_slo_ratio"],
    )


def _simulated_figures(table: pd.DataFrame) -> tuple[Figure, ...]:
    rest = table.iloc[1:] if len(table) > 1 else table
    weight = rest["requests"].to_numpy(dtype=float)
    figures = []
    for name, what in (("", "instances as scheduled"), ("static_", "the peak's instances")):
        share = rest[f"{name}within_slo_ratio"].fillna(1.0).to_numpy()
        figures += [
            Figure(f"simulated_{name}within_slo_ratio", f"share within SLO, {what}",
                   float(share @ weight / weight.sum()), "", "simulated",
                   "the first interval, in which caches are cold, left out"),
            Figure(f"simulated_{name}least_within_slo_ratio", f"in the worst interval, {what}",
                   float(share.min()), "", "simulated"),
        ]  # fmt: skip
    failed = Figure(
        "simulated_failed_requests", "requests lost with instances that go, after all tries",
        float(table["failed"].sum()), "", "simulated",
        "an instance gets nothing new while it is kept; what it has not finished then is lost",
    )  # fmt: skip
    return (*figures, failed)


def _simulated_words(scenario: Scenario, figures: tuple[Figure, ...]) -> tuple[str, ...]:
    found = {figure.name: figure.value for figure in figures}
    return (
        f"Simulated on instances as scheduled: {percent(found['simulated_within_slo_ratio'])}"
        f" within the SLO ({percent(scenario.slo.attainment, 0)} wanted),"
        f" {percent(found['simulated_least_within_slo_ratio'])} in the worst interval; on the"
        f" peak's instances all day {percent(found['simulated_static_within_slo_ratio'])}.",
    )


def _notes(curve: RateCurve, scaler: Autoscaler) -> tuple[str, ...]:
    notes = [
        f"rate: {curve.source}, in intervals of {duration(curve.interval_s)}",
        "with instances come nodes, and with them global tier and interfaces; what a node that"
        " leaves takes of the global tier with it is not in these figures",
    ]
    if curve.counted:
        fewest = float(curve.rate_rps[curve.rate_rps > 0].min()) * curve.interval_s
        notes.append(
            f"counted rates are as noisy as their counts: {fewest:.0f} requests in the quietest"
            f" interval, ±{percent(1 / math.sqrt(max(fewest, 1)), 0)}"
        )
    if not curve.periodic:
        notes.append(
            f"the curve covers {duration(curve.length_s)}, no whole days: GPU-hours a day take it"
            " as typical"
        )
    if scaler.warm_s == 0:
        notes.append("caches of new instances count as warm at once")
    return tuple(notes)


def _table(curve: RateCurve, plan: Schedule) -> pd.DataFrame:
    import pandas as pd

    parts = plan.needed.size // curve.rate_rps.size
    return pd.DataFrame(
        {
            "start_s": np.arange(plan.needed.size) * plan.step_s,
            "rate_rps": np.repeat(curve.rate_rps, parts),
            "needed": plan.needed,
            "ideal": plan.ideal,
            "paid": plan.paid,
            "reactive_paid": plan.reactive_paid,
            "reactive_ready": plan.reactive_ready,
        }
    )
