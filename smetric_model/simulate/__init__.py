"""``simulate``: every engine step of a cluster (``docs/simulate.md``)."""

from __future__ import annotations

from smetric_model._verb_module import make_callable
from smetric_model.simulate.run import Simulation, simulate, simulate_in_detail

__all__ = ["Simulation", "simulate", "simulate_in_detail"]

make_callable(__name__)
