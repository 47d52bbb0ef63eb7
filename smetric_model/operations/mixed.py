r"""Clusters of unequal instances: what bounds them, and what routers make of them.

An instance of group g (a table ``[[groups]]`` of the scenario), at rate r, has s_g(r) of its
requests within SLO and l_g(r) in flight: both
as in a cluster of all N instances of its kind, so that pooling, tiers and links are those of the
whole.  With n_g instances in the group and a wanted share w, no router serves more than

.. math:: \max \sum_g n_g r_g \quad\text{s.t.}\quad \sum_g n_g r_g (s_g(r_g) - w) \ge 0
   \;\le\; \min_{\mu \ge 0} \sum_g n_g \max_r \big(r + \mu\, r (s_g(r) - w)\big),

the right side (Lagrange duality) being the bound.  Serving each group what it serves alone,
:math:`\sum_g n_g λ_g` with :math:`s_g(λ_g) = w`, is what a router that knows speeds can do.
Routers that give every instance as many requests reach :math:`N \min_g λ_g`, the slowest's pace.
Routers that balance requests in flight, as most policies here do, know no speed, but a fast
instance completes sooner and so gets more: at l in flight on each, group g takes the rate at which
:math:`l_g(r) = l` (Little's law), and the largest l counts at which the share within SLO of all
requests is w.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.cluster_capacity import predict_at_rates, predicted_capacity
from smetric_model.analytic.demand import demand_of, trace_of
from smetric_model.errors import SpecError
from smetric_model.operations.findings import Figure, Finding, Progress, silent
from smetric_model.planning.words import number, percent
from smetric_model.scenario_groups import kind_name

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["mixed_cluster"]

_LOADS = np.array([0.05, 0.2, 0.4, 0.55, 0.65, 0.75, 0.83, 0.9, 0.95, 0.98])  # of saturation
_POINTS = 401  # at which curves are looked at


@dataclass(frozen=True, eq=False)
class _Curve:
    """What an instance of a group does at growing rates; arrays of shape (points,)."""

    name: str
    instances: int
    rate_rps: NDArray[np.float64]
    load: NDArray[np.float64]  # requests in flight
    within_slo_ratio: NDArray[np.float64]
    attainment_rps: float
    carried_over: bool

    def at_load(self, load: float) -> tuple[float, float]:
        """Rate, and share within SLO, with so many in flight."""
        loads = np.append(0.0, np.maximum.accumulate(self.load))
        rate = np.interp(load, loads, np.append(0.0, self.rate_rps))
        return float(rate), self.share(float(rate))

    def share(self, rate_rps: float) -> float:
        """Share within SLO at a rate."""
        return float(np.interp(rate_rps, self.rate_rps, self.within_slo_ratio))


def mixed_cluster(
    scenario: Scenario,
    *,
    seeds: int = 0,
    trace: Trace | None = None,
    progress: Progress = silent,
) -> Finding:
    """Return the capacity of a cluster of unequal instances, between what bounds it.

    Parameters
    ----------
    scenario : Scenario
        With ``groups``; its rate is not looked at.
    seeds : int, default 0
        Simulated seeds of the scenario's own router at the rates that the closed form says of equal
        loads and of equal shares; 0: closed form only.
    trace : Trace, optional
        The workload, if it is at hand.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    Finding
        Table ``groups``: what each group serves alone; ``simulated``: by rate and seed the share
        within SLO and the share of the requests that each group got.

    Raises
    ------
    SpecError
        If there is no group, serving is disaggregated, or the LLM does not fit one of the GPUs.
    """
    started = time.perf_counter()
    if not scenario.groups:
        raise SpecError("groups: operations mixed needs at least one table of instances")
    if scenario.cluster.serving != "colocated":
        raise SpecError("cluster.serving = 'disaggregated': operations mixed answers 'colocated'")
    given = trace
    trace = trace_of(scenario) if trace is None else trace
    total = scenario.cluster.instances
    curves = []
    for alike in scenario.by_group():
        name = kind_name(alike)
        progress(f"instances of {name}")
        curves.append(_curve(alike, name, total, trace))
    wanted = scenario.slo.attainment
    alone = sum(curve.instances * curve.attainment_rps for curve in curves)
    slowest = min(curve.attainment_rps for curve in curves)
    balanced, load = _equal_load(curves, wanted)
    figures = [
        Figure("instances", "instances", total, "", "given"),
        Figure("bound_rps", "rate within SLO that no router exceeds",
               max(_bound(curves, wanted), alone), "requests/s", "bound",
               "of the closed form's curves"),
        Figure("sum_attainment_rps", "rate within SLO, each group what it serves alone", alone,
               "requests/s", "closed form", "a router that knows each instance's speed"),
        Figure("equal_load_attainment_rps", "rate within SLO, requests in flight balanced",
               balanced, "requests/s", "closed form",
               "what policies that balance requests come to"),
        Figure("equal_load", "requests in flight on each instance there", load, "", "closed form"),
        Figure("equal_share_attainment_rps", "rate within SLO, as many requests on each instance",
               total * slowest, "requests/s", "closed form", "round robin, random, hashing"),
    ]  # fmt: skip
    figures += _shares(curves, load, balanced)
    tables = {"groups": _table(curves)}
    words = _words(curves, figures)
    if seeds:
        rates = {"equal_load": balanced, "equal_share": total * slowest}
        runs = _simulated(scenario, rates, seeds, given, progress)
        tables["simulated"] = runs
        figures += _simulated_figures(scenario, curves, runs, seeds)
        words += _simulated_words(scenario, curves, figures)
    return Finding(
        question="mixed",
        title="Unequal instances",
        figures=tuple(figures),
        words=words,
        notes=_notes(curves, seeds),
        tables=tables,
        elapsed_s=time.perf_counter() - started,
    )


def _curve(scenario: Scenario, name: str, total: int, trace: Trace) -> _Curve:
    from smetric_model.analytic.efficiencies import get_efficiencies
    from smetric_model.tuning.sizing import with_instances

    alike = with_instances(scenario, total)
    demand = demand_of(alike, trace)
    capacity = predicted_capacity(alike, demand=demand)
    top = capacity.saturation_rps
    rates = np.unique(np.append(_LOADS * top, capacity.rate_rps or 0.5 * top))
    rows = predict_at_rates(alike, rates, demand=demand)
    there = np.array([math.isfinite(row.number("total_tps")) for row in rows])
    rows = [row for row, is_there in zip(rows, there, strict=True) if is_there]
    fitted = get_efficiencies(demand.instance.gpu.name, demand.instance.engine)
    return _Curve(
        name,
        scenario.cluster.instances,
        rates[there] / total,
        np.array([row.number("inflight_requests_mean") for row in rows]) / total,
        np.array([row.number("within_slo_ratio") for row in rows]),
        (capacity.rate_rps or 0.0) / total,
        fitted.carried_over,
    )


def _equal_load(curves: list[_Curve], wanted: float) -> tuple[float, float]:
    """Largest rate with the wanted share within SLO at equal loads, and that load."""
    counts = np.array([curve.instances for curve in curves])
    most = min(float(curve.load.max()) for curve in curves)
    best = (0.0, math.nan)
    for load in np.linspace(0.0, most, _POINTS)[1:]:
        rates, shares = np.array([curve.at_load(float(load)) for curve in curves]).T
        total = float(counts @ rates)
        if float((counts * rates) @ shares) >= wanted * total and total > best[0]:
            best = (total, float(load))
    return best


def _shares(curves: list[_Curve], load: float, total_rps: float) -> list[Figure]:
    """Return which share of the requests each kind gets at equal loads."""
    if not (total_rps > 0 and math.isfinite(load)):
        return []
    return [
        Figure(f"equal_load_share_{group}_ratio", f"of the requests on {curve.name}, requests in"
               " flight balanced", curve.instances * curve.at_load(load)[0] / total_rps, "",
               "closed form")
        for group, curve in enumerate(curves)
    ]  # fmt: skip


def _simulated(
    scenario: Scenario,
    rates_rps: dict[str, float],
    seeds: int,
    trace: Trace | None,
    progress: Progress,
) -> pd.DataFrame:
    """Return what the scenario's own router makes of the rates, a line each rate and seed."""
    import pandas as pd

    from smetric_model.simulate import simulate

    rows = []
    for at, rate in rates_rps.items():
        for seed in range(scenario.seed, scenario.seed + seeds if rate > 0 else scenario.seed):
            progress(f"simulating {rate:.3g} requests/s, seed {seed}")
            asked = scenario.replace(**{"workload.rate_rps": rate, "seed": seed})
            outcome = simulate(asked, trace)
            instances = outcome.instances
            assert instances is not None
            placed = instances.groupby("group")["requests"].sum()
            row = {"at": at, "rate_rps": rate, "seed": seed}
            row["within_slo_ratio"] = outcome.number("within_slo_ratio")
            for group, count in placed.items():
                row[f"share_ratio_{group}"] = count / placed.sum()
            rows.append(row)
    return pd.DataFrame(rows)


