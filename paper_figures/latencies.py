"""TTFT and TPOT of a colocated set-up side by side: what Figures 17 and 20 have in common."""

from __future__ import annotations

from typing import Any

import panels
import results
from matplotlib.figure import Figure


def draw(source: results.Source, setup: str, ttft_marks: list[Any]) -> Figure:
    """Draw the distributions over all requests; the vertical line is the TPOT SLO."""
    policies = results.COLOCATED
    made = panels.canvas(10, 3.6)
    axes = made.subplots(1, 2, squeeze=False)[0]
    ttft, tpot = (source.profile(setup, name, policies) for name in ("ttft_s", "tpot_s"))
    panels.distributions(axes[0], ttft, policies, 1.0, "TTFT [s]", marks=ttft_marks)
    panels.distributions(axes[1], tpot, policies, 1e3, "TPOT [ms]")
    limit_s = source.parameters.setup(setup).scenario.slo.tpot_s
    axes[1].axvline(1e3 * limit_s, color="black", linewidth=0.8)
    for axis in axes:
        panels.logarithmic(axis)
    panels.legend(made, policies, [panels.paper_cross()])
    return made
