"""Figure 15: colocated, 30B: TPS within SLO over load, and the load of each instance.

    python paper_figures/figure15.py [--preset medium] [--results RESULTS] [--out OUT]

(a) Mean over seeds, bands from least to most; beside it SMetric's gain over the best of the
others, grey: the paper's at 1.0, 1.5 and 1.75 times.  (b) Tokens in flight by instance and minute,
one seed, each map on its own scale; above each the mean max ÷ mean of the *processed* tokens a
minute (all seeds), which decides the claims, and the paper's.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure

CLAIMS = {"smetric": "C24", "bailian": "C25", "lmetric": "C26", "load-balance": "C27"}


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.COLOCATED
    table = source.rows("colocated-30b", policies)
    made = panels.canvas(10, 6.4)
    top, bottom = made.subfigures(2, 1, height_ratios=(1, 1))
    left, right = top.subplots(1, 2, width_ratios=(3, 2))
    panels.sweep(left, table, policies, "tokens")
    panels.gains(right, table, {1.0: 0.0, 1.5: results.claim("C29"), 1.75: results.claim("C30")})
    panels.legend(top, policies, [panels.paper_mark()])
    at = source.rows("colocated-30b", policies, load=source.operating)
    panels.heatmaps(
        bottom,
        bottom.subplots(1, len(policies), sharey=True),
        source.profile("colocated-30b", "inflight_tokens", policies),
        policies,
        at.groupby("policy")["imbalance_processed_tokens_60s_mean"].mean(),
        {p: results.claim(c) for p, c in CLAIMS.items()},
        "tokens in flight ÷ each policy's P99",
        own_scale=True,
    )
    return made


if __name__ == "__main__":
    results.draw("figure15", __doc__, make)
