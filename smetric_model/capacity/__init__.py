"""``capacity``: the most a cluster serves within its SLO over all rates, by any verb."""

from __future__ import annotations

from smetric_model._verb_module import make_callable
from smetric_model.capacity.results import Capacity
from smetric_model.capacity.run import capacity

__all__ = ["Capacity", "capacity"]

make_callable(__name__)
