"""Figure 21: prefill pool of 30B: prefill TPS within SLO over load, and each instance's load.

    python paper_figures/figure21.py [--preset medium] [--results RESULTS] [--out OUT]

As Figure 15, in prompt tokens; (b) unprefilled tokens by instance and minute, above each map their
mean max ÷ mean (all seeds) and the paper's; grey in the gains: the paper's over LMetric.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure

CLAIMS = {"smetric": "C59", "bailian": "C60", "lmetric": "C61", "dynamo": "C62"}


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.DISAGGREGATED
    table = source.rows("prefill-30b", policies)
    made = panels.canvas(10, 6.4)
    top, bottom = made.subfigures(2, 1, height_ratios=(1, 1))
    left, right = top.subplots(1, 2, width_ratios=(3, 2))
    panels.sweep(left, table, policies, "prompt tokens")
    panels.gains(right, table, {source.operating: results.claim("C55")})
    panels.legend(top, policies, [panels.paper_mark()])
    at = source.rows("prefill-30b", policies, load=source.operating)
    panels.heatmaps(
        bottom,
        bottom.subplots(1, len(policies), sharey=True),
        source.profile("prefill-30b", "unprefilled_tokens", policies),
        policies,
        at.groupby("policy")["imbalance_unprefilled_tokens_60s_mean"].mean(),
        {p: results.claim(c) for p, c in CLAIMS.items()},
        "unprefilled tokens ÷ each policy's P99",
        own_scale=True,
    )
    return made


if __name__ == "__main__":
    results.draw("figure21", __doc__, make)
