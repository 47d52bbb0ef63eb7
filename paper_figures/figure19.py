"""Figure 19: colocated, 235B: TPS of each scheduler by global tier, and where reuse comes from.

    python paper_figures/figure19.py [--preset medium] [--results RESULTS] [--out OUT]

As Figure 11 (a) and (b), with SMetric.
"""

from __future__ import annotations

import colocated
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    marks = {("full", "smetric"): results.claim("C47")}
    totals = {("full", "smetric"): results.claim_range("C48")}
    return colocated.tiers_and_reuse(source, "colocated-235b", marks, totals)


if __name__ == "__main__":
    results.draw("figure19", __doc__, make)
