"""Policies side by side: who serves more tokens within SLO, by how much, and through what.

:func:`advantage` answers for one scenario; ``docs/map.md`` shows its answers over the space of
workloads and clusters.
"""

from __future__ import annotations

from smetric_model._verb_module import make_callable
from smetric_model.advantage.coordinates import COORDINATES, coordinates
from smetric_model.advantage.mechanisms import MECHANISMS, mechanisms
from smetric_model.advantage.run import BASELINES, Advantage, advantage
from smetric_model.advantage.verdicts import Verdict, relative_advantage, verdict

__all__ = [
    "BASELINES",
    "COORDINATES",
    "MECHANISMS",
    "Advantage",
    "Verdict",
    "advantage",
    "coordinates",
    "mechanisms",
    "relative_advantage",
    "verdict",
]

make_callable(__name__)
