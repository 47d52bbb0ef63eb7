"""What more of something is worth, and what would move the answer, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.designing.beside import but_simulated, together
from smetric_model.designing.candidates import TIER, only
from smetric_model.designing.hardware import spare_gpus
from smetric_model.designing.names import policy_name
from smetric_model.designing.pools import limited_by
from smetric_model.designing.results import Answer, DesignPlan, Marginal, Optimum
from smetric_model.designing.rows import cost_text, counted, counted_units, rate_text
from smetric_model.designing.verdicts import (
    GAP,
    NOTHING,
    Difference,
    closed_form_gap,
    difference,
)
from smetric_model.planning.words import RESOURCE_NAMES, byte_size, number, percent

if TYPE_CHECKING:
    from smetric_model.designing.sensitivity import Sensitivity

__all__ = ["needed_instances", "what_moves", "what_optimal", "what_tokens", "worth_it"]

_NONE = 0.05  # GPUs: a smaller difference is called nothing
_NONE_RATIO = 0.005  # of the GPUs: no closer are the closed form's rounds to their end
_SMALL = 0.05  # change of the answer that is only named
_DEAR = 1.25  # times the instances from which on a larger share is explained


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
    simulated: dict[float, Difference] = {}
    for design in only(plan.designs, key) if plan.goal == "instances" else []:
        apart = difference(plan, design, "simulated")
        if apart is not None:
            simulated[float(dict(design.changes)[key])] = apart
    parts = []
    if more is None and less is not None:
        question = "Would a smaller global tier do?" if key == TIER else "Would a slower link do?"
        costs = _shows(plan, less) and less.saved_gpus > 0
        smaller = simulated.get(less.from_value)
        if smaller is not None:
            costs = smaller.shows and smaller.more > 0
        parts.append("No" if costs else "Yes")
    if more is not None:
        parts.append(_more(plan, more, simulated.get(more.to_value)))
    if less is not None:
        parts.append(_less(plan, less))
        none = steps[0]
        if none.from_value == 0 and none is not less:
            cost = none.from_gpus - less.to_gpus
            text = counted_units(cost, "GPU", 2) if cost > _NONE else "nothing more"
            parts.append(f"None at all costs {text}{but_simulated(plan, key, 0.0)}")
    source = "closed form, between whole instances"
    parts += together(plan, key)
    if simulated:
        texts = [f"{apart.other} with {_size(key, value)}" for value, apart in simulated.items()]
        shown = [value for value, apart in simulated.items() if apart.shows]
        text = f"Simulation: {counted(given.instances or 0, 'instance')} as given"
        text += f", {', '.join(texts)}: "
        if shown:
            text += f"only {', '.join(_size(key, v) for v in shown)} differs by more than noise"
        else:
            text += NOTHING
            if any(apart.more for apart in simulated.values()):
                text += "; fewer or more by so little is noise"
        parts.append(text)
        source += f"; simulated, {len(plan.seeds)} seeds"
    return Answer(question, ". ".join(parts) + ".", source)


def _size(key: str, value: float) -> str:
    if key == TIER:
        return f"{byte_size(value)}/node" if value else "no global tier"
    return f"{number(8e-9 * value)} Gbps"


def _unit(step: Marginal) -> str:
    return "TB" if step.key == TIER else "Gbit/s"


def _shows(plan: DesignPlan, step: Marginal) -> bool:
    """Whether the closed form's difference is larger than it can tell apart."""
    assert plan.given.scenario is not None
    if plan.goal == "capacity":
        return abs(step.saved_gpus) > GAP * (plan.given.gpus or 0)
    return abs(step.saved_gpus) > closed_form_gap(plan) * plan.given.scenario.engine.tp


def _more(plan: DesignPlan, step: Marginal, simulated: Difference | None) -> str:
    """Say what the next larger value saves, and costs; simulation decides where it was asked."""
    unit, saved = _unit(step), step.saved_gpus
    shows = _shows(plan, step)
    if simulated is not None and simulated.shows:
        return _more_simulated(plan, step, simulated)
    fewer = shows and saved > 0 and simulated is None
    verdict = "No"
    if fewer:
        verdict = "It depends on the price"
        if math.isfinite(step.cost):
            verdict = "Yes" if step.worth > step.cost else "No"
    text = f"{verdict}: {_size(step.key, step.to_value)} ({number(step.units)} {unit} more in all)"
    nothing = _nothing(step)
    if nothing:
        text += " saves nothing by the closed form"
    elif saved > 0:
        each = f"{number(step.saved_per_unit, 2)} GPU per {unit}"
        text += f" saves {counted_units(saved, 'GPU', 2)} by the closed form, {each}"
    elif shows and simulated is None:
        text += f" needs {counted_units(-saved, 'GPU', 2)} more by the closed form"
    else:
        # more of it takes nothing away: so small a difference is the closed form's
        text += " gains nothing by the closed form"
    if not nothing and not shows:
        text += f": {NOTHING}"
    if math.isfinite(step.cost):
        text += f"; it costs {cost_text(plan, step.cost)} an hour"
        if fewer:
            text += f" and is worth {cost_text(plan, max(step.worth, 0.0))}"
    elif fewer and saved > 0 and not nothing:
        price = f"{number(step.break_even, 2)} of what a GPU does"
        text += f"; it pays where a {unit} costs less than {price}"
    return text


