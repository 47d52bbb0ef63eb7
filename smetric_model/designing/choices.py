"""Which design and which policy to choose, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.designing.names import policy_name
from smetric_model.designing.results import Answer, DesignPlan, DesignResult
from smetric_model.designing.rows import cost_text, counted, counted_units, rate_text
from smetric_model.designing.verdicts import (
    GAP,
    NOTHING,
    SOURCES,
    Saving,
    Source,
    closed_form_gap,
    difference,
    instances_by,
    savings,
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
    looked = f"{counted(len(compared), 'design')} compared"
    if failed:
        looked += f" ({failed} more cannot be)"
    if plan.goal == "capacity":
        return _most_for_the_money(plan, looked)
    best = [found[0] for source in SOURCES if (found := savings(plan, source))]
    if not best:
        return None
    verdict = "Yes" if best[0].shows else "No"
    if verdict == "No" and any(s.shows and s.design.check is None for s in best):
        verdict = "Perhaps"
    parts = [_saving(plan, found) for found in best]
    simulated = sum(1 for d in plan.designs if d.check is not None)
    return Answer(
        "Is there a cheaper design?",
        f"{verdict}, of {looked}. {'. '.join(parts)}.",
        "closed form" + (f"; {simulated} simulated" if simulated else ""),
        _tolerance(plan),
    )


def _money(plan: DesignPlan, cost: float) -> str:
    if plan.prices.given:
        return f"{number(cost)} {plan.prices.unit} an hour"
    return counted_units(cost, "GPU")


def _saving(plan: DesignPlan, found: Saving) -> str:
    head = "Simulated" if found.source == "simulated" else "By the closed form"
    name, own, cost = found.design.name, _money(plan, found.given), _money(plan, found.other)
    if found.shows:
        text = f"{head}, {name} needs {cost}, as given {own}"
        text += f" ({percent(found.saved / found.given, 0)} less)"
        if found.source == "closed form" and plan.seeds:
            text += ", not simulated" if found.design.check is None else ""
        return text
    if found.saved <= 0:
        return f"{head}, as given {own}, none less"
    return f"{head}, {name} needs {cost}, as given {own}: {NOTHING}"


def _most_for_the_money(plan: DesignPlan, looked: str) -> Answer | None:
    if not plan.best:
        return None
    best, given = plan[plan.best], plan.given
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
        return (
            "a difference shows above one instance and the interval over seeds (simulated), above"
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
    if plan.goal == "instances":
        for source in SOURCES:
            text = _policies(plan, others, source)
            if text:
                parts.append(text)
                sources.append(source)
        if parts:
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


def _policies(plan: DesignPlan, others: list[DesignResult], source: Source) -> str:
    """Compare policies by one source, the verdict first; empty where there are no two."""
    own = instances_by(plan.given, source)
    if own is None:
        return ""
    counts = [f"{policy_name(plan.scenario.router.policy)} {own}"]
    moves = []
    for design in others:
        name = policy_name(str(dict(design.changes)["router.policy"]))
        apart = difference(plan, design, source)
        if apart is None:
            if source == "closed form" or (
                design.check is not None and design.check.instances is None
            ):
                counts.append(f"{name} no number")
            continue
        counts.append(f"{name} {apart.other}")
        if apart.shows:
            way = "more" if apart.more > 0 else "fewer"
            moves.append(f"{name} needs {abs(apart.more)} {way}")
    if len(counts) < 2:
        return ""
    head = "simulated" if source == "simulated" else "by the closed form"
    found = ", ".join(counts)
    lacking = any(text.endswith("no number") for text in counts)
    if moves:
        verdict = ", ".join(moves)
        if len(moves) + 1 < len(counts) and not lacking:
            verdict += f"; otherwise {NOTHING}"
    elif lacking:
        verdict = NOTHING + " between those that have a number"
    else:
        verdict = NOTHING
    return f"{head}, instances by policy: {found}: {verdict}"


def _thresholds(plan: DesignPlan, tuning: Tuning) -> str:
    router = plan.scenario.router
    pair = f"OVERLOAD {threshold(tuning.overload)}, HIT_RATIO {threshold(tuning.hit_ratio)}"
    own = f"OVERLOAD {threshold(router.overload)}, HIT_RATIO {threshold(router.hit_ratio)}"
    if not tuning.matters:
        return (
            f"SMetric's thresholds do not matter here: all pairs tried are within"
            f" {percent(tuning.spread_ratio)} in tokens within SLO; stay with {own}"
        )
    text = (
        f"for SMetric the closed form takes {pair} (the worst pair tried loses"
        f" {percent(tuning.spread_ratio)} of the tokens within SLO)"
    )
    for design in plan.designs[1:]:
        if {k for k, _ in design.changes} <= {"router.overload", "router.hit_ratio"}:
            apart = difference(plan, design, "simulated") if plan.goal == "instances" else None
            if apart is not None:
                text += f"; simulated, it needs {counted(apart.other, 'instance')}, {own} as given"
                text += f" {apart.given}"
                if not apart.shows:
                    text += f": {NOTHING}"
            break
    return text
