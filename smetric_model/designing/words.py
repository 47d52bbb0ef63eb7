"""A search over designs in words: the questions a planner asks, answered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.analytic.demand import cluster_of
from smetric_model.designing.candidates import LINK, TIER
from smetric_model.designing.names import policy_name
from smetric_model.designing.results import Answer, DesignPlan, DesignResult, Marginal
from smetric_model.planning.words import RESOURCE_NAMES, byte_size, duration, number, percent
from smetric_model.tuning.sizing import with_instances
from smetric_model.tuning.words import threshold

if TYPE_CHECKING:
    from smetric_model.designing.check import Try
    from smetric_model.designing.prices import Prices
    from smetric_model.designing.sensitivity import Sensitivity
    from smetric_model.tuning import Tuning

__all__ = [
    "answers",
    "cost_text",
    "design_cells",
    "design_columns",
    "needed_instances",
    "price_rows",
    "tried_text",
    "try_rows",
]

_LITTLE = 0.5  # GPUs: less than half of one saves none for sure
_SMALL = 0.05  # change of the answer that is only named


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
        answer = _worth_it(plan, key)
        if answer is not None:
            found.append(answer)
    found += [a for a in (_optimal(plan), _tokens(plan), _moves(plan)) if a is not None]
    return tuple(found)


# --- how many ---------------------------------------------------------------------------------


def _hardware(plan: DesignPlan, count: int, result: DesignResult) -> str:
    assert result.scenario is not None
    engine = result.scenario.engine
    gpus = f"{count * engine.tp} {engine.gpu}"
    if plan.goal == "instances":
        nodes = cluster_of(with_instances(result.scenario, count)).nodes
        gpus += f" on {_count(nodes, 'node')}"
    if engine.tp > 1:
        gpus += f" ({_count(count, 'instance')} of {engine.tp})"
    row = result.row
    if result.scenario.cluster.serving == "disaggregated" and row.get("prefill_instances"):
        share = row["prefill_instances"] / row["instances"]
        gpus += f" ({percent(share, 0)} of them for prefill)"
    return gpus


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _rate(plan: DesignPlan) -> str:
    return f"{number(plan.rate_rps)} requests/s"


def tried_text(tried: Try) -> str:
    """Return a simulated share with its interval.

    Parameters
    ----------
    tried : Try
    """
    if math.isnan(tried.mean):
        return "could not be simulated"
    return f"{percent(tried.mean)} ± {percent(tried.half_width)}"


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


def cost_text(plan: DesignPlan, cost: float, digits: int = 3) -> str:
    """Return a cost with its unit.

    Parameters
    ----------
    plan : DesignPlan
        For its prices.
    cost : float
    digits : int
    """
    return f"{number(cost, digits)} {plan.prices.unit}"


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
                parts.append(f"the wrong policy costs up to {_count(apart, 'instance')}")
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


# --- tier and link --------------------------------------------------------------------------------


def _worth_it(plan: DesignPlan, key: str) -> Answer | None:
    steps = [m for m in plan.marginals if m.key == key]
    if not steps:
        return None
    question = "Is a bigger global tier worth it?" if key == TIER else "Is a faster link worth it?"
    given = plan.given
    assert given.scenario is not None
    own = (
        given.scenario.global_tier.bytes_per_node
        if key == TIER
        else given.scenario.cluster.nic_bytes_per_s
    )
    more = next((m for m in steps if m.from_value == own), None)
    less = next((m for m in steps if m.to_value == own), None)
    parts = []
    if more is not None:
        parts.append(_step(plan, more, up=True))
    if less is not None:
        parts.append(_step(plan, less, up=False))
    source = "closed form, between whole instances"
    checked = [
        d
        for d in plan.designs[1:]
        if [k for k, _ in d.changes] == [key] and d.source == "simulated" and d.check is not None
    ]
    if checked and plan.goal == "instances" and given.source == "simulated":
        texts = [f"{d.instances} with {d.name}" for d in checked]
        parts.append(f"Simulation: {given.instances} instances as given, {', '.join(texts)}")
        source += f"; simulated, {len(plan.seeds)} seeds"
    return Answer(question, ". ".join(parts) + ".", source)


def _size(key: str, value: float) -> str:
    if key == TIER:
        return f"{byte_size(value)}/node" if value else "no global tier"
    return f"{number(8e-9 * value)} Gbps"


def _step(plan: DesignPlan, step: Marginal, up: bool) -> str:
    unit = "TB" if step.key == TIER else "Gbit/s"
    saved = step.saved_gpus
    value = _size(step.key, step.to_value if up else step.from_value)
    more = f"{number(step.units)} {unit}"
    if up:
        gain = "saves nothing" if saved <= 0.05 else f"saves {number(saved, 2)} GPUs"
        text = f"{value} ({more} more in all) {gain}"
        if abs(saved) > 0.05:
            text += f", {number(abs(step.saved_per_unit), 2)} GPU per {unit}"
        if saved <= -0.05:
            text = f"{value} ({more} more in all) needs {number(-saved, 2)} GPUs more"
        verdict = _verdict(plan, step)
        return f"{verdict}: {text}{_price(plan, step, unit)}"
    cost = "costs nothing" if saved <= 0.05 else f"costs {number(saved, 2)} GPUs"
    return f"{value[:1].upper()}{value[1:]} ({more} less) {cost}"


def _verdict(plan: DesignPlan, step: Marginal) -> str:
    if step.saved_gpus < _LITTLE and not plan.prices.given:
        return "No"
    if math.isfinite(step.cost):
        return "Yes" if step.worth > step.cost else "No"
    return "It depends on the price"


def _price(plan: DesignPlan, step: Marginal, unit: str) -> str:
    if math.isfinite(step.cost):
        return (
            f"; it costs {cost_text(plan, step.cost)} an hour and is worth"
            f" {cost_text(plan, max(step.worth, 0.0))}"
        )
    if step.saved_gpus >= _LITTLE:
        return (
            f"; it pays where a {unit} costs less than {number(step.break_even, 2)} of what a GPU"
            " does"
        )
    return ""


# --- optimal, tokens, sensitivities ---------------------------------------------------------------


def _optimal(plan: DesignPlan) -> Answer | None:
    best = plan.optimum
    if best is None:
        return None
    parts = []
    if best.fewest_instances is not None:
        spare = best.instances - best.fewest_instances
        router = policy_name(plan.scenario.router.policy)
        if spare <= 0:
            parts.append(
                f"No router could serve this share of the tokens within SLO with fewer than"
                f" {best.fewest_instances} instances: {router} is at the bound"
            )
        else:
            parts.append(
                f"No router, cache or schedule, even knowing the future, could serve as much within"
                f" SLO with fewer than {_count(best.fewest_instances, 'instance')};"
                f" {router} needs {best.instances}. What is to be gained at most is"
                f" {_count(spare, 'instance')} ({percent(spare / best.instances, 0)})"
            )
    parts.append(
        f"On these {best.instances} it serves {percent(best.goodput_share)} of the tokens within"
        f" SLO that the bound allows on the same requests. At any latency, no router could carry"
        f" more than {number(best.volume_load_multiple, 2)} times this load"
        + (f" ({RESOURCE_NAMES.get(best.binding, best.binding)})" if best.binding else "")
    )
    return Answer(
        "How far from optimal is it?",
        ". ".join(parts) + ".",
        "bound (linear programs); simulated, one seed",
        "a bound need not be attainable: it shares all work between all instances"
        + ("" if best.exact else "; some program was not solved to its optimum, so it is weaker"),
    )


def _tokens(plan: DesignPlan) -> Answer | None:
    costs, bill = plan.given.costs, plan.given.bill
    if costs is None or bill is None:
        return None

    def each(value: float) -> str:
        return "–" if math.isnan(value) else number(value)

    text = (
        f"A million tokens: computed prompt {each(costs.computed_prompt)}, reused prompt"
        f" {each(costs.reused_prompt)}, output {each(costs.output)} {plan.prices.unit}; all alike"
        f" {each(costs.total)}"
    )
    if plan.prices.given:
        text += f". The cluster costs {cost_text(plan, bill.total)} an hour"
    else:
        text += f", with {number(bill.total)} GPUs"
    return Answer(
        "What do tokens cost?",
        f"{text}.",
        "closed form",
        "GPU time by class of token from the step model, idle time in proportion; NICs by bytes"
        " moved, the tier's memory to reused tokens; the classes add up to the whole bill",
    )


def _moves(plan: DesignPlan) -> Answer | None:
    if not plan.sensitivities or plan.given.instances is None:
        return None
    needed = needed_instances(plan)
    by_key: dict[str, list[Sensitivity]] = {}
    for move in plan.sensitivities:
        by_key.setdefault(move.key, []).append(move)
    large, small = [], []
    for moves in by_key.values():
        if max(abs(m.instances / needed - 1) for m in moves) < _SMALL:
            small.append(moves[0].parameter)
            continue
        pair = sorted(moves, key=lambda m: -m.instances)
        large.append(
            f"{pair[0].parameter} "
            + ", ".join(f"{m.change} → {_change(m.instances, needed)}" for m in pair)
        )
    text = "Instances needed with one assumption changed: " + "; ".join(large)
    if small:
        text += f". By less than {percent(_SMALL, 0)}: {', '.join(small)}"
    elastic = {
        moves[0].parameter: sum(m.elasticity for m in moves) / len(moves)
        for moves in by_key.values()
        if all(math.isfinite(m.elasticity) for m in moves)
    }
    if elastic:
        most = sorted(elastic, key=lambda name: -abs(elastic[name]))[:3]
        text += ". Elasticity of capacity: " + ", ".join(
            f"{name} {_signed(elastic[name])}" for name in most
        )
    return Answer(
        "What would move the answer?",
        text + ".",
        "closed form",
        "one at a time, at the given design; fractions of an instance by what it then attains",
    )


def needed_instances(plan: DesignPlan) -> float:
    """Return the instances that the closed form asks for at the rate, as a fraction.

    Parameters
    ----------
    plan : DesignPlan
        With sensitivities.
    """
    at = [m for m in plan.sensitivities if m.key == "workload.rate_rps"]
    return at[0].instances / at[0].factor if at else math.nan


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _change(instances: float, needed: float) -> str:
    if not math.isfinite(instances):
        return "no number is enough"
    return f"{100 * (instances / needed - 1):+.0f}%".replace("-", "−")


# --- rows -----------------------------------------------------------------------------------------


def design_columns(plan: DesignPlan) -> list[str]:
    """Return the columns of the table of designs, after the name.

    Parameters
    ----------
    plan : DesignPlan
    """
    first = "instances" if plan.goal == "instances" else "requests/s"
    cost = ["cost/h"] if plan.prices.given else ["GPUs"]
    return [first, "simulated", *cost, "per M tokens", "TTFT P90"]


def design_cells(plan: DesignPlan, design: DesignResult) -> list[str]:
    """Return the cells of a design in the table of designs, after its name.

    Parameters
    ----------
    plan : DesignPlan
    design : DesignResult
    """
    if design.error or design.scenario is None:
        return ["–", "–", "–", "–", "–"]
    simulated = "–"
    if design.check is not None:
        count = design.check.instances
        simulated = "none" if count is None else f"{count}"
        if plan.goal == "capacity" and design.check.at is not None:
            simulated = tried_text(design.check.at)
    first = (
        f"{design.closed_form_instances}"
        if plan.goal == "instances"
        else f"{number(design.number('rate_rps'))}"
    )
    cost = "–" if design.bill is None else number(design.bill.total)
    return [
        first,
        simulated,
        cost,
        "–" if design.costs is None else number(design.costs.total),
        duration(design.number("ttft_p90_s")),
    ]


def try_rows(plan: DesignPlan) -> list[tuple[str, str, str, str]]:
    """Return what was simulated: design, instances, share within SLO, shares by seed.

    Parameters
    ----------
    plan : DesignPlan
    """
    return [
        (
            design.name,
            f"{tried.instances:,}",
            tried_text(tried),
            ", ".join(percent(share) for share in tried.shares),
        )
        for design in plan.designs
        if design.check is not None
        for tried in design.check.tries
    ]


def price_rows(prices: Prices) -> list[tuple[str, str]]:
    """Return the prices that were given, one a row; none without any.

    Parameters
    ----------
    prices : Prices
    """
    if not prices.given:
        return []
    rows = [(f"{gpu}, an hour", number(price)) for gpu, price in prices.gpu_hour.items()]
    return [
        *rows,
        ("GB of global tier, an hour", number(prices.host_memory_gb_hour)),
        ("Gbit/s of NICs, an hour", number(prices.nic_gbps_hour)),
        ("node, an hour", number(prices.node_hour)),
    ]
