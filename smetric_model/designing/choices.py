"""Which design and which policy to choose, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.designing.names import policy_name
from smetric_model.designing.results import Answer, DesignPlan, DesignResult
from smetric_model.designing.rows import cost_text, counted, counted_units, rate_text
from smetric_model.designing.verdicts import (
    CARRIED,
    FEW,
    GAP,
    NOTHING,
    SOURCES,
    Saving,
    Source,
    closed_form_gap,
    difference,
    instances_by,
    savings,
    serves_fewer,
)
from smetric_model.planning.words import number, percent
from smetric_model.tuning.words import threshold

if TYPE_CHECKING:
    from smetric_model.tuning import Tuning

__all__ = ["cheaper", "which_policy"]


# --- cheaper ------------------------------------------------------------------------------------


def cheaper(plan: DesignPlan) -> Answer | None:
    """Say whether a design is cheaper by a difference that shows; None without another to compare.

    Parameters
    ----------
    plan : DesignPlan
    """
    compared = [d for d in plan.designs if not d.error]
    if plan.given.bill is None or len(compared) < 2:
        return None
    failed = len(plan.designs) - len(compared)
    less = sum(1 for design in compared if serves_fewer(plan, design))
    looked = f"{counted(len(compared), 'design')} compared"
    beside = [f"{failed} more cannot be"] if failed else []
    beside += [f"{less} can serve fewer of the requests and do not count"] if less else []
    if beside:
        looked += f" ({'; '.join(beside)})"
    if plan.goal == "capacity":
        return _most_for_the_money(plan, looked)
    best = {source: found[0] for source in SOURCES if (found := savings(plan, source))}
    if not best:
        return None
    simulated = sum(1 for d in plan.designs if d.check is not None)
    return Answer(
        "Is there a cheaper design?",
        f"{_cheaper_text(plan, best, looked)}.",
        "closed form" + (f"; {simulated} simulated" if simulated else ""),
        _tolerance(plan),
    )


def _cheaper_text(plan: DesignPlan, best: dict[Source, Saving], looked: str) -> str:
    """Say it by the source that decides, and what the other adds."""
    closed, simulated = best.get("closed form"), best.get("simulated")
    if simulated is not None and simulated.shows:
        return f"Yes, of {looked}: {_against(plan, simulated)}, simulated"
    own = instances_by(plan.given, "simulated")
    if own is None and plan.seeds and closed is not None and closed.shows:
        # the given design has no number that others could be held against
        return f"Perhaps, of {looked}: {_against(plan, closed)}, by the closed form"
    if closed is not None and closed.shows:
        text = f"{_against(plan, closed)}, by the closed form"
        if not plan.seeds:
            return f"Yes, of {looked}: {text}"
        if closed.design.check is None:
            return f"Perhaps, of {looked}: {text}; it was not simulated (--check N simulates more)"
        found = instances_by(closed.design, "simulated")
        confirmed = "has no number for it" if found is None else f"finds {found}, as given {own}"
        return f"No, of {looked}. {text}, but simulation {confirmed}: {NOTHING}"
    borrowed = next(
        (s for s in (simulated, closed) if s is not None and s.borrowed and s.saved > 0), None
    )
    if borrowed is not None:
        return (
            f"Perhaps, of {looked}: {_against(plan, borrowed)}, {_by(borrowed)}, with efficiencies"
            f" carried over to {_other_gpu(plan, borrowed)}: up to {percent(CARRIED, 0)} is within"
            " their error, so measure first (smetric-model calibrate)"
        )
    if simulated is not None and simulated.saved > 0:
        return f"No, of {looked}. Simulated, {_against(plan, simulated)}: {NOTHING}"
    source = "simulated" if simulated is not None else "by the closed form"
    return f"No, of {looked} none by a difference that shows ({source})"


def _by(found: Saving) -> str:
    return "simulated" if found.source == "simulated" else "by the closed form"


def _other_gpu(plan: DesignPlan, found: Saving) -> str:
    scenario = found.design.scenario if found.design.carried_over else plan.given.scenario
    return "" if scenario is None else scenario.engine.gpu


def _against(plan: DesignPlan, found: Saving) -> str:
    """Say what another design needs, and the given one."""
    name, own, cost = found.design.name, _money(plan, found.given), _money(plan, found.other)
    if found.saved <= 0:
        return f"as given {own}, none less"
    verb = "costs" if plan.prices.given else "needs"
    return f"{name} {verb} {cost}, as given {own} ({percent(found.saved / found.given, 0)} less)"


def _money(plan: DesignPlan, cost: float) -> str:
    if plan.prices.given:
        return f"{number(cost)} {plan.prices.unit} an hour"
    return counted_units(cost, "GPU")


def _most_for_the_money(plan: DesignPlan, looked: str) -> Answer | None:
    if not plan.cheapest:
        return None
    best, given = plan[plan.cheapest], plan.given
    assert best.bill is not None
    assert given.bill is not None
    values = [d.number("rate_rps") / max(d.bill.total, 1e-300) for d in (best, given) if d.bill]
    own = f"{rate_text(given.number('rate_rps'))} for {cost_text(plan, given.bill.total)}/h"
    if best is given:
        text = f"No, of {looked} the given one serves the most for the money: {own}"
    else:
        gain = values[0] / values[1] - 1
        text = (
            f"{'Yes' if gain > GAP else 'No'}, of {looked}. The most for the money is {best.name}:"
            f" {rate_text(best.number('rate_rps'))} for {cost_text(plan, best.bill.total)}/h; as"
            f" given {own}"
        )
        if gain <= GAP:
            text += f": {NOTHING}"
    return Answer(
        "Is there a cheaper design?",
        f"{text}.",
        "closed form",
        f"no difference shows up to {percent(GAP, 0)}, as far as it may be from simulation",
    )


def _tolerance(plan: DesignPlan) -> str:
    """Say from when on a difference shows."""
    gap = counted(closed_form_gap(plan), "instance")
    if any(instances_by(d, "simulated") is not None for d in plan.designs):
        few = (plan.given.instances or FEW + 1) <= FEW
        above = "the intervals over seeds" if few else "one instance and the intervals over seeds"
        return (
            f"a difference shows above {above} (simulated), above"
            f" {gap} (closed form: as far as it is from simulation here)"
        )
    return f"a difference shows above {gap}: so far may the closed form be from simulation"


# --- policy -------------------------------------------------------------------------------------


def which_policy(plan: DesignPlan) -> Answer | None:
    """Say which policy and thresholds to take; None where neither was varied.

    Parameters
    ----------
    plan : DesignPlan
    """
    others = [d for d in plan.designs[1:] if [k for k, _ in d.changes] == ["router.policy"]]
    parts, sources, validity = [], [], []
    numbers = [d for d in (plan.given, *others) if d.closed_form_instances is not None]
    if plan.goal == "instances" and others and numbers:
        parts.append(_policies(plan, others))
        sources = [s for s in SOURCES if any(instances_by(d, s) is not None for d in others)]
        validity.append(_tolerance(plan))
    if plan.tuning is not None:
        parts.append(_thresholds(plan, plan.tuning))
        validity.append("thresholds: closed form at the given design's instances")
        if "closed form" not in sources:
            sources.append("closed form")
    if not parts:
        return None
    text = ". ".join(part[:1].upper() + part[1:] for part in parts)
    return Answer(
        "Which policy, OVERLOAD and HIT_RATIO?",
        f"{text}.",
        "; ".join(sources),
        "; ".join(validity),
    )


def _policies(plan: DesignPlan, others: list[DesignResult]) -> str:
    """Compare policies: the verdict first, then both numbers of each."""
    own = policy_name(plan.scenario.router.policy)
    fewer: list[str] = []
    more: list[str] = []
    hints, level = [], []
    for design in others:
        name = policy_name(str(dict(design.changes)["router.policy"]))
        simulated = difference(plan, design, "simulated")
        apart = simulated or difference(plan, design, "closed form")
        if apart is None:
            continue
        if not apart.shows:
            level.append(name)
        elif simulated is None and plan.seeds:
            way = "fewer" if apart.more < 0 else "more"
            hints.append(f"{name} {abs(apart.more):,} {way}")
        else:
            (fewer if apart.more < 0 else more).append(f"{name} needs {abs(apart.more):,}")
    if plan.given.error:
        verdict = f"{own} has no number"
    elif fewer:
        verdict = f"{', '.join(fewer)} fewer instances than {own}"
    elif level:
        verdict = f"{own} will do: {NOTHING} to {', '.join(level)}"
    else:
        verdict = f"{own} will do: none compared needs fewer by a difference that shows"
    if more:
        verdict += f"; {', '.join(more)} more"
    if hints:
        verdict += f"; by the closed form alone {', '.join(hints)} (not simulated)"
    counts = [_both(plan, plan.given, own)]
    counts += [_both(plan, d, policy_name(str(dict(d.changes)["router.policy"]))) for d in others]
    heading = "simulated and (closed form)" if plan.seeds else "by the closed form"
    return f"{verdict}. Instances, {heading}: {', '.join(counts)}"


def _both(plan: DesignPlan, design: DesignResult, name: str) -> str:
    """Instances of a design by either source."""
    count = instances_by(design, "closed form")
    closed = "none" if count is None else f"{count:,}"
    if not plan.seeds:
        return f"{name} {closed}"
    check = design.check
    if check is None:
        return f"{name} – ({closed})"
    if check.complete:
        found = "none" if check.instances is None else f"{check.instances:,}"
        return f"{name} {found} ({closed})"
    return f"{name} unsettled ({closed})"


def _thresholds(plan: DesignPlan, tuning: Tuning) -> str:
    router = plan.scenario.router
    pair = f"OVERLOAD {threshold(tuning.overload)}, HIT_RATIO {threshold(tuning.hit_ratio)}"
    own = f"OVERLOAD {threshold(router.overload)}, HIT_RATIO {threshold(router.hit_ratio)}"
    if not tuning.matters:
        return (
            "SMetric's thresholds do not matter here: between the best and the worst pair tried lie"
            f" {percent(tuning.spread_ratio)} of the tokens within SLO; stay with {own}"
        )
    text = (
        f"Of SMetric's thresholds the closed form takes {pair}; the worst pair tried loses"
        f" {percent(tuning.spread_ratio)} of the tokens within SLO"
    )
    if (tuning.overload, tuning.hit_ratio) == (router.overload, router.hit_ratio):
        return f"{text}: stay with them"
    for design in plan.designs[1:]:
        if {k for k, _ in design.changes} <= {"router.overload", "router.hit_ratio"}:
            apart = difference(plan, design, "simulated") if plan.goal == "instances" else None
            if apart is not None:
                text += f". Simulated, they need {counted(apart.other, 'instance')}, as given"
                text += f" ({own}) {apart.given}"
                if not apart.shows:
                    text += f": {NOTHING}, stay with these"
            break
    return text
