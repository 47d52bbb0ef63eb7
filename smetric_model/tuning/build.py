"""``tune``: from a scenario to its thresholds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.analytic.cluster_demand import cluster_demand, with_sessions
from smetric_model.analytic.coverage import notes_left_out
from smetric_model.analytic.demand import Demand, cluster_of, copies_of, demand_of, trace_of
from smetric_model.analytic.predict import cluster_form
from smetric_model.analytic.thresholds import LEAST_OVERLOAD, matching_hit_weight
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.planning.words import unservable_requests
from smetric_model.scenario_groups import check_equal_instances
from smetric_model.searches import FARTHEST, fewest, largest
from smetric_model.tuning.results import Needs, SloShares, Tuning
from smetric_model.tuning.search import (
    HIT_RATIOS,
    OVERLOADS,
    GridPoint,
    loss_outside_slo,
    middle,
    place,
    plateau,
    sweep,
    within_slo_tps,
)
from smetric_model.tuning.situation import Situation, situation_of
from smetric_model.tuning.sizing import most_instances, with_instances
from smetric_model.tuning.words import advice

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["closed_form", "needs_of", "tune"]

_ROUNDS = 5
_SETTLED = 0.02
_LARGEST_OVERLOAD = 64.0  # the closed form's fixed point does not go on above
_ABUNDANT = 1e15  # bytes, bytes/s: as good as without limit


def _silent(_text: str) -> None:
    pass


def servable_rps(scenario: Scenario, demand: Demand) -> float:
    """Return the servable requests per second that a scenario asks for [requests/s].

    Parameters
    ----------
    scenario : Scenario
        The question.
    demand : Demand
        Its workload.

    Raises
    ------
    SpecError
        If the rate is the trace's, and its sessions share no clock.
    """
    rate = scenario.workload.rate_rps
    if rate != "trace":
        return float(rate) * (1 - demand.unservable_ratio)
    own = cluster_demand(scenario, with_sessions(demand)).rate_rps
    if not math.isfinite(own):
        raise SpecError(
            f"workload.rate_rps = 'trace': the sessions of {demand.source} share no clock;"
            " give a number"
        )
    return float(own)


def _asked_rps(scenario: Scenario, demand: Demand) -> float:
    """Return the requests per second that a scenario asks for, unservable ones included."""
    rate = scenario.workload.rate_rps
    if rate != "trace":
        return float(rate)
    return servable_rps(scenario, demand) / (1 - demand.unservable_ratio)


def closed_form(
    scenario: Scenario, demand: Demand, overload: float = 2.0, hit_ratio: float = 0.5
) -> Situation:
    """Return what the thresholds weigh at the closed form's own social optimum.

    OVERLOAD* depends on the loads, and they on OVERLOAD: a fixed point, damped in the logarithm.

    Parameters
    ----------
    scenario : Scenario
        Its policy is replaced by SMetric.
    demand : Demand
        Its workload.
    overload, hit_ratio : float
        Where to start.

    Returns
    -------
    Situation

    Raises
    ------
    UnstableError
        If there is no steady state at the start.
    SpecError
        If the scenario asks for what is not modelled.
    """
    rate = servable_rps(scenario, demand)
    demand = with_sessions(demand)

    def at(over: float, hit: float) -> Situation:
        cluster = cluster_form(_with_pair(scenario, over, hit), demand)
        return situation_of(cluster, cluster.at(rate))

    found = at(overload, hit_ratio)
    for _ in range(_ROUNDS):
        over = min(max(found.social_overload, LEAST_OVERLOAD), _LARGEST_OVERLOAD)
        new = math.sqrt(overload * over), 0.5 * (hit_ratio + found.social_hit_ratio)
        settled = abs(math.log(new[0] / overload)) < _SETTLED and abs(new[1] - hit_ratio) < _SETTLED
        if settled:
            break
        try:
            found = at(*new)
        except (UnstableError, SolveError):
            break  # beyond the edge of stability: what was found before it stands
        overload, hit_ratio = new
    return found


def _with_pair(scenario: Scenario, overload: float, hit_ratio: float) -> Scenario:
    return scenario.replace(
        **{
            "router.policy": "smetric",
            "router.overload": overload,
            "router.hit_ratio": hit_ratio,
        }
    )


def tune(
    scenario: Scenario,
    trace: Trace | None = None,
    *,
    loss: float | None = 0.05,
    overloads: Sequence[float] = OVERLOADS,
    hit_ratios: Sequence[float] = HIT_RATIOS,
    demand: Demand | None = None,
    progress: Callable[[str], None] = _silent,
) -> Tuning:
    """Choose OVERLOAD and HIT_RATIO for a scenario, and say why.

    Parameters
    ----------
    scenario : Scenario
        The question; its policy is taken as SMetric, its thresholds do not matter.
    trace : Trace, optional
        The workload, if it is at hand; else it is loaded.
    loss : float or None, default 0.05
        Share that may be lost in the inverse questions (:class:`Needs`); None: they are not asked.
    overloads, hit_ratios : sequence of float
        Thresholds that are tried.
    demand : Demand, optional
        What the workload asks for, if it is at hand.
    progress : callable, optional
        Told what is being worked out.

    Returns
    -------
    Tuning

    Raises
    ------
    SpecError
        If the scenario asks for what is not modelled, or an argument is not allowed.
    UnstableError
        If the cluster has no steady state at this rate under SMetric.

    Examples
    --------
    >>> from smetric_model import Scenario, tune
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> result = tune(scenario, loss=None, overloads=[1.0, 2.0, 4.0], hit_ratios=[0.25, 0.5])
    >>> (result.overload, result.hit_ratio) in {(p.overload, p.hit_ratio) for p in result.grid}
    True
    >>> isinstance(result.advice[0], str)  # in words
    True
    """
    check_equal_instances(scenario, "tune")
    if not overloads or not hit_ratios:
        raise SpecError("overloads and hit_ratios: one value each is needed at least")
    if loss is not None and not 0 < loss < 1:
        raise SpecError(f"loss = {loss}: a share between 0 and 1 is needed")
    progress("reading the workload")
    if demand is None:
        demand = demand_of(scenario, trace_of(scenario) if trace is None else trace)
    demand = with_sessions(demand)
    rate = servable_rps(scenario, demand)
    progress("closed form")
    situation = closed_form(scenario, demand)
    grid = sweep(scenario, demand, overloads, hit_ratios, progress)
    result = Tuning(
        scenario_id=scenario.scenario_id,
        name=scenario.name,
        rate_rps=_asked_rps(scenario, demand),
        unservable_ratio=demand.unservable_ratio,
        overload=math.nan,
        hit_ratio=math.nan,
        matters=False,
        social_overload=situation.social_overload,
        social_hit_ratio=situation.social_hit_ratio,
        private_overload=situation.private_overload,
        private_hit_ratio=situation.private_hit_ratio,
        hit_weight=math.nan,
        situation=situation,
        at_advice=situation,
        grid=grid,
        plateau=plateau(grid),
        notes=(
            *_unservable(demand),
            *copies_of(scenario, demand),
            *notes_left_out(scenario, policy="smetric"),
        ),
    )
    chosen = _choice(result)
    weight = matching_hit_weight(
        chosen.overload,
        situation.home_hit_share,
        situation.receiver_load,
        situation.service.mean_load,
    )
    result = replace(
        result,
        overload=chosen.overload,
        hit_ratio=chosen.hit_ratio,
        matters=result.spread_ratio > result.plateau_ratio,
        hit_weight=float(weight),
    )
    asked = _with_pair(scenario, *result.advised)
    with contextlib.suppress(UnstableError, SolveError):
        cluster = cluster_form(asked, demand)
        result = replace(result, at_advice=situation_of(cluster, cluster.at(rate)))
    if loss is not None:
        result = replace(result, needs=needs_of(asked, demand, loss, progress))
    return replace(result, advice=advice(result))


def _unservable(demand: Demand) -> tuple[str, ...]:
    """Say how many requests cannot be served: one note, or none."""
    if not demand.unservable:
        return ()
    return (
        f"unservable: {unservable_requests(demand.unservable, demand.requests)}; they arrive with"
        " the rates and are left out of all other figures",
    )


def _choice(tuning: Tuning) -> GridPoint:
    """Return the middle of the plateau; where nothing is served, the pair nearest to theory."""
    if tuning.best.total_within_slo_tps > 0:
        return middle(tuning.grid, tuning.plateau_ratio, tuning.choice_ratio)
    wanted = place(tuning.social_overload, tuning.social_hit_ratio)

    def away(point: GridPoint) -> float:
        return math.dist(place(point.overload, point.hit_ratio), wanted)

    return min(tuning.grid, key=away)


def needs_of(
    scenario: Scenario,
    demand: Demand,
    loss: float,
    progress: Callable[[str], None] = _silent,
) -> Needs:
    """Answer the inverse questions for a scenario.

    Parameters
    ----------
    scenario : Scenario
        With the router that will be used.
    demand : Demand
        Its workload.
    loss : float
        Share that may be lost.
    progress : callable, optional
        Told what is being worked out.

    Returns
    -------
    Needs
    """
    rate = _asked_rps(scenario, demand)
    fixed = scenario.replace(**{"workload.rate_rps": rate})
    progress("largest rate")
    most = largest(
        lambda r: loss_outside_slo(scenario.replace(**{"workload.rate_rps": r}), demand) <= loss,
        rate,
    )
    progress("fewest instances")
    least = 2 if scenario.cluster.serving == "disaggregated" else 1
    instances = fewest(
        lambda n: n >= least and loss_outside_slo(with_instances(fixed, n), demand) <= loss,
        scenario.cluster.instances,
        most=most_instances(scenario, demand),
    )
    progress("least global tier")
    tier = _least_tier(fixed, demand, loss)
    progress("least link")
    link = _least_link(fixed, demand, loss)
    given = scenario.cluster.instances
    sizes = [fixed]
    if instances is not None and instances < given:
        sizes.append(with_instances(fixed, instances))
    slowest = fixed.cluster.nic_bytes_per_s / FARTHEST
    return Needs(
        loss,
        most,
        instances,
        tier,
        link,
        instances=given,
        nodes=cluster_of(fixed).nodes,
        nic_traffic_bytes_per_s=_nic_traffic(fixed, demand),
        slowest_nic_bytes_per_s=slowest,
        without_tier=_shares(sizes, demand, _with_tier, 0.0) if tier == 0 else (),
        with_slowest_nic=_shares(sizes, demand, _with_link, slowest) if link == 0 else (),
    )


def _with_tier(scenario: Scenario, size: float) -> Scenario:
    room = max(size, scenario.cluster.dram_bytes_per_node)
    return scenario.replace(
        **{"global_tier.bytes_per_node": size, "cluster.dram_bytes_per_node": room}
    )


def _with_link(scenario: Scenario, line: float) -> Scenario:
    return scenario.replace(**{"cluster.nic_bytes_per_s": line})


def _shares(
    scenarios: Sequence[Scenario],
    demand: Demand,
    with_value: Callable[[Scenario, float], Scenario],
    least: float,
) -> tuple[SloShares, ...]:
    """Return what each cluster has within SLO with as much as could be used and with the least."""

    def share(scenario: Scenario, value: float) -> float:
        return 1.0 - loss_outside_slo(with_value(scenario, value), demand)

    return tuple(
        SloShares(s.cluster.instances, share(s, _ABUNDANT), share(s, least)) for s in scenarios
    )


def _nic_traffic(scenario: Scenario, demand: Demand) -> float:
    """Mean bytes/s that a node fetches and writes over its interfaces for the global tier."""
    try:
        cluster = cluster_form(scenario, with_sessions(demand))
        state = cluster.at(servable_rps(scenario, demand))
    except (UnstableError, SolveError):
        return math.nan
    if not cluster.has_global:
        return 0.0
    prompt, links = cluster.work.local.prompt, cluster.links
    fetched = state.global_ratio * float(prompt.mean())
    written = float(np.maximum(prompt - cluster.work.within(state.reach_s), 0.0).mean())
    moved = (fetched + written) * links.bytes_per_token * links.remote
    return state.rate_rps * moved / links.nodes


def _least_tier(scenario: Scenario, demand: Demand, loss: float) -> float | None:
    def good(size: float) -> float:
        return within_slo_tps(_with_tier(scenario, size), demand)

    target = (1 - loss) * good(_ABUNDANT)
    if target <= 0:
        return None
    if good(0.0) >= target:
        return 0.0
    # sought from above: the largest inverse size that is still enough
    start = scenario.cluster.dram_bytes_per_node or 1e12
    most = largest(lambda inverse: good(1 / inverse) >= target, 1 / start)
    return None if most is None else 1 / most if math.isfinite(most) else 0.0


def _least_link(scenario: Scenario, demand: Demand, loss: float) -> float | None:
    if cluster_of(scenario).nodes == 1:
        return 0.0

    def good(line: float) -> float:
        return within_slo_tps(_with_link(scenario, line), demand)

    target = (1 - loss) * good(_ABUNDANT)
    if target <= 0:
        return None
    start = scenario.cluster.nic_bytes_per_s
    most = largest(lambda inverse: good(1 / inverse) >= target, 1 / start)
    return None if most is None else 1 / most if math.isfinite(most) else 0.0
