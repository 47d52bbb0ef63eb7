"""One pool or two: colocated against disaggregated, and what limits designs that need far more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.designing.results import Answer
from smetric_model.designing.rows import counted
from smetric_model.designing.space import PREFILL_SHARE
from smetric_model.designing.verdicts import NOTHING, difference
from smetric_model.planning.words import number

if TYPE_CHECKING:
    from smetric_model.designing.results import DesignPlan, DesignResult

__all__ = ["far_more", "limited_by", "what_pools"]

_FAR = 1.5  # times the given design's instances: then the reason is told
_RESOURCES = {
    "compute": "compute",
    "kv": "KV pool",
    "nic": "NICs",
    "nic_in": "inward NICs",
    "nic_out": "outward NICs",
    "pcie": "PCIe",
    "ttft": "TTFT SLO",
    "tpot": "TPOT SLO",
}


def limited_by(design: DesignResult) -> str:
    """Return in words what the closed form says limits a design at its instances.

    Parameters
    ----------
    design : DesignResult
    """
    name = str(design.row.get("binding_resource") or "")
    for pool in ("prefill", "decode"):
        if name.startswith(f"{pool}_"):
            inner = name.removeprefix(f"{pool}_")
            return f"{pool}'s {_RESOURCES.get(inner, inner)}"
    return _RESOURCES.get(name, name)


def far_more(plan: DesignPlan) -> list[str]:
    """Return why designs need far more instances than the given one, a line for each reason.

    Parameters
    ----------
    plan : DesignPlan
    """
    own = plan.given.closed_form_instances
    if own is None or plan.goal != "instances":
        return []
    reasons: dict[str, list[str]] = {}
    for design in plan.designs[1:]:
        count = design.closed_form_instances
        if count is not None and count > _FAR * own:
            reasons.setdefault(_reason(design), []).append(design.name)
    return [f"{'; '.join(names)}: limited by {why}" for why, names in reasons.items()]


def _reason(design: DesignResult) -> str:
    """Say what limits a design, and where links between pools do, which keys decide."""
    text = limited_by(design)
    assert design.scenario is not None
    section = design.scenario.cluster
    if section.serving != "disaggregated" or "NIC" not in text:
        return text
    return (
        f"{text}: the KV of every prompt is handed over between pools"
        f" (cluster.nics_per_node = {section.nics_per_node}, nic_bytes_per_s ="
        f" {section.nic_bytes_per_s:g}: vary them too)"
    )


def what_pools(plan: DesignPlan) -> Answer | None:
    """Say whether prefill and decode apart take fewer instances; None where that was not varied.

    Parameters
    ----------
    plan : DesignPlan
    """
    if plan.goal != "instances" or plan.given.closed_form_instances is None:
        return None
    others = [
        d
        for d in plan.designs[1:]
        if [k for k, _ in d.changes] == [PREFILL_SHARE] and d.closed_form_instances is not None
    ]
    if not others:
        return None
    best = min(others, key=lambda d: d.closed_form_instances or 0)
    apart = difference(plan, best, "simulated") or difference(plan, best, "closed form")
    assert apart is not None
    verdict = "No" if not apart.shows or apart.more > 0 else "Yes"
    text = (
        f"{verdict}: the best split that was tried, {best.name}, needs"
        f" {counted(apart.other, 'instance')}, as given {apart.given}"
    )
    if not apart.shows:
        text += f": {NOTHING}"
    elif apart.other > _FAR * apart.given:
        ratio = number(apart.other / apart.given, 2)
        text += f", {ratio} times as many, limited by {_reason(best)}"
    pooled = plan.scenario.cluster.serving == "disaggregated"
    question = "Other splits, or one pool?" if pooled else "Prefill and decode in two pools?"
    return Answer(question, f"{text}.", apart.source)