def _simulated_figures(
    scenario: Scenario, curves: list[_Curve], runs: pd.DataFrame, seeds: int
) -> list[Figure]:
    figures = []
    router = scenario.router.policy
    lines = dict(list(runs.groupby("at"))) if len(runs) else {}
    for at, words in (("equal_load", "balanced"), ("equal_share", "equal")):
        if at not in lines:
            continue
        rate = float(lines[at]["rate_rps"].iloc[0])
        shares = lines[at]["within_slo_ratio"]
        half = 2 * float(shares.std()) / math.sqrt(seeds) if seeds > 1 else math.nan
        validity = f"{seeds} seeds" + (f", ± {percent(half)}" if math.isfinite(half) else "")
        figures.append(
            Figure(f"simulated_{at}_within_slo_ratio", f"share within SLO under {router} at the"
                   f" {words} routers' {number(rate)} requests/s", float(shares.mean()), "",
                   "simulated", validity)
        )  # fmt: skip
    if "equal_load" in lines:
        figures += [
            Figure(f"simulated_share_{k}_ratio", f"of the requests on {curve.name} under {router}",
                   float(lines["equal_load"][f"share_ratio_{k}"].mean()), "", "simulated",
                   f"{seeds} seeds")
            for k, curve in enumerate(curves)
        ]  # fmt: skip
    return figures


