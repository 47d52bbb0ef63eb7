"""Cold-cache recovery: how long after a restart or a scale-out until the cluster is as before."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from smetric_model.analytic.demand import Demand, cluster_of
from smetric_model.errors import SpecError
from smetric_model.operations.after_event import recovered_s, with_and_without
from smetric_model.operations.filling import (
    EVENTS,
    ColdCaches,
    Event,
    admitted_rps,
    cold_caches,
    full_load_after_s,
)
from smetric_model.operations.findings import (
    Figure,
    Finding,
    Progress,
    demand_for,
    silent,
    to_rate,
)
from smetric_model.planning.words import duration, number, percent
from smetric_model.scenario_groups import check_equal_instances

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["cold_recovery", "event_scenarios"]

_EVENT_WORDS = {
    "instance": "an instance restarts",
    "node": "a node restarts",
    "store": "the global tier restarts",
    "cluster": "everything restarts",
    "scale-out": "an instance is added",
}
_SHARES = ("reused_ratio", "within_slo_ratio")
_SHARE_WORDS = {"reused_ratio": "reuse", "within_slo_ratio": "share within SLO"}
_AFTER_S = (0.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # when the admissible rate is asked for
_LEAST_BINS = 20
_QUASI_STATIC = "quasi-static; the backlog of the first minutes is not in it"


def cold_recovery(
    scenario: Scenario,
    event: Event = "node",
    tolerance_ratio: float = 0.05,
    *,
    seeds: int = 0,
    bin_s: float = 30.0,
    trace: Trace | None = None,
    demand: Demand | None = None,
    progress: Progress = silent,
) -> Finding:
    """Return how long it takes until hits and the share within SLO are back.

    Parameters
    ----------
    scenario : Scenario
        The cluster once it is whole (with the instance that is added).
    event : {"instance", "node", "store", "cluster", "scale-out"}
        What starts cold.
    tolerance_ratio : float, default 0.05
        How far below the steady state counts as back, ÷ the steady state; in (0, 1).
    seeds : int, default 0
        Simulated seeds, ``scenario.seed`` and those that follow; 0: closed form only.
    bin_s : float, default 30
        Width of a bin of the simulated curves [s].
    trace, demand : optional
        The workload, if it is at hand.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    Finding
        Tables ``closed_form`` (``age_s`` and ratios), ``admitted`` (where the event leaves nothing
        of the global tier), and ``simulated`` (runs with and without the event by ``age_s``).

    Raises
    ------
    SpecError
        If a value is not allowed, or there is no steady state at the scenario's rate.
    UnstableError
        Likewise, naming what saturates.
    """
    check_equal_instances(scenario, "operations recovery")
    started = time.perf_counter()
    if event not in EVENTS:
        raise SpecError(f"event = {event!r}: one of {', '.join(EVENTS)} is needed")
    if not 0 < tolerance_ratio < 1:
        raise SpecError(f"tolerance_ratio = {tolerance_ratio!r}: a number in (0, 1) is needed")
    if not (math.isfinite(bin_s) and bin_s > 0):
        raise SpecError(f"bin_s = {bin_s!r}: a finite number above 0 [s] is needed")
    demand = demand_for(scenario, trace, demand)
    asked = to_rate(scenario, demand)
    caches = cold_caches(asked, event, demand, progress)
    figures = _closed_figures(asked, caches, demand, tolerance_ratio, bin_s)
    tables: dict[str, pd.DataFrame] = {"closed_form": caches.curve}
    if event in ("store", "cluster", "node"):
        tables["admitted"] = _admitted(asked, event, demand, caches, progress)
        figures += _admitted_figures(tables["admitted"])
    if seeds:
        longest = float(caches.curve["age_s"].iloc[-1])
        curves = _simulated(asked, event, longest, seeds, bin_s, trace, progress)
        tables["simulated"] = curves
        figures += _simulated_figures(event, curves, tolerance_ratio, bin_s, seeds)
    return Finding(
        question=f"recovery-{event}",
        title=f"Recovery after {_EVENT_WORDS[event]}",
        figures=tuple(figures),
        words=_words(event, caches, figures, tolerance_ratio),
        notes=_notes(event),
        tables=tables,
        elapsed_s=time.perf_counter() - started,
    )


def _closed_figures(
    scenario: Scenario, caches: ColdCaches, demand: Demand, tolerance: float, bin_s: float
) -> list[Figure]:
    figures = [
        Figure("local_retention_s", "the local tiers keep KV for", caches.retention_s, "s",
               "closed form"),
        Figure("instance_recovered_s", "an emptied instance's hits are back after",
               caches.recovered_s("instance_local_ratio", tolerance), "s", "closed form"),
    ]  # fmt: skip
    if caches.event == "scale-out":
        requests_s, sessions_s = full_load_after_s(scenario, demand)
        validity = "new sessions go to the least loaded instance"
        figures += [
            Figure("full_load_after_s", "the added instance serves its share of requests after",
                   requests_s, "s", "closed form", validity),
            Figure("full_home_after_s", "it is the home of its share of the sessions after",
                   sessions_s, "s", "closed form", validity),
        ]  # fmt: skip
        return figures
    figures.append(
        Figure("global_reach_s", "the global tier keeps KV for", caches.reach_s, "s", "closed form")
    )
    figures += [
        Figure(f"{column.removesuffix('_ratio')}_recovered_s", f"{words} of the cluster back after",
               caches.recovered_s(column, tolerance), "s", "closed form", _QUASI_STATIC)
        for column, words in _SHARE_WORDS.items()
    ]  # fmt: skip
    figures += [
        Figure(f"{column.removesuffix('_ratio')}_at_once_ratio",
               f"{words} of the cluster in the first {bin_s:g} s",
               caches.mean_over(column, bin_s), "", "closed form", _QUASI_STATIC)
        for column, words in _SHARE_WORDS.items()
    ]  # fmt: skip
    return figures


def _admitted(
    scenario: Scenario, event: Event, demand: Demand, caches: ColdCaches, progress: Progress
) -> pd.DataFrame:
    """Return the largest rate within SLO at some ages, as everything or the store is cold."""
    import pandas as pd

    rows = []
    end = float(caches.curve["age_s"].iloc[-1])
    for age in (*(a for a in _AFTER_S if a < end), math.inf):
        progress(f"{event}: rate that can be admitted after {age:g} s")
        local = age if event == "cluster" else math.inf
        rate = admitted_rps(scenario, demand, max(local, 1.0), max(age, 1.0))
        rows.append({"age_s": age, "admitted_rps": math.nan if rate is None else rate})
    return pd.DataFrame(rows)


def _admitted_figures(table: pd.DataFrame) -> list[Figure]:
    return [
        Figure("admitted_at_once_rps", "rate that can be admitted at first",
               float(table["admitted_rps"].iloc[0]), "requests/s", "closed form", _QUASI_STATIC),
        Figure("admitted_steady_rps", "rate that can be admitted once caches are full",
               float(table["admitted_rps"].iloc[-1]), "requests/s", "closed form"),
    ]  # fmt: skip


def event_scenarios(
    scenario: Scenario, event: Event, horizon_s: float, restart_s: float = 5.0
) -> tuple[Scenario, Scenario]:
    """Return what is simulated: without and with an event that is over when the window begins.

    Parameters
    ----------
    scenario : Scenario
        The whole cluster.
    event : {"instance", "node", "store", "cluster", "scale-out"}
        What starts cold.
    horizon_s : float
        Length of the window [s].
    restart_s : float, default 5
        How long a restart takes: what fails is back, cold, when the window begins [s].

    Returns
    -------
    without, with : Scenario
        ``cluster`` starts cold, without warm-up; ``scale-out`` adds the last instance.
    """
    warmup = max(scenario.workload.warmup_s, restart_s)
    without = scenario.replace(
        **{
            "workload.window_s": horizon_s,
            "workload.warmup_s": warmup,
            "router.detection_s": 0.0,
            "failures": None,
        }
    )
    at = {"at_s": warmup - restart_s, "down_s": restart_s}
    shape = cluster_of(scenario)
    if event == "cluster":
        return without, without.replace(**{"workload.warmup_s": 0.0})
    failures: list[dict[str, Any]] = {
        "instance": [{"instance": 0, **at}],
        "node": [{"node": 0, **at}],
        "store": [{"store": node, **at} for node in range(shape.nodes)],
        "scale-out": [{"instance": shape.instances - 1, "at_s": 0.0, "down_s": warmup}],
    }[event]
    return without, without.replace(failures=failures)


def _simulated(
    scenario: Scenario,
    event: Event,
    longest_s: float,
    seeds: int,
    bin_s: float,
    trace: Trace | None,
    progress: Progress,
) -> pd.DataFrame:
    horizon = bin_s * max(math.ceil(longest_s / bin_s), _LEAST_BINS)
    without, after = event_scenarios(scenario, event, horizon)
    shape = cluster_of(scenario)
    seen = range(scenario.seed, scenario.seed + seeds)
    emptied = {
        "instance": (0,),
        "node": tuple(range(min(shape.instances_per_node, shape.instances))),
        "scale-out": (shape.instances - 1,),
    }.get(event, ())
    return with_and_without(
        without, after, seen, bin_s, emptied=emptied, trace=trace, progress=progress
    )


def _simulated_figures(
    event: Event, curves: pd.DataFrame, tolerance: float, bin_s: float, seeds: int
) -> list[Figure]:
    everyone = curves[curves["instances"] == "all"]
    validity = f"{seeds} seeds, bins of {bin_s:g} s"
    figures = []
    if event != "scale-out":
        first = everyone[(everyone["run"] == "with") & (everyone["bin"] == 0)]
        for column, words in _SHARE_WORDS.items():
            name = column.removesuffix("_ratio")
            figures += [
                Figure(f"simulated_{name}_recovered_s", f"{words} of the cluster back after",
                       recovered_s(everyone, column, tolerance, bin_s), "s", "simulated",
                       validity),
                Figure(f"simulated_{name}_at_once_ratio", f"{words} of the cluster in the first"
                       f" {bin_s:g} s", float(first[column].iloc[0]), "", "simulated", validity),
            ]  # fmt: skip
    those = curves[curves["instances"] == "emptied"]
    if len(those):
        figures.append(
            Figure("simulated_instance_recovered_s", "emptied instances' hits are back after",
                   recovered_s(those, "local_ratio", tolerance, bin_s), "s", "simulated", validity)
        )  # fmt: skip
    if event == "scale-out":
        runs = [those[those["run"] == run].set_index("bin") for run in ("with", "without")]
        share = runs[0]["requests"] / runs[1]["requests"]
        back = share.rolling(3, min_periods=1).mean()
        reached = back.index[back >= 1 - 2 * tolerance]
        figures.append(
            Figure("simulated_full_load_after_s", "the added instance serves its share of requests"
                   " after", float(reached[0]) * bin_s if len(reached) else math.inf, "s",
                   "simulated", validity)
        )  # fmt: skip
    return figures


def _words(
    event: Event, caches: ColdCaches, figures: list[Figure], tolerance: float
) -> tuple[str, ...]:
    found = {figure.name: figure.value for figure in figures}
    near = percent(tolerance, 0)
    if event == "scale-out":
        words = [
            f"An added instance serves its share of the requests {_after(found, 'full_load')}, is"
            f" the home of its share of the sessions {_after(found, 'full_home')}, and has hits"
            f" within {near} of the others' after {duration(found['instance_recovered_s'])};"
            " nobody's KV is lost.",
        ]
        if "simulated_full_load_after_s" in found:
            words.append(
                f"Simulated: its share of the requests {_after(found, 'simulated_full_load')}, hits"
                f" after {duration(found['simulated_instance_recovered_s'])} (at first it serves"
                " first turns, which hit less)."
            )
        return tuple(words)
    reuse = caches.steady["local_ratio"] + caches.steady["global_ratio"]
    words = [
        f"When {_EVENT_WORDS[event]}, reuse falls from {percent(reuse)} to"
        f" {percent(found['reused_at_once_ratio'])} of prompt tokens and"
        f" {_back(found['reused_recovered_s'], near)}; the share within SLO falls from"
        f" {percent(caches.steady['within_slo_ratio'])} to"
        f" {percent(found['within_slo_at_once_ratio'])} and"
        f" {_back(found['within_slo_recovered_s'], near)}.",
    ]
    if "simulated_reused_recovered_s" in found:
        words.append(
            f"Simulated: reuse {_back(found['simulated_reused_recovered_s'], near)}; the share"
            f" within SLO {_back(found['simulated_within_slo_recovered_s'], near)}."
        )
    if "admitted_at_once_rps" in found:
        at_once = found["admitted_at_once_rps"]
        words.append(
            ("At first no rate is within the SLO" if math.isnan(at_once)
             else f"At first {number(at_once)} requests/s are within the SLO")
            + f", {number(found['admitted_steady_rps'])} once caches are full."
        )  # fmt: skip
    return tuple(words)


def _after(found: dict[str, float], name: str) -> str:
    seconds = found[f"{name}_after_s"]
    return "at once" if seconds == 0 else f"after {duration(seconds)}"


def _back(after_s: float, near: str) -> str:
    """Say when something is back within a tolerance; 0: it was never further off."""
    if after_s == 0:
        return f"stays within {near}"
    if math.isinf(after_s):
        return f"is not back within {near} in this time"
    return f"is back within {near} after {duration(after_s)}"


def _notes(event: Event) -> tuple[str, ...]:
    notes = ["rates and loads of the closed form are those of a steady state with such caches"]
    if event in ("node", "store", "cluster"):
        notes.append(
            "blocks of the global tier are spread over the nodes one by one, without copies: what"
            " is left of a prefix after a node's loss ends at its first lost block"
        )
    if event in ("node",):
        notes.append(
            "the admissible rates are those of a cold global tier with warm local ones: an upper"
            " limit for a node"
        )
    return tuple(notes)
