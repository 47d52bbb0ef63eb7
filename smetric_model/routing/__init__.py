"""Routing policies and turn inference: pure functions shared by simulator and live router.

The names below load on first use; the compiled twin is in
:mod:`smetric_model.routing.compiled`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Decision": "policy",
    "LoadUnit": "policy",
    "Loads": "policy",
    "Policy": "policy",
    "Reason": "policy",
    "RoutingRequest": "policy",
    "TieState": "policy",
    "POLICIES": "registry",
    "describe": "registry",
    "make_policy": "registry",
    "FollowUp": "thresholds",
    "ThresholdForm": "thresholds",
    "TurnInfo": "turn",
    "infer_turn": "turn",
}

if TYPE_CHECKING:
    from smetric_model.routing.policy import (
        Decision,
        Loads,
        LoadUnit,
        Policy,
        Reason,
        RoutingRequest,
        TieState,
    )
    from smetric_model.routing.registry import POLICIES, describe, make_policy
    from smetric_model.routing.thresholds import FollowUp, ThresholdForm
    from smetric_model.routing.turn import TurnInfo, infer_turn

__all__ = [
    "POLICIES",
    "Decision",
    "FollowUp",
    "LoadUnit",
    "Loads",
    "Policy",
    "Reason",
    "RoutingRequest",
    "ThresholdForm",
    "TieState",
    "TurnInfo",
    "describe",
    "infer_turn",
    "make_policy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