def _simulated_words(
    scenario: Scenario, curves: list[_Curve], figures: list[Figure]
) -> tuple[str, ...]:
    value = {figure.name: figure.value for figure in figures}
    wanted, router = percent(scenario.slo.attainment, 0), scenario.router.policy
    parts = []
    for at in ("equal_load", "equal_share"):
        share = value.get(f"simulated_{at}_within_slo_ratio")
        if share is not None:
            rate = number(value[f"{at}_attainment_rps"])
            parts.append(f"{percent(share)} within SLO at {rate} requests/s")
    if not parts:
        return ()
    text = f"Simulated under {router}: {', '.join(parts)} ({wanted} wanted)"
    if "simulated_share_0_ratio" in value and "equal_load_share_0_ratio" in value:
        text += (
            f"; {percent(value['simulated_share_0_ratio'], 0)} of the requests go to"
            f" {curves[0].name}, by the closed form"
            f" {percent(value['equal_load_share_0_ratio'], 0)}"
        )
    return (f"{text}.",)


def _bound(curves: list[_Curve], wanted: float) -> float:
    """Least of the dual's values, each of which no router exceeds."""
    from scipy.optimize import minimize_scalar

    tables = []
    for curve in curves:
        rates = np.linspace(0.0, float(curve.rate_rps.max()), _POINTS)
        spare = rates * (np.array([curve.share(float(rate)) for rate in rates]) - wanted)
        tables.append((curve.instances, rates, spare))

    def dual(log_price: float) -> float:
        price = math.exp(log_price)
        return sum(count * float((rates + price * spare).max()) for count, rates, spare in tables)

    found = minimize_scalar(dual, bounds=(-5.0, 12.0), method="bounded")
    return float(found.fun)


def _words(curves: list[_Curve], figures: list[Figure]) -> tuple[str, ...]:
    value = {figure.name: figure.value for figure in figures}
    what = " and ".join(f"{curve.instances} x {curve.name}" for curve in curves)
    alone = value["sum_attainment_rps"]
    balanced, equal = value["equal_load_attainment_rps"], value["equal_share_attainment_rps"]
    part = f" ({balanced / alone:.0%})" if alone > 0 else ""
    return (
        f"{what}: a router that knows each instance's speed serves {number(alone)} requests/s"
        f" within the SLO, none more than {number(value['bound_rps'])}.",
        f"One that balances requests in flight comes to {number(balanced)}{part}, one that gives"
        f" every instance as many to {number(equal)}: the slowest sets the pace.",
    )


def _notes(curves: list[_Curve], seeds: int) -> tuple[str, ...]:
    notes = (
        [] if seeds else ["closed forms and a bound only: --seeds N simulates the router at them"]
    )
    notes += [
        "each instance has the hits and the peers of a cluster of its own kind: sessions that move"
        " between kinds are not in it",
    ]
    for curve in curves:
        if curve.attainment_rps == 0:
            notes.append(f"{curve.name} alone serves no rate within the SLO")
        if curve.carried_over:
            notes.append(
                f"no fit for {curve.name}: efficiencies of another GPU carried over, expect"
                " tens of per cent"
            )
    return tuple(notes)


def _table(curves: list[_Curve]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {
            "group": [curve.name for curve in curves],
            "instances": [curve.instances for curve in curves],
            "attainment_rps": [curve.instances * curve.attainment_rps for curve in curves],
            "attainment_rps_per_instance": [curve.attainment_rps for curve in curves],
        }
    )
