"""Simulated designs that change one key with others: what they say beside the closed form."""

from __future__ import annotations

from smetric_model.designing.results import DesignPlan, DesignResult
from smetric_model.designing.rows import counted, tried_text
from smetric_model.designing.verdicts import NOTHING, SOURCES, Difference, difference

__all__ = ["but_simulated", "together"]


def _needing_more(plan: DesignPlan, key: str) -> list[tuple[DesignResult, Difference]]:
    """Return designs that change the key, for which simulation finds more than the closed form."""
    if plan.goal != "instances":
        return []
    found = []
    for design in plan.designs[1:]:
        apart, closed = (difference(plan, design, source) for source in SOURCES)
        if key not in dict(design.changes) or apart is None or closed is None:
            continue
        if apart.more > max(closed.more, 0):
            found.append((design, apart))
    return found


def but_simulated(plan: DesignPlan, key: str, value: float) -> str:
    """Say where simulation sees a need at a value that the closed form does not; else empty.

    Parameters
    ----------
    plan : DesignPlan
    key : str
    value : float
        Of the key.
    """
    seen = [
        (design, apart)
        for design, apart in _needing_more(plan, key)
        if float(dict(design.changes)[key]) == value and apart.shows
    ]
    if not seen:
        return ""
    design, apart = min(seen, key=lambda pair: (len(pair[0].changes), pair[1].other))
    text = f"{counted(apart.other, 'instance')} ({apart.given:,} as given"
    tried = None if design.check is None else design.check.tried(apart.given)
    if tried is not None:
        text += f"; {tried_text(tried, plan.scenario.slo.attainment)} within SLO with as many"
    return f" by the closed form, but simulation of {design.name} needs {text})"


def together(plan: DesignPlan, key: str) -> list[str]:
    """Say what simulation finds where the key was changed with others, if it is within noise.

    Parameters
    ----------
    plan : DesignPlan
    key : str
    """
    texts = [
        f"{design.name} needs {apart.other:,}"
        for design, apart in _needing_more(plan, key)
        if len(design.changes) > 1 and not apart.shows
    ]
    if not texts:
        return []
    return [f"Simulated together with other changes, {'; '.join(texts)}: {NOTHING}"]
