"""Figure 16: colocated, 30B: TPS of each scheduler by global tier, and where reuse comes from.

    python paper_figures/figure16.py [--preset medium] [--results RESULTS] [--out OUT]

As Figure 11 (a) and (b), with SMetric.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.COLOCATED
    table = source.rows("colocated-30b", policies, tier=None)
    made = panels.canvas(10, 3.9)
    left, right = made.subplots(1, 2)
    panels.peaks_by_tier(left, table, policies, "tokens")
    panels.bars_legend(left, policies)
    marks = {("full", p): results.claim(c) for p, c in (("smetric", "C34"), ("bailian", "C35"))}
    totals = {}
    panels.reuse(right, source.at_operating(table), policies, marks, totals)
    return made


if __name__ == "__main__":
    results.draw("figure16", __doc__, make)
