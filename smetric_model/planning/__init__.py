"""``plan``: how many tokens per second a cluster can serve within its SLO, and why.

Three columns answer under three assumptions about reuse (see
:mod:`smetric_model.analytic.predict`): nothing reused, this cluster's tiers, and a store that
forgets nothing.  The truth under a router lies between the first and the last.
"""

from __future__ import annotations

from smetric_model.planning.build import plan
from smetric_model.planning.results import (
    ENDS,
    EndPlan,
    FetchAdvice,
    Plan,
    StepShare,
    TierDemand,
)

__all__ = ["ENDS", "EndPlan", "FetchAdvice", "Plan", "StepShare", "TierDemand", "plan"]
