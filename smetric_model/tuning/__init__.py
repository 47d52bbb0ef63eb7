"""``tune``: OVERLOAD and HIT_RATIO for a scenario, and why (``docs/thresholds.md``)."""

from __future__ import annotations

from smetric_model.tuning.build import closed_form, needs_of, tune
from smetric_model.tuning.results import Needs, Tuning
from smetric_model.tuning.search import GridPoint, plateau, sweep
from smetric_model.tuning.situation import Situation, situation_of

__all__ = [
    "GridPoint",
    "Needs",
    "Situation",
    "Tuning",
    "closed_form",
    "needs_of",
    "plateau",
    "situation_of",
    "sweep",
    "tune",
]
