"""Short names of designs, from the keys in which they differ from the given one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from smetric_model.planning.words import byte_size, number

__all__ = ["design_name", "policy_name"]

_POLICIES = {
    "smetric": "SMetric",
    "smetric-basic": "SMetric basic",
    "smetric-slo": "SMetric SLO",
    "bailian": "Bailian",
    "lmetric": "LMetric",
    "dynamo": "Dynamo",
    "load-balance": "load balance",
}


def policy_name(policy: str) -> str:
    """Return a policy's name for people.

    Parameters
    ----------
    policy : str
        Key of the scenario.
    """
    return _POLICIES.get(policy, policy)


def _tier(value: Any) -> str:
    if value == 0:
        return "no tier"
    size = f"{number(value / 1e12)} TB" if value >= 1e12 else byte_size(value)
    return f"tier {size}"


_SHORT: dict[str, Callable[[Any], str]] = {
    "global_tier.bytes_per_node": _tier,
    "cluster.nic_bytes_per_s": lambda v: f"link {number(8e-9 * v)} Gbps",
    "cluster.nics_per_node": lambda v: f"{v} NICs/node",
    "router.policy": policy_name,
    "router.overload": lambda v: f"OVERLOAD {number(float(v))}",
    "router.hit_ratio": lambda v: f"HIT_RATIO {number(float(v))}",
    "engine.gpu": str,
    "engine.tp": lambda v: f"TP {v}",
    "llm.kv_dtype": lambda v: f"{v} KV",
    "llm.weight_dtype": lambda v: f"{v} weights",
    "prefill_share": lambda v: "colocated" if v == 0 else f"{v:.0%} prefill",
}


def design_name(changes: Iterable[tuple[str, Any]]) -> str:
    """Return a design's name: what differs from the given one; empty where nothing does.

    Parameters
    ----------
    changes : iterable of (str, value)
        Keys in which the design differs.
    """
    parts = []
    for key, value in changes:
        short = _SHORT.get(key)
        try:
            parts.append(short(value) if short else f"{key.rpartition('.')[2]} {value}")
        except (TypeError, ValueError):  # a value of the wrong kind is told when it is used
            parts.append(f"{key.rpartition('.')[2]} {value}")
    return ", ".join(parts)
