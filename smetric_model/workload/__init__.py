"""What arrives: traces, their prefix structure, summaries.

The functions below load on first use: the analysis needs numba and pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from smetric_model.workload.trace import LoadReport, Trace, load_trace, write_trace

_HOMES = {
    "dispatch_balance": "balance",
    "service_times": "balance",
    "LruCurve": "curves",
    "hit_curve": "curves",
    "lru_curve": "curves",
    "optimal_hit_tokens": "curves",
    "reuse_intervals": "intervals",
    "share_within": "intervals",
    "working_set": "intervals",
    "common_prefix_blocks": "origin",
    "origin_shares": "origin",
    "reuse_origin": "origin",
    "PrefixTree": "prefix_tree",
    "PrefixTreeBuilder": "prefix_tree",
    "Touches": "reuse",
    "ideal_reuse": "reuse",
    "last_touches": "reuse",
    "reuse_table": "reuse",
    "infer_sessions": "sessions",
    "session_table": "sessions",
    "turn_table": "sessions",
    "with_poisson_starts": "starts",
    "summarise": "summary",
    "WorkloadParameters": "synthesis",
    "generate": "synthesis",
    "load_preset": "synthesis",
    "preset_names": "synthesis",
    "fit": "synthesis_fit",
    "replicate": "synthesis_scaling",
    "scale_to_rate": "synthesis_scaling",
    "superpose_copies": "synthesis_scaling",
    "superpose": "synthesis_scaling",
    "thin": "synthesis_scaling",
}

__all__ = ["LoadReport", "Trace", "load_trace", "write_trace", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{home}"), name)