def _more_simulated(plan: DesignPlan, step: Marginal, apart: Difference) -> str:
    """Say what the next larger value saves where simulation sees it, and the closed form's word."""
    scenario = plan.given.scenario
    assert scenario is not None
    gpus, unit = -apart.more * scenario.engine.tp, _unit(step)
    value = f"{_size(step.key, step.to_value)} ({number(step.units)} {unit} more in all)"
    closed = f"by the closed form {number(abs(step.saved_gpus), 2)}"
    if step.saved_gpus < 0 and not _nothing(step):
        closed += " more"
    if gpus < 0:
        return f"No: {value} needs {counted_units(-gpus, 'GPU')} more, simulated"
    text = f"{value} saves {counted_units(gpus, 'GPU')}, simulated ({closed})"
    if math.isfinite(step.cost):
        worth = gpus * plan.prices.gpu_hour[scenario.engine.gpu]
        return (
            f"{'Yes' if worth > step.cost else 'No'}: {text}; it costs"
            f" {cost_text(plan, step.cost)} an hour and is worth {cost_text(plan, worth)}"
        )
    price = f"{number(gpus / step.units, 2)} of what a GPU does"
    return f"It depends on the price: {text}; it pays where a {unit} costs less than {price}"


def _nothing(step: Marginal) -> bool:
    """Whether what is saved is no more than the closed form's own roughness."""
    return abs(step.saved_gpus) <= max(_NONE, _NONE_RATIO * step.from_gpus)


def _less(plan: DesignPlan, step: Marginal) -> str:
    """Say what the next smaller value costs."""
    value, saved = _size(step.key, step.from_value), step.saved_gpus
    text = f"{value[:1].upper()}{value[1:]} ({number(step.units)} {_unit(step)} less)"
    if _nothing(step):
        saves = f" and saves {cost_text(plan, step.cost)} an hour" if step.cost > 0 else ""
        return f"{text} costs nothing{saves}{but_simulated(plan, step.key, step.from_value)}"
    # with less of it fewer instances may come out: that is no advice
    text += f" costs {counted_units(saved, 'GPU', 2)}" if saved > 0 else " costs nothing more"
    if math.isfinite(step.cost) and saved > 0:
        text += f" ({cost_text(plan, step.worth)}) and saves {cost_text(plan, step.cost)} an hour"
    but = but_simulated(plan, step.key, step.from_value)
    if but:
        return text + but
    return text if _shows(plan, step) else f"{text}: {NOTHING}"


# --- optimal, tokens, sensitivities ---------------------------------------------------------------


def what_optimal(plan: DesignPlan) -> Answer | None:
    """Say how far from what no router can beat; None without a bound."""
    best = plan.optimum
    if best is None:
        return None
    design, fewest = plan[best.design], best.fewest
    assert design.scenario is not None
    router = policy_name(design.scenario.router.policy)
    on = "this one" if best.instances == 1 else f"these {best.instances:,}"
    limit = RESOURCE_NAMES.get(best.binding, best.binding)
    # cut off: rounded up it could contradict the instances that follow from it
    multiple = f"{number(_floored(best.volume_load_multiple))} times this load" + (
        f", the best placement being limited by {limit}" if limit else ""
    )
    share = (
        f"On {on} {router} serves {percent(best.goodput_share)} of the tokens within SLO that any"
        " could on the same requests"
    )
    parts = [share, f"At any latency {on} could carry at most {multiple}"]
    if fewest is not None:
        parts = [_spare(best, fewest, router), _bounds(best, multiple, on), share]
    parts.append(
        "Bounds share all work between all instances and know the future: a real router may need"
        " more than they do"
    )
    return Answer(
        "How far from optimal is it?",
        _of(plan, ". ".join(parts) + "."),
        "bound (linear programs); simulated, one seed",
        "" if best.exact else "some program was not solved to its optimum, so it is weaker",
    )


def _spare(best: Optimum, fewest: int, router: str) -> str:
    """Say by how many instances the router is above the larger of both bounds."""
    spare = best.instances - fewest
    few = counted(fewest, "instance")
    if spare <= 0:
        return f"{router} is at the bound: no router could do with fewer than the {few} it needs"
    gain = f"{counted(spare, 'instance')} of {best.instances:,}"
    return (
        f"No router, cache or schedule could do with fewer than {few}; {router} needs"
        f" {best.instances:,}. At most {gain} ({percent(spare / best.instances, 0)})"
        f" {'is' if spare == 1 else 'are'} to be gained"
    )


