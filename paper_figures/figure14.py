"""Figure 14: Imbalance per 30 s window, with and without SMetric's pre-filter.

    python paper_figures/figure14.py [--preset medium] [--results RESULTS] [--out OUT]

Tokens processed by the busiest instance ÷ mean of all; one seed's windows at the operating load
with the full tier.  The paper states that the pre-filter lowers it beyond the 75th percentile;
stars: that percentile and the 90th, mean over seeds.
"""

from __future__ import annotations

import panels
import results
from common import POLICIES
from matplotlib.figure import Figure
from matplotlib.lines import Line2D


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = ("smetric", "smetric-basic")
    profile = source.profile("colocated-30b", "imbalance_30s", policies)
    table = source.rows("colocated-30b", policies, load=source.operating)
    made = panels.canvas(5.4, 3.6)
    axis = made.subplots()
    panels.distributions(axis, profile, policies, 1.0, "max ÷ mean over instances, windows of 30 s")
    axis.set_ylabel("share of windows")
    for policy in policies:
        rows = table[table["policy"] == policy]
        for name, share in (("p75", 0.75), ("p90", 0.9)):
            value = rows[f"imbalance_processed_tokens_30s_{name}"].mean()
            axis.plot(value, share, "*", color=POLICIES[policy].color, markersize=13,
                      markeredgecolor="black", zorder=5)  # fmt: skip
    axis.set_xlim(left=1)
    star = Line2D([], [], color="white", marker="*", markersize=12, markeredgecolor="black",
                  linestyle="none", label="P75, P90 of all seeds")  # fmt: skip
    panels.legend(made, policies, [star])
    return made


if __name__ == "__main__":
    results.draw("figure14", __doc__, make)
