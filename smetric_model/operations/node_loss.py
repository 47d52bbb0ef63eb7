"""N + 1: what a node's loss costs, and how many instances serve the rate without it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.analytic.demand import Demand, cluster_of
from smetric_model.analytic.predict import cluster_form
from smetric_model.errors import SpecError
from smetric_model.operations.after_event import recovered_s, with_and_without
from smetric_model.operations.filling import readable_ratio, solved
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
from smetric_model.searches import fewest

if TYPE_CHECKING:
    import pandas as pd

    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["lost_states", "node_loss"]

_MINUTE_S = 60.0
_FIRST_MINUTES = 5


def lost_states(scenario: Scenario) -> list[Scenario]:
    """Return the clusters that are left when a full node is lost.

    Parameters
    ----------
    scenario : Scenario
        The whole cluster.

    Returns
    -------
    list of Scenario
        One where colocated; the node's instances taken from the prefill or from the decode pool
        where disaggregated.  Nodes, and with them the global tier and the interfaces, are one
        fewer.  Empty where nothing would be left.
    """
    cluster = cluster_of(scenario)
    lost = min(cluster.instances_per_node, cluster.instances)
    left = cluster.instances - lost
    if scenario.cluster.serving == "colocated":
        return [scenario.replace(**{"cluster.instances": left})] if left > 0 else []
    pools = cluster.prefill_instances, cluster.decode_instances
    states = []
    for taken in ((lost, 0), (0, lost)):
        kept = [pool - part for pool, part in zip(pools, taken, strict=True)]
        if min(kept) > 0:
            states.append(
                scenario.replace(
                    **{
                        "cluster.instances": left,
                        "cluster.prefill_instances": kept[0],
                        "cluster.decode_instances": kept[1],
                    }
                )
            )
    return states if len(states) == 2 else []


def node_loss(
    scenario: Scenario,
    *,
    seeds: int = 0,
    horizon_s: float = 1800.0,
    trace: Trace | None = None,
    demand: Demand | None = None,
    progress: Progress = silent,
) -> Finding:
    """Return what a node's loss does at the scenario's rate, and the fewest instances to bear it.

    Parameters
    ----------
    scenario : Scenario
        The whole cluster; ``slo.attainment`` is the share that must hold.
    seeds : int, default 0
        Simulated seeds, for the scenario's instances and for the fewest that bear a loss; 0: closed
        form only.  Colocated serving only.
    horizon_s : float, default 1800
        How long after the loss is simulated [s].
    trace, demand : optional
        The workload, if it is at hand.
    progress : callable, optional
        Told what is worked out.

    Returns
    -------
    Finding
        Table ``simulated``: runs with and without the loss by ``age_s`` and ``size`` (instances).

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, or no number of instances is enough.

    Notes
    -----
    The lost state is the steady state of the cluster without the node.  The minutes before it is
    reached, in which requests of the node fail and the global tier fills anew, are simulated.
    """
    check_equal_instances(scenario, "operations node-loss")
    started = time.perf_counter()
    demand = demand_for(scenario, trace, demand)
    asked = to_rate(scenario, demand)
    if seeds and scenario.cluster.serving != "colocated":
        raise SpecError("seeds: failures with disaggregated serving are not simulated; 0 is needed")
    progress("share within SLO with and without the node")
    figures, sizes = _closed_figures(asked, demand, progress)
    tables: dict[str, pd.DataFrame] = {}
    if seeds:
        tables["simulated"] = _simulated(asked, sizes, seeds, horizon_s, trace, progress)
        figures += _simulated_figures(tables["simulated"], sizes, horizon_s, seeds)
    notes = [
        "an instance that fails everything is idle: until the routers know"
        f" (router.detection_s = {asked.router.detection_s:g} s) policies that look at load send it"
        " more than its share",
        "in the closed form of the lost state blocks are spread over the nodes that are left; in"
        " the simulation the links keep their shape",
    ]
    return Finding(
        question="node-loss",
        title="N + 1: a node is lost",
        figures=tuple(figures),
        words=_words(asked, figures),
        notes=tuple(notes),
        tables=tables,
        elapsed_s=time.perf_counter() - started,
    )


def _share(scenario: Scenario, demand: Demand) -> float:
    """Return the share within SLO at the scenario's rate; 0 where there is no steady state."""
    row = _steady(scenario, demand)
    return 0.0 if row is None else row.number("within_slo_ratio")


