"""``plan``: the search over designs, from the closed form to the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.designing.candidates import candidates, rank
from smetric_model.designing.check import Check, check_capacity, check_instances
from smetric_model.designing.costs import pareto_front, token_costs
from smetric_model.designing.marginals import marginals
from smetric_model.designing.optimum import fewest_by_volume
from smetric_model.designing.prices import Prices, bill_of
from smetric_model.designing.results import DesignPlan, DesignResult, Goal, Optimum
from smetric_model.designing.runs import Row, Runs
from smetric_model.designing.sensitivity import Sensitivity, sensitivities
from smetric_model.designing.space import Design, DesignSpace, default_space
from smetric_model.designing.words import answers
from smetric_model.errors import SolveError, SpecError, UnstableError
from smetric_model.planning.build import plan as placement_plan
from smetric_model.scenario_groups import check_equal_instances
from smetric_model.sweeping.work import shared_trace
from smetric_model.tuning import Tuning, tune
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["plan"]

#: thresholds that are tried
_OVERLOADS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, float("inf"))
_HIT_RATIOS = (0.25, 0.5, 0.75)


def plan(
    scenario: Scenario,
    trace: Trace | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    space: DesignSpace | Mapping[str, Sequence[Any]] | None = None,
    prices: Prices | None = None,
    check: int = 5,
    seeds: int = 5,
    capacity: bool = False,
    budget_s: float = 600.0,
    folder: str | Path | None = None,
    jobs: int = 1,
) -> DesignPlan:
    """Plan a cluster: search its designs, check the best by simulation, say what is worth what.

    Parameters
    ----------
    scenario : Scenario
        The question.  ``workload.rate_rps`` is the rate to serve; ``"trace"`` means the trace's
        own, and none where its sessions share no clock.  With a rate, the fewest instances with
        ``slo.attainment`` of the requests within SLO are sought for each design; without one, the
        largest rate that each design's instances attain.
    trace : Trace, optional
        The workload, if it is at hand; then nothing is kept on disk.
    progress : callable, optional
        Told what is being worked out.
    space : DesignSpace or mapping of str to sequence, optional
        Designs to compare, values by scenario key; by default
        :func:`~smetric_model.designing.space.default_space`.
    prices : Prices, optional
        Of hardware; by default the unit is the GPU-hour.
    check : int, default 5
        Designs checked by simulation beside the given one; 0: the given one only; below 0: no
        simulation and no bound.
    seeds : int, default 5
        Simulations of each number of instances, at least 3.
    capacity : bool, default False
        Whether the instances are taken as given although there is a rate.
    budget_s : float, default 600
        After so many seconds no new round of simulations is begun.
    folder : path, optional
        Finished answers are kept here, and found again by the next call.
    jobs : int, default 1
        Processes of this machine.

    Returns
    -------
    DesignPlan

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, the LLM does not fit, or a key, value or price is wrong.
    TraceError
        If the trace cannot be read.

    Notes
    -----
    Method, equations and validity: ``docs/plan.md``.

    Examples
    --------
    >>> from smetric_model import Scenario, plan
    >>> scenario = Scenario.from_toml("data/scenarios/agents-small.toml")
    >>> found = plan(scenario, check=-1, space={"router.policy": ["smetric"]})  # closed form only
    >>> found.answers[0].question, found.answers[0].source
    ('How many H20 for 3 requests/s?', 'closed form')
    """
    check_equal_instances(scenario, "plan")
    started = time.monotonic()
    if check >= 0 and seeds < 3:
        raise SpecError(f"plan: seeds = {seeds}: at least 3 are needed for an interval")
    prices = prices or Prices()
    bill_of(scenario, prices)  # a GPU without a price is told before the work
    if space is not None and not isinstance(space, DesignSpace):
        space = DesignSpace({key: tuple(values) for key, values in space.items()})
    if space is not None:
        space.designs(scenario)  # wrong values are told before the work
    tell = progress or (lambda _text: None)
    placement = placement_plan(
        scenario, trace if trace is not None else shared_trace(scenario), tell
    )
    goal: Goal = "capacity" if capacity or placement.rate_rps is None else "instances"
    if space is not None and goal == "instances" and "cluster.instances" in space.axes:
        raise SpecError(
            "space: cluster.instances is what plan solves for; take it out, or ask for the"
            " capacity of given instances"
        )
    runs = Runs(trace, None if folder is None else Path(folder), jobs, tell)
    demand = runs.demand(scenario)
    given = runs.size({"as given": scenario}, goal == "capacity", None)[0]
    tell("thresholds")
    tuning = _tuned(_answered(scenario, given, goal), demand, tell)
    if space is None:
        thresholds = None if tuning is None else (tuning.overload, tuning.hit_ratio)
        space = default_space(scenario, thresholds)
    designs = space.designs(scenario)
    results = _sized(runs, designs, given, goal)
    results = [_billed(result, prices) for result in results]
    results = _with_front(results, goal)

    used: list[int] = []
    if check >= 0:
        used = [scenario.seed + k for k in range(seeds)]
        deadline = started + budget_s
        checks = _checked(runs, results, goal, check, used, deadline)
        results = [
            _billed(replace(result, check=checks.get(result.name)), prices) for result in results
        ]
    best = rank([r for r in results if check < 0 or _holds(r)], goal)
    optimum = None
    if check >= 0:
        optimum = _optimum(runs, results[0], goal)
    moves: tuple[Sensitivity, ...] = ()
    sized = _answered_design(results[0])
    if sized is not None:
        rate = placement.rate_rps if goal == "instances" else results[0].number("rate_rps")
        assert rate is not None
        since = time.monotonic()
        moves = sensitivities(sized, demand, rate, tell)
        runs.seconds["sensitivities"] = time.monotonic() - since
    result = DesignPlan(
        scenario=scenario,
        goal=goal,
        placement=placement,
        space=space,
        prices=prices,
        designs=tuple(results),
        best=best[0].name if best else "",
        tuning=tuning,
        marginals=marginals(results, goal, prices),
        optimum=optimum,
        sensitivities=moves,
        answers=(),
        findings=(),
        notes=(),
        seeds=tuple(used),
        elapsed_s=time.monotonic() - started,
        seconds=dict(runs.seconds),
        computed=runs.computed,
        found=runs.found,
    )
    return replace(result, answers=answers(result), notes=_notes(result))


def _answered(scenario: Scenario, row: Row, goal: Goal) -> Scenario:
    """Return the given scenario at its answer, where it has one."""
    if row.get("error") or row.get("instances") is None:
        return scenario
    if goal == "instances":
        return with_instances(scenario, int(row["instances"]))
    rate = row.get("rate_rps")
    return scenario if rate is None else scenario.replace(**{"workload.rate_rps": float(rate)})


def _answered_design(result: DesignResult) -> Scenario | None:
    """Return a design at the number of instances that stands for it."""
    if result.scenario is None or result.instances is None:
        return None
    return with_instances(result.scenario, result.instances)


def _tuned(scenario: Scenario, demand: Demand, tell: Callable[[str], None]) -> Tuning | None:
    try:
        return tune(
            scenario,
            loss=None,
            overloads=_OVERLOADS,
            hit_ratios=_HIT_RATIOS,
            demand=demand,
            progress=tell,
        )
    except (UnstableError, SolveError, SpecError):
        return None  # without a steady state there is nothing to choose


def _sized(runs: Runs, designs: Sequence[Design], given: Row, goal: Goal) -> list[DesignResult]:
    """Answer all designs in closed form, beginning near the given one's answer."""
    count = given.get("instances")
    start = int(count) if count is not None and goal == "instances" else None
    possible = {d.name: d.scenario for d in designs[1:] if d.scenario is not None}
    rows = dict(zip(possible, runs.size(possible, goal == "capacity", start), strict=True))
    rows[designs[0].name] = given
    results = []
    for design in designs:
        row = rows.get(design.name, {})
        error = design.error or str(row.get("error") or "")
        scenario = design.scenario
        if not error and (row.get("instances") is None or row.get("rate_rps") is None):
            error = str(row.get("note") or "no answer")
        if scenario is not None and not error:
            scenario = _answered(scenario, row, goal)
        results.append(
            DesignResult(design.name, design.changes, None if error else scenario, error, row)
        )
    return results


