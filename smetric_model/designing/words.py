"""A search over designs in words: the questions a planner asks, answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.analytic.demand import cluster_of
from smetric_model.designing.candidates import LINK, TIER
from smetric_model.designing.names import policy_name
from smetric_model.designing.results import Answer, DesignPlan, DesignResult
from smetric_model.designing.rows import cost_text, counted, tried_text
from smetric_model.designing.worth import what_moves, what_optimal, what_tokens, worth_it
from smetric_model.planning.words import number, percent
from smetric_model.tuning.sizing import with_instances
from smetric_model.tuning.words import threshold

if TYPE_CHECKING:
    from smetric_model.tuning import Tuning

__all__ = ["answers"]


def answers(plan: DesignPlan) -> tuple[Answer, ...]:
    """Answer a planner's questions.

    Parameters
    ----------
    plan : DesignPlan
        Without answers.

    Returns
    -------
    tuple of Answer
    """
    if plan.given.scenario is None:
        found = [_nothing(plan)]
    elif plan.goal == "instances":
        found = [_how_many(plan)]
    else:
        found = [_how_much(plan)]
    found += [a for a in (_cheaper(plan), _router(plan)) if a is not None]
    for key in (TIER, LINK):
        answer = worth_it(plan, key)
        if answer is not None:
            found.append(answer)
    found += [a for a in (what_optimal(plan), what_tokens(plan), what_moves(plan)) if a is not None]
    return tuple(found)


# --- how many ---------------------------------------------------------------------------------


def _hardware(plan: DesignPlan, count: int, result: DesignResult) -> str:
    assert result.scenario is not None
    engine = result.scenario.engine
    gpus = f"{count * engine.tp} {engine.gpu}"
    if plan.goal == "instances":
        nodes = cluster_of(with_instances(result.scenario, count)).nodes
        gpus += f" on {counted(nodes, 'node')}"
    if engine.tp > 1:
        gpus += f" ({counted(count, 'instance')} of {engine.tp})"
    row = result.row
    if result.scenario.cluster.serving == "disaggregated" and row.get("prefill_instances"):
        share = row["prefill_instances"] / row["instances"]
        gpus += f" ({percent(share, 0)} of them for prefill)"
    return gpus


def _rate(plan: DesignPlan) -> str:
    return f"{number(plan.rate_rps)} requests/s"


def _how_many(plan: DesignPlan) -> Answer:
    given = plan.given
    wanted = percent(plan.scenario.slo.attainment, 0)
    aim = f"{_rate(plan)} with {wanted} of requests within the SLO"
    closed = given.closed_form_instances
    check = given.check
    question = f"How many {plan.scenario.engine.gpu} for {_rate(plan)}?"
    assert closed is not None
    if check is None:
        return Answer(
            question,
            f"{_hardware(plan, closed, given)} for {aim}, as given otherwise"
            f" ({percent(given.number('within_slo_ratio'))} with so many).",
            "closed form",
            "not simulated",
        )
    if check.instances is None:
        at = check.at
        best = "" if at is None else f"; at {at.instances} {tried_text(at)} are within SLO"
        if at is not None and at.error:
            best = f": {at.error}"
        return Answer(
            question,
            f"The closed form says {_hardware(plan, closed, given)} for {aim}, and simulation does"
            f" not confirm it{best}.",
            f"closed form; simulated, {len(plan.seeds)} seeds",
            "not simulated"
            if at is not None and at.error
            else "no number of instances was confirmed in the tries allowed",
        )
    count = check.instances
    low = min(v for v in (check.low, closed, count) if v is not None)
    high = max(v for v in (check.high, closed, count) if v is not None)
    at = check.at
    assert at is not None
    text = f"{_hardware(plan, count, given)} for {aim}"
    tp = plan.scenario.engine.tp
    if low < high:
        text += f", give or take: {low * tp} to {high * tp}"
    text += f". Simulation with {len(plan.seeds)} seeds finds {tried_text(at)} within SLO there"
    below = check.tried(count - 1)
    if below is not None:
        text += f", and {tried_text(below)} with {count - 1}"
    text += f"; the closed form says {closed * tp}"
    if check.high is not None and check.high > count:
        text += (
            f". From {check.high * tp} on the whole interval over seeds is above {wanted}: build"
            " that many if the share must hold"
        )
    text += f". The scenario has {plan.scenario.cluster.instances * tp}."
    return Answer(
        question,
        text,
        f"simulated, {len(plan.seeds)} seeds; closed form",
        "" if check.complete else "the search ran out of tries or time: fewer may do",
    )


def _how_much(plan: DesignPlan) -> Answer:
    given = plan.given
    rate, wanted = given.number("rate_rps"), percent(plan.scenario.slo.attainment, 0)
    text = (
        f"{number(rate)} requests/s ({number(given.number('total_tps'))} tokens/s) on"
        f" {_hardware(plan, int(given.number('instances')), given)} with {wanted} of requests"
        " within the SLO"
    )
    source = "closed form"
    if given.check is not None and given.check.at is not None:
        source += f"; simulated, {len(plan.seeds)} seeds"
        text += f". Simulation at that rate finds {tried_text(given.check.at)} within SLO"
        if given.check.instances is None:
            text += ", less than asked: the true capacity is lower"
    return Answer("How much can this cluster serve?", text + ".", source)


def _nothing(plan: DesignPlan) -> Answer:
    wanted = percent(plan.scenario.slo.attainment, 0)
    share = plan.given.row.get("within_slo_ratio")
    what = _rate(plan) if plan.goal == "instances" else "any rate"
    text = f"No number serves {what} with {wanted} of requests within the SLO as given"
    if plan.goal == "capacity":
        text = f"These instances serve no rate with {wanted} of requests within the SLO"
    if isinstance(share, float):
        text += f"; at best {percent(share)} meet it"
    return Answer(
        f"How many {plan.scenario.engine.gpu}?", f"{text}: {plan.given.error}.", "closed form"
    )


# --- cheaper, router ----------------------------------------------------------------------------


def _cheaper(plan: DesignPlan) -> Answer | None:
    if not plan.best or plan.given.bill is None:
        return None
    question = "Is there a cheaper design?"
    best, given = plan[plan.best], plan.given
    as_given = plan.given.bill.total
    compared = sum(1 for d in plan.designs if not d.error)
    failed = len(plan.designs) - compared
    looked = f"Of {compared} designs compared"
    if failed:
        looked += f" ({failed} more cannot be)"
    assert best.bill is not None
    cost = best.bill.total
    simulated = sum(1 for d in plan.designs if d.check is not None)
    source = "closed form"
    if simulated:
        source += f"; {simulated} simulated"
    if plan.goal == "capacity":
        return Answer(
            question,
            f"{looked}, the most for the money is {best.name}:"
            f" {number(best.number('rate_rps'))} requests/s for"
            f" {cost_text(plan, cost)}/h; as given {number(given.number('rate_rps'))}"
            f" for {cost_text(plan, as_given)}/h.",
            source,
        )
    unit = "GPUs" if not plan.prices.given else f"{plan.prices.unit} an hour"
    if cost >= as_given:
        text = f"{looked}, none needs fewer {unit} than the given one"
        if best.name != given.name:
            text += f"; {best.name} needs as many with less beside the GPUs"
        return Answer(question, f"{text}.", source)
    saved = 1 - cost / as_given
    text = (
        f"{looked}, the cheapest is {best.name}: {number(cost)} {unit} for"
        f" {number(as_given)} as given ({percent(saved, 0)} less)"
    )
    return Answer(question, f"{text}.", source)


def _router(plan: DesignPlan) -> Answer | None:
    router = plan.scenario.router
    parts, source = [], "closed form"
    tuning = plan.tuning
    others = [d for d in plan.designs[1:] if [k for k, _ in d.changes] == ["router.policy"]]
    if others and plan.given.instances is not None and plan.goal == "instances":
        texts = []
        for design in others:
            name = policy_name(str(dict(design.changes)["router.policy"]))
            count = design.instances
            how = "simulated" if design.source == "simulated" else "closed form"
            texts.append(f"{name} {'no number' if count is None else count} ({how})")
        own = policy_name(router.policy)
        how = "simulated" if plan.given.source == "simulated" else "closed form"
        texts.insert(0, f"{own} {plan.given.instances} ({how})")
        parts.append(f"Instances by policy: {', '.join(texts)}")
        counts = [d.instances for d in others if d.instances is not None]
        if counts:
            apart = max(abs(c - plan.given.instances) for c in counts)
            if apart <= 1:
                parts.append("the policy hardly matters at this load")
            elif min(counts) < plan.given.instances:
                parts.append("another policy needs fewer")
            else:
                parts.append(f"the wrong policy costs up to {counted(apart, 'instance')}")
        if any(d.source == "simulated" for d in others):
            source = "closed form, simulated where it says so"
    if tuning is not None:
        parts.append(_thresholds(plan, tuning))
    if not parts:
        return None
    text = ". ".join(part[:1].upper() + part[1:] for part in parts)
    return Answer(
        "Which policy, OVERLOAD and HIT_RATIO?",
        f"{text}.",
        source,
        "thresholds: closed form at the given design's instances" if tuning is not None else "",
    )


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
    given = plan.given
    for design in plan.designs[1:]:
        if {k for k, _ in design.changes} <= {"router.overload", "router.hit_ratio"}:
            if design.source == given.source == "simulated" and plan.goal == "instances":
                assert design.instances is not None
                assert given.instances is not None
                text += f"; simulated, it needs {design.instances} instances, {own} as given"
                text += f" {given.instances}"
                if design.instances == given.instances:
                    text += ": no difference that shows"
            break
    return text
