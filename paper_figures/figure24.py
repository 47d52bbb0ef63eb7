"""Figure 24: What the pre-filter brings: SMetric and SMetric (basic), colocated, 30B, full tier.

    python paper_figures/figure24.py [--preset medium] [--results RESULTS] [--out OUT]

Top: tokens within SLO over load.  Bottom: share of requests that take longer, log-scaled, at the
operating load, one seed; crosses: what the paper states for SMetric.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = ("smetric", "smetric-basic")
    made = panels.canvas(8, 6.6)
    top, bottom = made.subfigures(2, 1)
    axis = top.subplots()
    panels.sweep(axis, source.rows("colocated-30b", policies), policies, "tokens")
    panels.legend(top, policies, [panels.paper_cross()])
    left, right = bottom.subplots(1, 2)
    panels.distributions(
        left,
        source.profile("colocated-30b", "ttft_s", policies),
        policies,
        1.0,
        "TTFT [s]",
        tail=True,
        marks=[(results.claim("C66"), 0.9), (results.claim("C67"), 0.99)],
    )
    panels.distributions(
        right,
        source.profile("colocated-30b", "tpot_s", policies),
        policies,
        1e3,
        "TPOT [ms]",
        tail=True,
        marks=[(results.claim("C68"), 0.95)],
    )
    return made


if __name__ == "__main__":
    results.draw("figure24", __doc__, make)