def _billed(result: DesignResult, prices: Prices) -> DesignResult:
    sized = _answered_design(result)
    if sized is None:
        return result
    try:
        bill = bill_of(sized, prices)
    except SpecError as error:
        return replace(result, scenario=None, error=str(error))
    return replace(result, bill=bill, costs=token_costs(bill, result.row))


def _with_front(results: Sequence[DesignResult], goal: Goal) -> list[DesignResult]:
    """Mark the designs that none is cheaper and quicker than (capacity: cheaper and larger).

    By the closed form alone, before any is simulated, so that all are judged alike.
    """
    points = []
    results = [r if r.bill is None else replace(r, closed_form_cost=r.bill.total) for r in results]
    for result in results:
        cost = result.closed_form_cost
        other = result.number("ttft_p90_s") if goal == "instances" else -result.number("rate_rps")
        points.append((cost, other))
    front = pareto_front(points)
    return [replace(r, on_front=on) for r, on in zip(results, front, strict=True)]


def _checked(
    runs: Runs,
    results: Sequence[DesignResult],
    goal: Goal,
    most: int,
    seeds: Sequence[int],
    deadline: float,
) -> dict[str, Check]:
    chosen = candidates(results, goal, most)
    designs = {r.name: r.scenario for r in chosen if r.scenario is not None}
    if goal == "capacity":
        return check_capacity(runs, designs, seeds)
    starts = {r.name: r.closed_form_instances or 1 for r in chosen}

    def ranged(checks: Mapping[str, Check]) -> list[str]:
        """Name the given design and the cheapest confirmed one."""
        done = [replace(r, check=checks.get(r.name)) for r in chosen]
        best = rank([r for r in done if _holds(r)], goal)
        names = [results[0].name, *(r.name for r in best[:1])]
        return [name for name in dict.fromkeys(names) if name in checks]

    return check_instances(runs, designs, starts, seeds, ranged, deadline)


