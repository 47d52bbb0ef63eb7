"""What the figures of the two colocated clusters share: 15 and 18, 16 and 19."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import panels
import results
from matplotlib.figure import Figure

__all__ = ["load_and_instances", "tiers_and_reuse"]


def load_and_instances(
    source: results.Source,
    setup: str,
    imbalances: Mapping[str, str],
    gains: Mapping[float, float],
) -> Figure:
    """Draw tokens within SLO over load with SMetric's gain, and the load of each instance.

    ``imbalances``: the paper's claims by policy; ``gains``: its gains by load.
    """
    policies = results.COLOCATED
    table = source.rows(setup, policies)
    made = panels.canvas(10, 6.4)
    top, bottom = made.subfigures(2, 1, height_ratios=(1, 1))
    left, right = top.subplots(1, 2, width_ratios=(3, 2))
    panels.sweep(left, table, policies, "tokens")
    panels.gains(right, table, dict(gains))
    panels.legend(top, policies, [panels.paper_mark()])
    at = source.rows(setup, policies, load=source.operating)
    panels.heatmaps(
        bottom,
        bottom.subplots(1, len(policies), sharey=True),
        source.profile(setup, "inflight_tokens", policies),
        policies,
        at.groupby("policy")["imbalance_processed_tokens_60s_mean"].mean(),
        {policy: results.claim(claim) for policy, claim in imbalances.items()},
        "tokens in flight ÷ each policy's P99",
        own_scale=True,
    )
    return made


def tiers_and_reuse(
    source: results.Source, setup: str, marks: Mapping[Any, Any], totals: Mapping[Any, Any]
) -> Figure:
    """Draw the peak of each policy by global tier, and where reuse comes from.

    ``marks`` and ``totals``: the paper's local hit ratios and total reuse by tier and policy.
    """
    policies = results.COLOCATED
    table = source.rows(setup, policies, tier=None)
    made = panels.canvas(10, 3.9)
    left, right = made.subplots(1, 2)
    panels.peaks_by_tier(left, table, policies, "tokens")
    panels.bars_legend(left, policies)
    panels.reuse(right, source.at_operating(table), policies, dict(marks), dict(totals))
    return made