def _steady(scenario: Scenario, demand: Demand) -> Outcome | None:
    rate = scenario.workload.rate_rps
    assert rate != "trace"
    form = cluster_form(scenario, demand)
    # the scenario's own run may be too short for its tiers to fill: a lost node is for long
    return solved(form.emptied(), rate * (1 - demand.unservable_ratio))


def _fewest(scenario: Scenario, demand: Demand, bear_loss: bool, progress: Progress) -> int:
    from smetric_model.tuning.sizing import most_instances, with_instances

    wanted = scenario.slo.attainment
    least = 2 if scenario.cluster.serving == "disaggregated" else 1

    def enough(instances: int) -> bool:
        if instances < least:
            return False
        progress(f"{instances} instances, {'a node lost' if bear_loss else 'all there'}")
        whole = with_instances(scenario, instances)
        states = lost_states(whole) if bear_loss else [whole]
        return bool(states) and all(_share(one, demand) >= wanted for one in states)

    found = fewest(enough, scenario.cluster.instances, most_instances(scenario, demand))
    if found is None:
        raise SpecError(
            f"no number of instances serves {scenario.workload.rate_rps} requests/s with"
            f" {wanted:.0%} within the SLO"
        )
    return found


def _closed_figures(
    scenario: Scenario, demand: Demand, progress: Progress
) -> tuple[list[Figure], tuple[int, int]]:
    cluster = cluster_of(scenario)
    lost = min(cluster.instances_per_node, cluster.instances)
    whole = _steady(scenario, demand)
    whole_share = math.nan if whole is None else whole.number("within_slo_ratio")
    states = lost_states(scenario)
    lost_share = min((_share(one, demand) for one in states), default=0.0)
    needed = _fewest(scenario, demand, False, progress)
    bearing = _fewest(scenario, demand, True, progress)
    block = float(demand.trace.block_tokens or demand.instance.block_tokens)
    readable = readable_ratio(np.ceil(demand.prompt_tokens / block), cluster.nodes)
    figures = [
        Figure("instances", "instances of the cluster", cluster.instances, "", "given"),
        Figure("lost_instances", "instances of a node", lost, "", "given"),
        Figure("nodes", "nodes of the cluster", cluster.nodes, "", "given"),
        Figure("within_slo_ratio", "share within SLO, all there", whole_share, "", "closed form"),
        Figure("lost_within_slo_ratio", "share within SLO, a node lost", lost_share, "",
               "closed form", "steady state without the node"),
        Figure("readable_ratio", "of the global tier's prefixes readable after the loss", readable,
               "", "closed form", "blocks spread over the nodes one by one, no copies"),
        Figure("needed_instances", "fewest instances, all there", needed, "", "closed form"),
        Figure("bearing_instances", "fewest instances that bear a node's loss", bearing, "",
               "closed form"),
        Figure("spare_ratio", "instances more than without spare", bearing / needed - 1, "",
               "closed form"),
    ]  # fmt: skip
    if whole is not None:
        inflight = whole.number("inflight_requests_mean")
        if math.isfinite(inflight):
            rate = float(whole.number("arrival_rate_rps"))
            unseen = rate * scenario.router.detection_s
            share = lost / cluster.instances
            figures += [
                Figure("failed_requests_low", "requests that fail with the node, at least",
                       share * (inflight + unseen), "", "closed form",
                       "those in flight there, and the node's share of those that come unseen"),
                Figure("failed_requests_high", "requests that fail with the node, at most",
                       share * inflight + unseen, "", "bound",
                       "those in flight there, and all that come before the routers know"),
            ]  # fmt: skip
    return figures, (cluster.instances, bearing)


