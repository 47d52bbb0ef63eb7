"""What more of something is worth, and what would move the answer, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.designing.candidates import TIER
from smetric_model.designing.names import policy_name
from smetric_model.designing.results import Answer, DesignPlan, Marginal
from smetric_model.designing.rows import cost_text, counted
from smetric_model.planning.words import RESOURCE_NAMES, byte_size, number, percent

if TYPE_CHECKING:
    from smetric_model.designing.sensitivity import Sensitivity

__all__ = ["needed_instances", "what_moves", "what_optimal", "what_tokens", "worth_it"]

_LITTLE = 0.5  # GPUs: less than half of one saves none for sure
_SMALL = 0.05  # change of the answer that is only named


# --- tier and link --------------------------------------------------------------------------------


def worth_it(plan: DesignPlan, key: str) -> Answer | None:
    """Say whether more of a global tier or link is worth it; None where neither was varied."""
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


def what_optimal(plan: DesignPlan) -> Answer | None:
    """Say how far from what no router can beat; None without a bound."""
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
                f" SLO with fewer than {counted(best.fewest_instances, 'instance')};"
                f" {router} needs {best.instances}. What is to be gained at most is"
                f" {counted(spare, 'instance')} ({percent(spare / best.instances, 0)})"
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


def what_tokens(plan: DesignPlan) -> Answer | None:
    """Say what a million tokens of each class cost; None where nothing can be billed."""
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


def what_moves(plan: DesignPlan) -> Answer | None:
    """Say which assumption moves the answer; None without sensitivities."""
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
