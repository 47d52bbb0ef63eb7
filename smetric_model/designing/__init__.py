"""``plan``: the search over designs of a cluster, and what it says (``docs/plan.md``)."""

from __future__ import annotations

from smetric_model.designing.build import plan
from smetric_model.designing.check import Check, Try
from smetric_model.designing.costs import TokenCosts, pareto_front, token_costs
from smetric_model.designing.prices import Bill, Prices, bill_of, read_prices
from smetric_model.designing.results import (
    Answer,
    DesignPlan,
    DesignResult,
    Finding,
    Marginal,
    Optimum,
)
from smetric_model.designing.sensitivity import Sensitivity
from smetric_model.designing.space import Design, DesignSpace, default_space, read_space

__all__ = [
    "Answer",
    "Bill",
    "Check",
    "Design",
    "DesignPlan",
    "DesignResult",
    "DesignSpace",
    "Finding",
    "Marginal",
    "Optimum",
    "Prices",
    "Sensitivity",
    "TokenCosts",
    "Try",
    "bill_of",
    "default_space",
    "pareto_front",
    "plan",
    "read_prices",
    "read_space",
    "token_costs",
]