def _simulated(
    scenario: Scenario,
    sizes: tuple[int, int],
    seeds: int,
    horizon_s: float,
    trace: Trace | None,
    progress: Progress,
) -> pd.DataFrame:
    import pandas as pd

    parts = []
    for size in dict.fromkeys(sizes):
        whole = scenario.replace(
            **{"cluster.instances": size, "workload.window_s": horizon_s, "failures": None}
        )
        broken = whole.replace(failures=[{"node": 0, "at_s": whole.workload.warmup_s}])

        def tell(text: str, size: int = size) -> None:
            progress(f"{size} instances: {text}")

        curves = with_and_without(
            whole,
            broken,
            range(scenario.seed, scenario.seed + seeds),
            _MINUTE_S,
            trace=trace,
            progress=tell,
        )
        parts.append(curves.assign(size=size))
    return pd.concat(parts, ignore_index=True)


def _simulated_figures(
    table: pd.DataFrame, sizes: tuple[int, int], horizon_s: float, seeds: int
) -> list[Figure]:
    figures = []
    for name, size in zip(("", "bearing_"), sizes, strict=True):
        if name and sizes[0] == sizes[1]:
            break
        curves = table[table["size"] == size]
        runs = dict(list(curves.groupby("run")))
        after = runs["with"]
        early = after[after["age_s"] < _FIRST_MINUTES * _MINUTE_S]
        late = after[after["age_s"] >= 0.5 * horizon_s]
        what = f"{size} instances, {seeds} seeds"
        share = {
            f"simulated_{name}within_slo_ratio": ("share within SLO, all there", runs["without"]),
            f"simulated_{name}first_minutes_within_slo_ratio": (
                f"share within SLO, first {_FIRST_MINUTES} minutes after the loss",
                early,
            ),
            f"simulated_{name}lost_within_slo_ratio": ("share within SLO, later", late),
        }
        figures += [
            Figure(key, label, float(rows["within_slo"].sum() / rows["requests"].sum()), "",
                   "simulated", what)
            for key, (label, rows) in share.items()
        ]  # fmt: skip
        figures += [
            Figure(f"simulated_{name}failed_requests", "requests that fail with the node",
                   float(after["failed"].sum()) / seeds, "", "simulated", what),
            Figure(f"simulated_{name}reused_recovered_s", "reuse is back within 5% after",
                   recovered_s(curves, "reused_ratio", 0.05, _MINUTE_S), "s", "simulated", what),
        ]  # fmt: skip
    return figures


def _words(scenario: Scenario, figures: list[Figure]) -> tuple[str, ...]:
    found = {figure.name: figure.value for figure in figures}
    rate = number(float(scenario.workload.rate_rps))
    wanted = percent(scenario.slo.attainment, 0)
    holds = found["lost_within_slo_ratio"] >= scenario.slo.attainment
    lost = int(found["lost_instances"])
    words = [
        f"By the closed form {rate} requests/s with {wanted} within the SLO need"
        f" {found['needed_instances']:.0f} instances, and {found['bearing_instances']:.0f} to bear"
        f" a node's loss ({lost} instances): {percent(found['spare_ratio'], 0)} more.",
        f"The cluster's {found['instances']:.0f} instances {'bear' if holds else 'do not bear'} it:"
        f" {percent(found['within_slo_ratio'])} within SLO before,"
        f" {percent(found['lost_within_slo_ratio'])} without the node.",
        f"Of the prefixes in the global tier {percent(found['readable_ratio'])} can still be read:"
        " it fills anew.",
    ]
    if "simulated_lost_within_slo_ratio" in found:
        words.append(
            f"Simulated: {percent(found['simulated_within_slo_ratio'])} before,"
            f" {percent(found['simulated_first_minutes_within_slo_ratio'])} in the first"
            f" {_FIRST_MINUTES} minutes, {percent(found['simulated_lost_within_slo_ratio'])} later;"
            f" {number(found['simulated_failed_requests'])} requests fail."
        )
    if "simulated_bearing_lost_within_slo_ratio" in found:
        words.append(
            f"Simulated with {found['bearing_instances']:.0f}:"
            f" {percent(found['simulated_bearing_within_slo_ratio'])} before,"
            f" {percent(found['simulated_bearing_first_minutes_within_slo_ratio'])} in the first"
            f" {_FIRST_MINUTES} minutes,"
            f" {percent(found['simulated_bearing_lost_within_slo_ratio'])} later"
            + (
                "."
                if found["simulated_bearing_lost_within_slo_ratio"] >= scenario.slo.attainment
                else f", less than the {wanted} wanted: in simulation it takes more."
            )
        )
    return tuple(words)
