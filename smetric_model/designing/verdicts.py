"""Whether two designs differ by more than what the numbers behind them can tell apart.

One rule for all answers.  Numbers of instances are compared within one source only, closed form
with closed form and simulated with simulated.  A difference *shows* where it is larger than

* one instance, in either source (simulated: not where up to :data:`FEW` instances serve it, one of
  which is a third of the answer or more, and the intervals over seeds are clear of each other);
* simulated: what the intervals over seeds leave open between the two, each towards the other;
* closed form: how far apart the distances between closed form and simulation are in this plan, and
  the largest of them; or a fifth of the instances where nothing was simulated (as far apart as the
  errors of two designs were ever seen).

A saving shows where it is larger than so many instances cost, what it owes to a difference of
instances that does not show left out.  Between GPUs of which one borrows the efficiencies of
another, step times are tens of per cent unsure: a saving then shows above :data:`CARRIED` of the
cost.  A design that can serve fewer of the requests (a smaller KV pool, a shorter context) saves
nothing: it does less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from smetric_model.designing.results import Compared, DesignResult

__all__ = [
    "CARRIED",
    "FEW",
    "GAP",
    "NOTHING",
    "SOURCES",
    "Difference",
    "Saving",
    "Source",
    "closed_form_gap",
    "difference",
    "instances_by",
    "savings",
    "serves_fewer",
]

Source = Literal["simulated", "closed form"]

#: the one that decides first
SOURCES: tuple[Source, ...] = ("simulated", "closed form")
NOTHING = "no difference that shows"
#: what the closed form cannot tell apart: the errors of two designs were up to 18 % apart
GAP = 0.2
#: share of a cost that efficiencies carried over from another GPU leave open ("tens of per cent")
CARRIED = 0.3
#: instances up to which one is too much of the answer to be called noise unseen
FEW = 3
_FEWER = 1e-3  # share of the requests that a design may serve less than the given one


@dataclass(frozen=True)
class Difference:
    """Instances of the given design and of another, by one source.

    Attributes
    ----------
    source : {"simulated", "closed form"}
    given, other : int
        Instances.
    tolerance : int
        Up to which a difference does not show [instances].
    """

    source: Source
    given: int
    other: int
    tolerance: int

    @property
    def more(self) -> int:
        """Instances that the other needs more."""
        return self.other - self.given

    @property
    def shows(self) -> bool:
        """Whether the difference is larger than the tolerance."""
        return abs(self.more) > self.tolerance


@dataclass(frozen=True)
class Saving:
    """Cost per hour of the given design and of another, by one source.

    Attributes
    ----------
    design : DesignResult
        The other.
    source : {"simulated", "closed form"}
    given, other : float
        Cost per hour.
    tolerance : float
        Up to which a saving does not show: what so many instances cost.
    borrowed : bool
        Whether the step times of one of the two rest on another GPU's efficiencies.
    """

    design: DesignResult
    source: Source
    given: float
    other: float
    tolerance: float
    borrowed: bool = False

    @property
    def saved(self) -> float:
        """What the other costs less."""
        return self.given - self.other

    @property
    def shows(self) -> bool:
        """Whether the saving is larger than the tolerance."""
        return self.saved > self.tolerance * (1 + 1e-9)


def instances_by(design: DesignResult, source: Source) -> int | None:
    """Return a design's instances by one source; None where it has none.

    A simulated search that was cut short has none: fewer might do.

    Parameters
    ----------
    design : DesignResult
    source : {"simulated", "closed form"}
    """
    if design.error:
        return None
    if source == "closed form":
        return design.closed_form_instances
    check = design.check
    return check.instances if check is not None and check.complete else None


def closed_form_gap(plan: Compared) -> int:
    """Return up to which the closed form's instances of two designs may differ by its error.

    Parameters
    ----------
    plan : Compared
    """
    pairs = [(instances_by(d, "closed form"), instances_by(d, "simulated")) for d in plan.designs]
    apart = [c - s for c, s in pairs if c is not None and s is not None]
    if apart:
        return max(1, max(apart) - min(apart), *map(abs, apart))
    return max(1, int(GAP * (plan.given.closed_form_instances or 0)))


def difference(plan: Compared, design: DesignResult, source: Source) -> Difference | None:
    """Compare a design's instances with the given one's.

    Parameters
    ----------
    plan : Compared
    design : DesignResult
    source : {"simulated", "closed form"}

    Returns
    -------
    Difference or None
        None where either has no number by that source.
    """
    given, other = instances_by(plan.given, source), instances_by(design, source)
    if given is None or other is None:
        return None
    if source == "closed form":
        return Difference(source, given, other, closed_form_gap(plan))
    more, less = (plan.given, design) if given > other else (design, plan.given)
    reach = max(_reach(more, down=True), _reach(less, False))
    known = more.check is not None and more.check.low and less.check is not None and less.check.high
    few = min(given, other) <= FEW and bool(known)
    return Difference(source, given, other, reach if few else max(1, reach))


def _reach(design: DesignResult, down: bool) -> int:
    """Instances from the confirmed number to the end of its simulated range."""
    check = design.check
    assert check is not None
    assert check.instances is not None
    end = check.low if down else check.high
    return 0 if end is None else abs(check.instances - end)


def savings(plan: Compared, source: Source) -> Sequence[Saving]:
    """Return what the other designs cost beside the given one, by one source, cheapest first.

    Those whose saving shows stand before the others.

    Parameters
    ----------
    plan : Compared
        With the goal of instances.
    source : {"simulated", "closed form"}
    """
    own = _cost(plan.given, source)
    if own is None:
        return []
    found = []
    for design in plan.designs[1:]:
        apart, cost = difference(plan, design, source), _cost(design, source)
        if apart is None or cost is None or serves_fewer(plan, design):
            continue
        each = max(own / apart.given, cost / apart.other)
        # fewer instances by a difference that does not show save nothing
        unsure = apart.tolerance
        if not apart.shows:
            unsure = max(1, unsure) + max(-apart.more, 0)
        borrowed = _borrowed(plan.given, design)
        left_open = CARRIED * max(own, cost) if borrowed else 0.0
        found.append(Saving(design, source, own, cost, unsure * each + left_open, borrowed))
    return sorted(found, key=lambda s: (not s.shows, s.other, len(s.design.changes)))


def serves_fewer(plan: Compared, design: DesignResult) -> bool:
    """Whether a design can serve fewer of the requests than the given one.

    Parameters
    ----------
    plan : Compared
    design : DesignResult
    """
    own, other = (d.number("unservable_ratio") for d in (plan.given, design))
    return other > own + _FEWER


def _borrowed(given: DesignResult, other: DesignResult) -> bool:
    """Whether two designs are of different GPUs, and one borrows efficiencies."""
    gpus = {d.scenario.engine.gpu for d in (given, other) if d.scenario is not None}
    return len(gpus) > 1 and (given.carried_over or other.carried_over)


def _cost(design: DesignResult, source: Source) -> float | None:
    if source == "closed form":
        cost = design.closed_form_cost
        return cost if math.isfinite(cost) else None
    return None if design.bill is None else design.bill.total
