"""Figure 16: colocated, 30B: TPS of each scheduler by global tier, and where reuse comes from.

    python paper_figures/figure16.py [--preset medium] [--results RESULTS] [--out OUT]

As Figure 11 (a) and (b), with SMetric.
"""

from __future__ import annotations

import colocated
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    marks = {("full", p): results.claim(c) for p, c in (("smetric", "C34"), ("bailian", "C35"))}
    return colocated.tiers_and_reuse(source, "colocated-30b", marks, {})


if __name__ == "__main__":
    results.draw("figure16", __doc__, make)
