"""``tune``: OVERLOAD and HIT_RATIO for a scenario, and why (``docs/thresholds.md``).

And how many instances a rate needs (:func:`fewest_instances`).
"""

from __future__ import annotations

from smetric_model.tuning.build import closed_form, needs_of, tune
from smetric_model.tuning.results import Needs, SloShares, Tuning
from smetric_model.tuning.search import GridPoint, middle, plateau, sweep
from smetric_model.tuning.situation import Situation, situation_of
from smetric_model.tuning.sizing import InstancesNeeded, fewest_instances

__all__ = [
    "GridPoint",
    "InstancesNeeded",
    "Needs",
    "Situation",
    "SloShares",
    "Tuning",
    "closed_form",
    "fewest_instances",
    "middle",
    "needs_of",
    "plateau",
    "situation_of",
    "sweep",
    "tune",
]
