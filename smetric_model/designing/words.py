"""A search over designs in words: the questions a planner asks, answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.designing.candidates import LINK, TIER
from smetric_model.designing.choices import cheaper, which_policy
from smetric_model.designing.hardware import advice, design_hardware, traffic
from smetric_model.designing.pools import what_pools
from smetric_model.designing.results import Answer, DesignPlan, DesignResult
from smetric_model.designing.rows import rate_text, tried_text
from smetric_model.designing.worth import what_moves, what_optimal, what_tokens, worth_it
from smetric_model.planning.words import duration, number, percent

if TYPE_CHECKING:
    from smetric_model.designing.check import Check, Try
    from smetric_model.designing.sensitivity import Looser

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
    found += [a for a in (cheaper(plan), which_policy(plan)) if a is not None]
    pools = what_pools(plan)
    if pools is not None:
        found.append(pools)
    for key in (TIER, LINK):
        answer = worth_it(plan, key)
        if answer is not None:
            found.append(answer)
    found += [a for a in (what_optimal(plan), what_tokens(plan), what_moves(plan)) if a is not None]
    return tuple(found)


# --- how many ---------------------------------------------------------------------------------


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
    closed, check = given.closed_form_instances, given.check
    question = f"How many {plan.scenario.engine.gpu} for {_rate(plan)}?"
    assert closed is not None
    assert given.scenario is not None
    needs = f"{design_hardware(plan, given, closed)} for {traffic(plan)}"
    if check is None:
        share = percent(given.number("within_slo_ratio"))
        latency = _latency(given.number("ttft_p90_s"), given.number("tpot_p90_s"))
        return Answer(
            question,
            f"{needs}, all else as given ({share} with so many; {latency}).{_reuse_unknown(plan)}"
            f"{_instead(plan)}",
            "closed form",
            "not simulated",
        )
    at, wanted = check.at, plan.scenario.slo.attainment
    if check.instances is None:
        best = ""
        if at is not None:
            best = f"; at {at.instances} {tried_text(at, wanted)} are within SLO"
        if at is not None and at.error:
            best = f": {at.error}"
        return Answer(
            question,
            f"The closed form says {needs}, and simulation does not confirm"
            f" it{best}.{_reuse_unknown(plan)}{_instead(plan)}",
            f"closed form; simulated, {len(plan.seeds)} seeds",
            "not simulated"
            if at is not None and at.error
            else "no number of instances was confirmed in the tries allowed",
        )
    assert at is not None
    return Answer(
        question,
        f"{_confirmed(plan, given, check, at)}.{_reuse_unknown(plan)}{_instead(plan)}",
        f"simulated, {len(plan.seeds)} seeds; closed form",
        "" if check.complete else _open_below(plan, check),
    )


def _open_below(plan: DesignPlan, check: Check) -> str:
    """Say between which numbers a search that was cut short leaves the answer open."""
    tp, refuted = plan.scenario.engine.tp, check.refuted
    text = "the search ran out of tries or time: fewer may do"
    return text if refuted is None else f"{text}, though not {refuted * tp:,}"


def _confirmed(plan: DesignPlan, given: DesignResult, check: Check, at: Try) -> str:
    """Say which number simulation confirms, how sure that is, and what the closed form says."""
    tp, share = plan.scenario.engine.tp, plan.scenario.slo.attainment
    wanted = percent(share, 0)
    assert check.instances is not None
    count = check.instances
    low, high = min(check.low or count, count), max(check.high or count, count)
    text = f"{design_hardware(plan, given)} for {traffic(plan)}"
    if low < high:
        text += f", give or take: {low * tp:,} to {high * tp:,}"
    text += (
        f". Simulation with {len(plan.seeds)} seeds finds {tried_text(at, share)} within SLO there"
    )
    below = check.tried(count - 1)
    if below is not None:
        text += f", and {tried_text(below, share)} with {(count - 1) * tp:,}"
    if check.high is not None and check.high > count:
        text += (
            f"; from {check.high * tp:,} on the whole interval over seeds is above {wanted}: build"
            " that many if the share must hold"
        )
    text += f". {_latency(at.ttft_p90_s, at.tpot_p90_s)} there"
    closed = given.closed_form_instances or 0
    text += f". The closed form says {closed * tp:,}"
    return f"{text}; the scenario has {plan.scenario.cluster.instances * tp:,}"


def _latency(ttft_s: float, tpot_s: float) -> str:
    return f"TTFT P90 is {duration(ttft_s)}, TPOT P90 {duration(tpot_s)}"


def _reuse_unknown(plan: DesignPlan) -> str:
    """Say that an unknown reuse counts as none; empty where it is known."""
    if plan.placement.workload["ideal_reuse_ratio"] is not None:
        return ""
    return (
        " The trace carries no block ids: its reuse is unknown and counts as none; fewer may do"
        " where prompts share what was computed before."
    )


def _how_much(plan: DesignPlan) -> Answer:
    given = plan.given
    rate, wanted = given.number("rate_rps"), percent(plan.scenario.slo.attainment, 0)
    count = int(given.number("instances"))
    text = (
        f"{rate_text(rate)} ({number(given.number('total_tps'))} tokens/s) on"
        f" {design_hardware(plan, given, count)} with {wanted} of"
        f" {'requests' if not given.number('unservable_ratio') > 0 else 'those that can be served'}"
        " within the SLO"
    )
    source = "closed form"
    if given.check is not None and given.check.at is not None:
        source += f"; simulated, {len(plan.seeds)} seeds"
        share = tried_text(given.check.at, plan.scenario.slo.attainment)
        text += f". Simulation at that rate finds {share} within SLO"
        if given.check.instances is None:
            text += ", less than asked: the true capacity is lower"
    return Answer(
        "How much can this cluster serve?",
        f"{text}.{_reuse_unknown(plan)}{_instead(plan)}",
        source,
    )


def _nothing(plan: DesignPlan) -> Answer:
    wanted = percent(plan.scenario.slo.attainment, 0)
    gpu = plan.scenario.engine.gpu
    if plan.goal == "capacity":
        share = plan.given.row.get("within_slo_ratio")
        text = f"These instances serve no rate with {wanted} of requests within the SLO"
        if isinstance(share, float):
            text += f"; at best {percent(share)} meet it"
        return Answer("How much can this cluster serve?", f"{text}.{_instead(plan)}", "closed form")
    question = f"How many {gpu} for {_rate(plan)}?"
    text = f"No number serves {traffic(plan)}"
    if plan.looser is None:
        return Answer(question, f"{text}: {plan.given.error}.{_instead(plan)}", "closed form")
    share = percent(plan.looser.idle_within_slo_ratio)
    text += f": even where nothing waits {share} meet it"
    return Answer(question, f"{text}. {_could_be(plan, plan.looser)}.{_instead(plan)}",
                  "closed form")  # fmt: skip


def _could_be(plan: DesignPlan, looser: Looser) -> str:
    """Say which SLO the wanted share could meet."""
    slo = plan.scenario.slo
    wanted = percent(slo.attainment, 0)

    def ttft(factor: float) -> str:
        base, each = factor * slo.ttft_base_s, 1e3 * factor * slo.ttft_per_prompt_token_s
        return f"a TTFT SLO of {duration(base)} + {number(each)} ms per prompt token"

    def tpot(factor: float) -> str:
        return f"a TPOT SLO of {duration(factor * slo.tpot_s)}"

    found = []
    if looser.ttft_factor is not None:
        found.append(f"{ttft(looser.ttft_factor)} ({number(looser.ttft_factor, 2)} times)")
    if looser.tpot_factor is not None:
        found.append(f"{tpot(looser.tpot_factor)} ({number(looser.tpot_factor, 2)} times)")
    if looser.both_factor is not None:
        times = f"({number(looser.both_factor, 2)} times both)"
        found.append(f"{ttft(looser.both_factor)} with {tpot(looser.both_factor)} {times}")
    if not found:
        return f"No SLO of this shape is met by {wanted}"
    text = f"There {wanted} would meet {' or '.join(found)}"
    if looser.tpot_factor is None and looser.ttft_factor is not None:
        text += "; a looser TPOT SLO does not help"
    elif looser.ttft_factor is None and looser.tpot_factor is not None:
        text += "; a looser TTFT SLO does not help"
    return text
