"""Figure 18: colocated, 235B: TPS within SLO over load, and the load of each instance.

    python paper_figures/figure18.py [--preset medium] [--results RESULTS] [--out OUT]

As Figure 15; grey in the gains: the paper's peak against Bailian's peak, at the operating load.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure

CLAIMS = {"smetric": "C42", "lmetric": "C43", "bailian": "C44", "load-balance": "C45"}


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.COLOCATED
    table = source.rows("colocated-235b", policies)
    made = panels.canvas(10, 6.4)
    top, bottom = made.subfigures(2, 1, height_ratios=(1, 1))
    left, right = top.subplots(1, 2, width_ratios=(3, 2))
    panels.sweep(left, table, policies, "tokens")
    panels.gains(right, table, {source.operating: results.claim("C40")})
    panels.legend(top, policies, [panels.paper_mark()])
    at = source.rows("colocated-235b", policies, load=source.operating)
    panels.heatmaps(
        bottom,
        bottom.subplots(1, len(policies), sharey=True),
        source.profile("colocated-235b", "inflight_tokens", policies),
        policies,
        at.groupby("policy")["imbalance_processed_tokens_60s_mean"].mean(),
        {p: results.claim(c) for p, c in CLAIMS.items()},
        "tokens in flight ÷ each policy's P99",
        own_scale=True,
    )
    return made


if __name__ == "__main__":
    results.draw("figure18", __doc__, make)
