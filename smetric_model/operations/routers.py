r"""The price of several routers, and of loads that are old.

With R routers that take requests in turn, each counts only those it placed itself: of ``l``
requests in flight on an instance it sees a Binomial(l, 1/R) number, against a mean of the same
kind.  SMetric then takes a home for overloaded, and moves the session, with probability

.. math:: P_R = \sum_l \pi_h(l)\, P\big(\mathrm{Bin}(l, 1/R) > \mathrm{OVERLOAD}\cdot \bar l/R
   + \mathrm{floor}\big),

``π_h`` being the load that a follow-up finds at its home (the mean field's).  With few requests of
its own on each instance (:math:`\bar l/R` near 1 and below) one more than the others have is
overload.  A load that is ``a`` old misses what has been placed meanwhile: λa requests go to the
same least loaded instance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smetric_model.analytic.demand import Demand
from smetric_model.analytic.predict import cluster_form
from smetric_model.errors import SpecError
from smetric_model.operations.findings import (
    Figure,
    Finding,
    Progress,
    demand_for,
    silent,
    to_rate,
)
from smetric_model.planning.words import number, percent
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["own_view_overload", "router_replicas"]

_KEPT = {
    "within_slo_ratio": "within_slo_ratio",
    "total_within_slo_tps": "total_within_slo_tps",
    "migrated_overload_ratio": "migrated_overload_ratio",
    "local_ratio": "local_ratio",
    "ttft_p90_s": "ttft_p90_s",
    "imbalance_ratio": "imbalance_requests_60s_mean",
}
#: a loss of this share of the tokens within SLO, or as many more moves, counts
_MATTERS = 0.02


def own_view_overload(
    load_law: np.ndarray, mean_load: float, overload: float, floor: float, replicas: int
) -> float:
    """Return how often one of several routers takes a home for overloaded.

    Parameters
    ----------
    load_law : ndarray
        P(0), P(1), … requests in flight at the home as a follow-up finds it.
    mean_load : float
        Mean requests in flight of an instance.
    overload, floor : float
        OVERLOAD, and the load above the mean that never counts.
    replicas : int
        R; 1 sees everything.

    Returns
    -------
    float
        Probability.
    """
    from scipy.stats import binom

    law = np.asarray(load_law, dtype=float)
    own = mean_load / replicas
    limit = max(overload * own, own + floor)
    if math.isinf(limit):
        return 0.0
    loads = np.arange(law.size)
    seen = binom.sf(math.floor(limit + 1e-9), loads, 1 / replicas)
    return float(law @ seen)


def router_replicas(
    scenario: Scenario,
    replicas: Sequence[int] = (1, 2, 4, 8),
    ages_s: Sequence[float] = (0.0,),
    *,
    seeds: int = 3,
    trace: Trace | None = None,
    demand: Demand | None = None,
    progress: Progress = silent,
) -> Finding:
    """Return what several routers, and loads of some age, cost at the scenario's rate.

    Parameters
    ----------
    scenario : Scenario
        The question; ``router.load_source`` and ``router.hit_index`` are its own.
    replicas : sequence of int, default (1, 2, 4, 8)
        Numbers of routers; compared with one.
    ages_s : sequence of float, default (0,)
        Ages of the loads they see; compared with 0 [s].
    seeds : int, default 3
        Simulated seeds, the same for all; 0: closed form only.
    trace, demand : optional
        The workload, if it is at hand.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    Finding
        Table ``routers``: one line a number of routers and age, with the closed form's
        ``seen_overloaded_ratio`` (NaN for other policies than SMetric's) and, simulated, means
        over the seeds, ``lost_ratio`` of the tokens within SLO with its standard error.

    Raises
    ------
    SpecError
        If a value is not allowed, or the scenario cannot be resolved.
    UnstableError
        If there is no steady state at its rate.
    """
    check_equal_instances(scenario, "operations routers")
    started = time.perf_counter()
    for count in replicas:
        if count < 1:
            raise SpecError(f"replicas = {count!r}: whole numbers of at least 1 are needed")
    for age in ages_s:
        if not (math.isfinite(age) and age >= 0):
            raise SpecError(f"ages_s = {age!r}: finite numbers of at least 0 [s] are needed")
    if seeds < 0:
        raise SpecError(f"seeds = {seeds!r}: at least 0 is needed")
    demand = demand_for(scenario, trace, demand)
    asked = to_rate(scenario, demand)
    progress("loads in closed form")
    table, mean_load = _closed_form(asked, sorted({1, *replicas}), sorted({0.0, *ages_s}), demand)
    if seeds:
        table = _simulated(asked, table, seeds, trace, progress)
    return Finding(
        question="routers",
        title="Several routers, and old loads",
        figures=_figures(table, mean_load, seeds),
        words=_words(asked, table, mean_load, seeds),
        notes=_notes(asked),
        tables={"routers": table},
        elapsed_s=time.perf_counter() - started,
    )


def _closed_form(
    scenario: Scenario, replicas: list[int], ages_s: list[float], demand: Demand
) -> tuple[pd.DataFrame, float]:
    import pandas as pd

    rate = scenario.workload.rate_rps
    assert rate != "trace"
    form = cluster_form(scenario, demand)
    state = form.emptied().at(rate * (1 - demand.unservable_ratio))
    router = scenario.router
    scraped = router.load_source == "scraped"
    known = router.policy == "smetric" and not router.balances_tokens(scenario.cluster.serving)
    rows = []
    for age in ages_s:
        for count in replicas:
            seen = math.nan
            if known and age == 0:
                seen = own_view_overload(
                    state.routed.follow_up_load_law,
                    state.routed.mean_load,
                    router.overload,
                    router.overload_floor,
                    1 if scraped else count,
                )
            rows.append(
                {
                    "replicas": count,
                    "load_age_s": age,
                    "own_load": state.routed.mean_load / (1 if scraped else count),
                    "arrivals_within_age": rate * age,
                    "seen_overloaded_ratio": seen,
                }
            )
    return pd.DataFrame(rows), float(state.routed.mean_load)


def _simulated(
    scenario: Scenario, table: pd.DataFrame, seeds: int, trace: Trace | None, progress: Progress
) -> pd.DataFrame:
    import pandas as pd

    from smetric_model.simulate import simulate

    rows = []
    lines: list[Any] = list(table.itertuples())
    for line in lines:
        for seed in range(scenario.seed, scenario.seed + seeds):
            progress(f"{line.replicas} routers, loads {line.load_age_s:g} s old, seed {seed}")
            outcome = simulate(
                scenario.replace(
                    **{
                        "router.replicas": int(line.replicas),
                        "router.load_age_s": float(line.load_age_s),
                        "seed": seed,
                    }
                ),
                trace,
            )
            rows.append({"line": line.Index, "seed": seed, **_row(outcome)})
    runs = pd.DataFrame(rows)
    alone = table.index[(table["replicas"] == 1) & (table["load_age_s"] == 0)][0]
    good = runs.pivot_table(index="seed", columns="line", values="total_within_slo_tps")
    lost = 1 - good.div(good[alone], axis=0)
    means = runs.groupby("line")[list(_KEPT)].mean()
    errors = lost.std() / math.sqrt(seeds) if seeds > 1 else lost.mean() * math.nan
    return table.join(means).assign(lost_ratio=lost.mean(), lost_error_ratio=errors)


def _row(outcome: Outcome) -> dict[str, float]:
    return {name: outcome.number(column) for name, column in _KEPT.items()}


def _figures(table: pd.DataFrame, mean_load: float, seeds: int) -> tuple[Figure, ...]:
    figures = [
        Figure("mean_load", "requests in flight on an instance", mean_load, "", "closed form")
    ]
    lines: list[Any] = list(table.itertuples())
    for line in lines:
        key = f"{line.replicas}_routers" + (
            f"_{line.load_age_s:g}_s_old" if line.load_age_s else ""
        )
        what = f"{line.replicas} routers" if line.replicas > 1 else "one router"
        what += f", loads {line.load_age_s:g} s old" if line.load_age_s else ""
        if math.isfinite(line.seen_overloaded_ratio):
            figures.append(
                Figure(f"seen_overloaded_ratio_{key}", f"home seen as overloaded, {what}",
                       line.seen_overloaded_ratio, "", "closed form",
                       "loads as with one router: what the moves do to them is not in it")
            )  # fmt: skip
        if seeds:
            validity = f"{seeds} seeds"
            figures += [
                Figure(f"migrated_overload_ratio_{key}", f"moved for overload, {what}",
                       line.migrated_overload_ratio, "", "simulated", validity),
                Figure(f"within_slo_ratio_{key}", f"share within SLO, {what}",
                       line.within_slo_ratio, "", "simulated", validity),
                Figure(f"lost_ratio_{key}", f"tokens within SLO lost against one router, {what}",
                       line.lost_ratio, "", "simulated",
                       f"{validity}, ± {line.lost_error_ratio:.2g}"),
            ]  # fmt: skip
    return tuple(figures)


def _words(
    scenario: Scenario, table: pd.DataFrame, mean_load: float, seeds: int
) -> tuple[str, ...]:
    words = []
    several = table[table["load_age_s"] == 0]
    if scenario.router.load_source == "scraped":
        words.append("Routers that scrape the engines all see the same loads, however many.")
    elif several["seen_overloaded_ratio"].notna().all() and len(several) > 1:
        first, last = several.iloc[0], several.iloc[-1]
        words.append(
            f"An instance has {number(mean_load)} requests in flight: one router takes"
            f" {percent(first.seen_overloaded_ratio)} of the homes for overloaded,"
            f" {last.replicas:.0f} routers, each with {number(last.own_load)} of its own there,"
            f" {percent(last.seen_overloaded_ratio)}."
        )
    if not seeds:
        return tuple(words)
    for old in table["load_age_s"].unique().tolist():
        lines = table[table["load_age_s"] == old]
        sure = lines["lost_ratio"] > 2 * lines["lost_error_ratio"].fillna(0.0)
        worse = lines[sure & (lines["lost_ratio"] > _MATTERS)]
        age = f" with loads {old:g} s old" if old else ""
        if len(lines) == 1 and not old:
            continue  # what the others are compared with
        if worse.empty:
            most = lines.iloc[int(lines["lost_ratio"].to_numpy().argmax())]
            words.append(
                f"Up to {_routers(lines['replicas'].max())}{age} lose at most"
                f" {percent(max(most.lost_ratio, 0.0))} of the tokens within SLO"
                f" ({_routers(most.replicas)})."
            )
        else:
            start = worse.iloc[0]
            words.append(
                f"It matters{age} from {_routers(start.replicas)} on:"
                f" {percent(start.lost_ratio)} of the tokens within SLO lost,"
                f" {percent(start.migrated_overload_ratio)} of the follow-ups moved for overload."
            )
    return tuple(words)


def _routers(count: float) -> str:
    return "one router" if count == 1 else f"{count:.0f} routers"


def _notes(scenario: Scenario) -> tuple[str, ...]:
    if scenario.router.policy != "smetric":
        return (
            f"no closed form for policy {scenario.router.policy}: what several routers do to it is"
            " simulated only",
        )
    return ("at the scenario's rate: the nearer to saturation, the more a wrong choice costs",)