def _floored(value: float) -> float:
    """Return a number cut off after three significant digits."""
    if not (math.isfinite(value) and value > 0):
        return value
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return math.floor(value * scale + 1e-9) / scale


def _bounds(best: Optimum, multiple: str, on: str) -> str:
    """Say what each of the two bounds in instances is."""
    parts = []
    if best.fewest_by_volume is not None:
        text = f"{best.fewest_by_volume:,} to carry the load at all, at any latency"
        parts.append(f"{text} ({on} could carry at most {multiple})")
    if best.fewest_instances is not None:
        parts.append(f"{best.fewest_instances:,} to serve as much within SLO")
    if len(parts) < 2:
        return f"That is the bound: {parts[0]}"
    return f"That is the larger of two bounds: {' and '.join(parts)}"


def what_tokens(plan: DesignPlan) -> Answer | None:
    """Say what a million tokens of each class cost; None where nothing can be billed."""
    design = plan.advised
    costs, bill = design.costs, design.bill
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
        text += f", with {counted_units(bill.total, 'GPU')}"
    spare = 0 if design.sized is None else spare_gpus(design.sized)
    if spare:
        text += f". Its nodes have {counted(spare, 'GPU')} more, which are not in it"
    return Answer(
        "What do tokens cost?",
        _of(plan, f"{text}."),
        "closed form",
        "GPU time by class of token from the step model, idle time in proportion; NICs by bytes"
        " moved, the tier's memory to reused tokens; the classes add up to the whole bill",
    )


def what_moves(plan: DesignPlan) -> Answer | None:
    """Say which assumption moves the answer; None without sensitivities."""
    if not plan.sensitivities:
        return None
    needed = needed_instances(plan)
    idle = _idle(plan)
    if idle:
        return Answer("What would move the answer?", _of(plan, f"{_ends(plan)}{idle}."),
                      "closed form", "one assumption changed at a time")  # fmt: skip
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
    text = _ends(plan) + "Instances needed with one assumption changed: " + "; ".join(large)
    if small:
        text += f". By less than {percent(_SMALL, 0)}: {', '.join(small)}"
    elastic = {
        moves[0].parameter: sum(m.elasticity for m in moves) / len(moves)
        for moves in by_key.values()
        if all(math.isfinite(m.elasticity) for m in moves)
    }
    if elastic:
        most = sorted(elastic, key=lambda name: -abs(elastic[name]))[:3]
        text += ". Capacity per 1% more (elasticity): " + ", ".join(
            f"{name} {_signed(elastic[name])}%" for name in most
        )
    return Answer(
        "What would move the answer?",
        _of(plan, text + "."),
        "closed form",
        "one at a time, at the recommended design and its instances: where these attain less, more"
        " are needed in proportion",
    )


def _idle(plan: DesignPlan) -> str:
    """Say that nothing moves the answer, where its instances bear every change; else empty."""
    count = plan.advised.instances
    if plan.goal != "instances" or plan.limit is None or plan.rate_rps is None or count is None:
        return ""
    if max(m.instances for m in plan.sensitivities) > count:
        return ""
    names = dict.fromkeys(f"{m.parameter} {m.change}" for m in plan.sensitivities)
    have = "this instance" if count == 1 else f"these {count:,} instances"
    return (
        f"None of the changes tried ({', '.join(names)}) needs more than {have}, which would serve"
        f" {number(plan.limit.rate_rps / plan.rate_rps, 2)} times the rate"
    )


def _of(plan: DesignPlan, text: str) -> str:
    """Name the design that a text is about where it is not the given one."""
    return text if plan.advised is plan.given else f"Of {plan.recommended}: {text}"


def _ends(plan: DesignPlan) -> str:
    """Say what ends the capacity, without which the changes cannot be understood."""
    limit = plan.limit
    if limit is None:
        return ""
    wanted = plan.scenario.slo.attainment
    if limit.saturated:
        return (
            f"Saturation ends the capacity ({limited_by(plan.advised)}), while"
            f" {percent(limit.within_slo_ratio)} are still within SLO: looser SLOs change nothing. "
        )
    text = (
        f"The share within SLO ends the capacity: {percent(limit.idle_within_slo_ratio)} where"
        f" nothing waits, {percent(wanted, 0)} at {rate_text(limit.rate_rps)}"
        f"{' in all' if plan.given.number('unservable_ratio') > 0 else ''}"
    )
    if any(
        m.key == "slo.attainment" and m.instances > _DEAR * needed_instances(plan)
        for m in plan.sensitivities
    ):
        text += " (the nearer a share is to the first, the emptier instances have to be)"
    return f"{text}. "


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
