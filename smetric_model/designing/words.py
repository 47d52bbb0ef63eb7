"""A search over designs in words: the questions a planner asks, answered."""

from __future__ import annotations

from smetric_model.analytic.demand import cluster_of
from smetric_model.designing.candidates import LINK, TIER
from smetric_model.designing.choices import cheaper, which_policy
from smetric_model.designing.results import Answer, DesignPlan, DesignResult
from smetric_model.designing.rows import counted, rate_text, tried_text
from smetric_model.designing.worth import what_moves, what_optimal, what_tokens, worth_it
from smetric_model.planning.words import number, percent
from smetric_model.tuning.sizing import with_instances

__all__ = ["advice", "answers"]


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
    found += [a for a in (cheaper(plan), which_policy(plan)) if a is not None]
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
    sized = with_instances(result.scenario, count).cluster
    if sized.serving == "disaggregated":
        gpus += f" ({sized.prefill_instances} instances prefill, {sized.decode_instances} decode)"
    return gpus


def advice(plan: DesignPlan) -> str:
    """Return the recommended design with its hardware in a few words.

    Parameters
    ----------
    plan : DesignPlan
    """
    design = plan.advised
    if design.instances is None:
        return "nothing: no design compared does it"
    count = design.instances if plan.goal == "instances" else int(design.number("instances"))
    what = "as given" if design is plan.given else design.name
    return f"{_hardware(plan, count, design)}, {what}"


def _instead(plan: DesignPlan) -> str:
    """Say what is recommended where that is not the given design."""
    design = plan.advised
    if design is plan.given or design.instances is None:
        return ""
    return f" Recommended in its place: {advice(plan)} ({design.source})."


def _rate(plan: DesignPlan) -> str:
    return rate_text(plan.rate_rps)


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
            f" ({percent(given.number('within_slo_ratio'))} with so many).{_instead(plan)}",
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
            f" not confirm it{best}.{_instead(plan)}",
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
    text += f". The scenario has {plan.scenario.cluster.instances * tp}.{_instead(plan)}"
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
        f"{rate_text(rate)} ({number(given.number('total_tps'))} tokens/s) on"
        f" {_hardware(plan, int(given.number('instances')), given)} with {wanted} of requests"
        " within the SLO"
    )
    source = "closed form"
    if given.check is not None and given.check.at is not None:
        source += f"; simulated, {len(plan.seeds)} seeds"
        text += f". Simulation at that rate finds {tried_text(given.check.at)} within SLO"
        if given.check.instances is None:
            text += ", less than asked: the true capacity is lower"
    return Answer("How much can this cluster serve?", f"{text}.{_instead(plan)}", source)


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
        f"How many {plan.scenario.engine.gpu}?",
        f"{text}: {plan.given.error}.{_instead(plan)}",
        "closed form",
    )
