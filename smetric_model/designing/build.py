"""``plan``: the search over designs, from the closed form to the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smetric_model.analytic.demand import instance_of
from smetric_model.designing.bounding import optimum_of
from smetric_model.designing.candidates import candidates, rank
from smetric_model.designing.check import Check, check_capacity, check_instances
from smetric_model.designing.closed_form import NO_NUMBER
from smetric_model.designing.costs import pareto_front, token_costs
from smetric_model.designing.marginals import marginals
from smetric_model.designing.parts import (
    operations_of,
    placement_of,
    thresholds,
    what_could_be,
    what_limits,
    workload_rate,
)
from smetric_model.designing.prices import Prices, bill_of
from smetric_model.designing.recommended import cheapest_of, recommended_of
from smetric_model.designing.results import DesignPlan, DesignResult, Goal
from smetric_model.designing.runs import Row, Runs
from smetric_model.designing.space import Design, DesignSpace, default_space
from smetric_model.designing.words import answers
from smetric_model.errors import SpecError
from smetric_model.scenario_groups import check_equal_instances
from smetric_model.tuning.sizing import with_instances

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["plan"]


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
    operations: int | None = None,
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
    operations : int, optional
        Answer operational questions for the recommended design at its instances too
        (:func:`~smetric_model.operations.overview.operational_findings`), with so many simulated
        seeds; 0: closed form only.

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
    instance_of(scenario)  # so is what does not fit
    tell = progress or (lambda _text: None)
    runs = Runs(trace, None if folder is None else Path(folder), jobs, tell)
    rate, rate_note = workload_rate(runs, scenario)
    goal: Goal = "capacity" if capacity or rate is None else "instances"
    if space is not None and goal == "instances" and "cluster.instances" in space.axes:
        raise SpecError(
            "space: cluster.instances is what plan solves for; take it out, or ask for the"
            " capacity of given instances"
        )
    given = runs.size({"as given": scenario}, goal == "capacity", None)[0]
    tuning = thresholds(runs, _answered(scenario, given, goal))
    if space is None:
        chosen = None if tuning is None else (tuning.overload, tuning.hit_ratio)
        space = default_space(scenario, chosen)
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
    recommended = recommended_of(results, goal, check >= 0)
    advised = next(result for result in results if result.name == recommended)
    optimum = optimum_of(runs, advised, goal) if check >= 0 else None
    limit, moves = what_limits(runs, advised, rate if goal == "instances" else None)
    looser = None
    if goal == "instances" and results[0].error.startswith(NO_NUMBER):
        looser = what_could_be(runs, scenario)
    placement = placement_of(runs, scenario, advised)
    findings = operations_of(runs, scenario, advised, operations)
    result = DesignPlan(
        scenario=scenario,
        goal=goal,
        placement=placement,
        space=space,
        prices=prices,
        designs=tuple(results),
        recommended=recommended,
        cheapest=cheapest_of(results, goal, check >= 0),
        rate_rps=rate,
        tuning=tuning,
        marginals=marginals(results, goal, prices),
        optimum=optimum,
        limit=limit,
        looser=looser,
        sensitivities=moves,
        answers=(),
        findings=findings,
        notes=(),
        seeds=tuple(used),
        elapsed_s=0.0,
        seconds={},
        computed=runs.computed,
        found=runs.found,
    )
    result = replace(result, answers=answers(result), notes=_notes(result, rate_note))
    elapsed = time.monotonic() - started
    rest = max(elapsed - sum(runs.seconds.values()), 0.0)
    return replace(result, elapsed_s=elapsed, seconds=runs.seconds | {"rest": rest})


def _answered(scenario: Scenario, row: Row, goal: Goal) -> Scenario:
    """Return the given scenario at its answer, where it has one."""
    if row.get("error") or row.get("instances") is None:
        return scenario
    if goal == "instances":
        return with_instances(scenario, int(row["instances"]))
    rate = row.get("rate_rps")
    return scenario if rate is None else scenario.replace(**{"workload.rate_rps": float(rate)})


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
    sized = result.sized
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


def _notes(result: DesignPlan, rate_note: str) -> tuple[str, ...]:
    notes = [rate_note] if rate_note else []
    notes += [
        "closed form: the router's mean field, steady state; against simulation its tokens within"
        " SLO differ by 0.4 % in the median and by more than 6 % in one of ten scenarios, above"
        " four fifths of what a cluster bears by 3 and 20 % (docs/agreement.md)",
    ]
    if not result.seeds:
        notes.append(
            "nothing was simulated: the numbers of instances are the closed form's, on the"
            " shipped workload up to a sixth below what simulation confirms (docs/plan.md)"
        )
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