def _holds(result: DesignResult) -> bool:
    return result.check is not None and result.check.instances is not None


def _optimum(runs: Runs, result: DesignResult, goal: Goal) -> Optimum | None:
    """Bound a design that was simulated; the fewest instances that the bound still allows."""
    sized = _answered_design(result)
    if sized is None or result.check is None or result.instances is None:
        return None
    row = runs.bound({result.name: sized}, beside_run=True)[0]
    if row.get("error") or not row.get("bound_within_slo_tps"):
        return None
    at = result.check.at
    wanted = float(row["simulated_within_slo_tps"]) / float(row["offered_tps"])
    if at is not None and at.total_tps > 0:
        wanted = at.total_within_slo_tps / at.total_tps
    multiple, binding = float(row["volume_load_multiple"]), str(row["binding"])
    fewest = volume = None
    exact = bool(row["exact"])
    if goal == "instances":
        fewest, exact = _fewest_by_bound(runs, sized, wanted, exact)
        if "tier_elasticity" in row:  # rows of older versions do not have it
            volume = fewest_by_volume(
                sized, multiple, float(row["tier_elasticity"]), float(row["nic_elasticity"])
            )
    return Optimum(
        design=result.name,
        instances=result.instances,
        goodput_share=float(row["simulated_within_slo_tps"]) / float(row["bound_within_slo_tps"]),
        wanted_ratio=wanted,
        fewest_instances=fewest,
        volume_load_multiple=multiple,
        binding=binding,
        exact=exact,
        fewest_by_volume=volume,
    )


def _fewest_by_bound(
    runs: Runs, scenario: Scenario, wanted: float, exact: bool
) -> tuple[int | None, bool]:
    """Fewest instances with which some schedule might serve a share of the tokens within SLO."""
    from smetric_model.searches import fewest_near

    proved = [exact]

    def possible(count: int) -> bool:
        name = f"{count} instances"
        row = runs.bound({name: with_instances(scenario, count)}, beside_run=False)[0]
        if row.get("error"):
            raise SolveError(str(row["error"]))
        proved.append(bool(row["exact"]))
        return float(row["bound_served_ratio"]) >= wanted

    least = 2 if scenario.cluster.serving == "disaggregated" else 1
    most = scenario.cluster.instances
    try:
        found = fewest_near(possible, max(round(0.6 * most), least), least, most)
    except SolveError:
        return None, False
    return found, all(proved)


def _notes(result: DesignPlan) -> tuple[str, ...]:
    notes = [
        "closed form: the router's mean field, steady state; against simulation its tokens within"
        " SLO differ by 1 % in the median and by up to 14 % in one of ten scenarios, most of all"
        " above four fifths of what a cluster bears (docs/agreement.md)",
    ]
    if not result.seeds:
        notes.append("nothing was simulated: the numbers of instances are the closed form's")
    if not result.prices.given:
        notes.append(
            "no prices were given: the unit is the GPU-hour, in which memory and links are free"
            " (--prices FILE with a table [prices])"
        )
    borrowed = sorted(
        {
            part
            for design in result.designs
            for part in str(design.row.get("note") or "").split("; ")
            if "carried over" in part
        }
    )
    notes += [f"{text}: expect tens of per cent" for text in borrowed]
    invalid = [r.name for r in result.designs if not r.error and r.row.get("valid") is False]
    if invalid:
        notes.append("outside what the closed form covers, as its note says: " + ", ".join(invalid))
    return tuple(notes)
