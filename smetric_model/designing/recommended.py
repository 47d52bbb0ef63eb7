"""Which design to build: what the answers advise, in one place.

The given design stands unless another one beats it by a difference that shows
(:mod:`~smetric_model.designing.verdicts`).  Simulation decides where it was asked: a saving that
only the closed form sees of a design that was not simulated is a hint, no advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smetric_model.designing.candidates import rank
from smetric_model.designing.results import DesignResult, Goal
from smetric_model.designing.verdicts import GAP, savings, serves_fewer

__all__ = ["cheapest_of", "recommended_of"]


@dataclass(frozen=True)
class _Designs:
    designs: tuple[DesignResult, ...]

    @property
    def given(self) -> DesignResult:
        return self.designs[0]


def cheapest_of(designs: Sequence[DesignResult], goal: Goal, simulated: bool) -> str:
    """Return the name of the cheapest design that holds; empty where none does.

    Parameters
    ----------
    designs : sequence of DesignResult
        The given one first.
    goal : {"instances", "capacity"}
    simulated : bool
        Whether only what simulation confirms holds.
    """
    beside = _Designs(tuple(designs))
    holding = [
        d for d in designs if (not simulated or _confirmed(d)) and not serves_fewer(beside, d)
    ]
    ranked = rank(holding, goal)
    return ranked[0].name if ranked else ""


def recommended_of(designs: Sequence[DesignResult], goal: Goal, simulated: bool) -> str:
    """Return the name of the design to build.

    Parameters
    ----------
    designs : sequence of DesignResult
        The given one first.
    goal : {"instances", "capacity"}
    simulated : bool
        Whether designs were simulated.

    Returns
    -------
    str
        The given one's where no other is better by a difference that shows, or none holds.
    """
    given = designs[0]
    cheapest = next((d for d in designs if d.name == cheapest_of(designs, goal, simulated)), None)
    if cheapest is None:
        return given.name
    if given.scenario is None or (simulated and not _confirmed(given)):
        return cheapest.name
    if goal == "capacity":
        gain = _value(cheapest) / _value(given) - 1
        return cheapest.name if gain > GAP else given.name
    found = savings(_Designs(tuple(designs)), "simulated" if simulated else "closed form")
    return found[0].design.name if found and found[0].shows else given.name


def _confirmed(design: DesignResult) -> bool:
    return design.check is not None and design.check.instances is not None


def _value(design: DesignResult) -> float:
    """Return the requests/s for the money."""
    cost = design.bill.total if design.bill is not None else 0.0
    return design.number("rate_rps") / max(cost, 1e-300)
