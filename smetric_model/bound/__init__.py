"""Offline bounds: what no router can beat, and what one more unit of each resource would bring."""

from __future__ import annotations

from smetric_model._verb_module import make_callable
from smetric_model.bound.run import Bound, BoundOptions, bound, bound_in_detail
from smetric_model.bound.solvers import SolverOptions

__all__ = ["Bound", "BoundOptions", "SolverOptions", "bound", "bound_in_detail"]

make_callable(__name__)
