"""Figure 19: colocated, 235B: TPS of each scheduler by global tier, and where reuse comes from.

    python paper_figures/figure19.py [--preset medium] [--results RESULTS] [--out OUT]

As Figure 11 (a) and (b), with SMetric.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.COLOCATED
    table = source.rows("colocated-235b", policies, tier=None)
    made = panels.canvas(10, 3.9)
    left, right = made.subplots(1, 2)
    panels.peaks_by_tier(left, table, policies, "tokens")
    panels.bars_legend(left, policies)
    marks = {("full", "smetric"): results.claim("C47")}
    totals = {("full", "smetric"): results.claim_range("C48")}
    panels.reuse(right, source.at_operating(table), policies, marks, totals)
    return made


if __name__ == "__main__":
    results.draw("figure19", __doc__, make)
