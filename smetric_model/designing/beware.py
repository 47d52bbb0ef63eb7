"""What a reader must know before any answer of a plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.analytic.demand import instance_of
from smetric_model.designing.results import DesignPlan, DesignResult
from smetric_model.designing.rows import counted, rate_text, tried_text
from smetric_model.designing.verdicts import FEW
from smetric_model.planning.words import number, percent
from smetric_model.workload.copy_notes import copies_note

if TYPE_CHECKING:
    from smetric_model.designing.check import Try

__all__ = ["disagrees", "warnings"]

#: share of the instances by which closed form and simulation may be apart (docs/plan.md)
APART = 0.1
#: the same of the share within SLO, for the rate that given instances attain (docs/agreement.md)
SHARE_APART = 0.14
#: the same where an instance is too much of the answer to be the measure (:data:`FEW`)
FEW_APART = 0.05
#: share by which the windows' rate may be off the rate asked for
RATE_OFF = 0.05


def warnings(plan: DesignPlan) -> tuple[str, ...]:
    """Return what to know before believing any answer, the gravest first; none where all is well.

    Parameters
    ----------
    plan : DesignPlan
    """
    refused = instance_of(plan.scenario).engine_refusal
    return tuple(text for text in (refused, _apart(plan), _copies(plan), _other_rate(plan)) if text)


def disagrees(plan: DesignPlan, design: DesignResult) -> bool:
    """Whether simulation contradicts the closed form of a design by more than it usually does.

    Instances: by more than one, more than :data:`APART` of them, and beyond the range over seeds;
    or, of up to :data:`~smetric_model.designing.verdicts.FEW`, where at the closed form's number
    the shares within SLO lie on either side of the wanted one, beyond the interval over seeds, and
    more than :data:`FEW_APART` apart.
    A capacity: by more than :data:`SHARE_APART` of the requests, and beyond the interval.

    Parameters
    ----------
    plan : DesignPlan
    design : DesignResult
    """
    check, closed = design.check, design.closed_form_instances
    if check is None or closed is None or check.at is None or math.isnan(check.at.mean):
        return False
    if plan.goal == "capacity":
        off = abs(check.at.mean - design.number("within_slo_ratio"))
        return off > max(SHARE_APART, check.at.half_width)
    if check.instances is None:
        # all that were tried miss the share
        return max(t.instances for t in check.tries) > max(closed + 1, (1 + APART) * closed)
    if _refuted(plan, design) is not None:
        return True
    low = check.low or check.instances
    high = math.inf if check.high is None else check.high
    if low <= closed <= high:
        return False
    return abs(closed - check.instances) > max(1, APART * max(closed, check.instances))


def _refuted(plan: DesignPlan, design: DesignResult) -> Try | None:
    """Return the simulation that refutes few instances of the closed form; None where none does."""
    check, closed = design.check, design.closed_form_instances
    if check is None or closed is None or closed > FEW:
        return None
    tried = check.tried(closed)
    if tried is None or not tried.mean + tried.half_width < plan.scenario.slo.attainment:
        return None
    off = design.number("within_slo_ratio") - tried.mean
    return tried if off > FEW_APART else None


def _apart(plan: DesignPlan) -> str:
    """Say that closed form and simulation contradict each other, and why they may."""
    simulated = [d for d in plan.designs if d.check is not None]
    apart = [d for d in simulated if disagrees(plan, d)]
    if not apart:
        return ""
    worst = plan.given if plan.given in apart else apart[0]
    text = f"closed form and simulation disagree here: {_both(plan, worst)}"
    if len(apart) > 1:
        text += f" (so do they for {len(apart):,} of the {counted(len(simulated), 'design')}"
        text += " that were simulated)"
    text += (
        ". Believe the simulated numbers: what the closed form alone says (designs that were not"
        " simulated, thresholds, what moves the answer, what tokens of each class cost) may be as"
        " far off"
    )
    work = plan.scenario.workload
    if work.preset is None and work.session_start != "poisson":
        text += (
            ". The closed form takes arrivals for random, and those of the trace may come in"
            " bursts: session_start = 'poisson' shows whether that is why"
        )
    return text


def _both(plan: DesignPlan, design: DesignResult) -> str:
    check, closed = design.check, design.closed_form_instances or 0
    assert check is not None
    assert check.at is not None
    if plan.goal == "capacity":
        share = percent(design.number("within_slo_ratio"))
        by = f"{share} within SLO by the closed form, {tried_text(check.at)} simulated"
        return f"{by}, {_of(design)}"
    said = f"{counted(closed, 'instance')} by the closed form"
    refuted = _refuted(plan, design)
    if refuted is not None:
        share = percent(design.number("within_slo_ratio"))
        said += f" ({share} within SLO; simulated {tried_text(refuted)})"
    if check.instances is None:
        most = max(t.instances for t in check.tries)
        return f"{said}, but simulation finds even {most:,} too few, {_of(design)}"
    return f"{said}, {check.instances:,} simulated, {_of(design)}"


def _of(design: DesignResult) -> str:
    return design.name if not design.changes else f"with {design.name}"


def _copies(plan: DesignPlan) -> str:
    """Say that the trace is laid over itself, and how often."""
    work, held = plan.scenario.workload, plan.placement.workload
    rate = plan.rate_rps if plan.goal == "instances" else plan.given.row.get("rate_rps")
    own = held.get("trace_rate_rps")
    if rate is None or own is None or work.preset is not None or work.session_start == "poisson":
        return ""
    return copies_note(rate, own, held["requests"], held["sessions"], held["source"])


def _other_rate(plan: DesignPlan) -> str:
    """Say that the simulated windows had another rate than was asked for."""
    design = plan.given
    rate = plan.rate_rps if plan.goal == "instances" else design.row.get("rate_rps")
    at = None if design.check is None else design.check.at
    if rate is None or at is None or math.isnan(at.arrival_rate_rps):
        return ""
    if abs(at.arrival_rate_rps / rate - 1) <= RATE_OFF:
        return ""
    less = at.arrival_rate_rps < rate
    return (
        f"the simulated windows had {number(at.arrival_rate_rps)} requests/s on average where"
        f" {rate_text(rate)} are asked for: what simulation confirms is confirmed for the"
        f" {'smaller' if less else 'larger'} rate (more seeds, or a longer workload.window_s, come"
        " nearer)"
    )
