"""Figure 22: prefill pool of 30B: prefill TPS of each scheduler by global tier, and reuse.

    python paper_figures/figure22.py [--preset medium] [--results RESULTS] [--out OUT]

As Figure 11 (a) and (b), in prompt tokens, with SMetric, and Dynamo in place of load balance.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.DISAGGREGATED
    table = source.rows("prefill-30b", policies, tier=None)
    made = panels.canvas(10, 3.9)
    left, right = made.subplots(1, 2)
    panels.peaks_by_tier(left, table, policies, "prompt tokens")
    panels.bars_legend(left, policies)
    marks = {("full", p): results.claim(c) for p, c in (("smetric", "C57"), ("bailian", "C58"))}
    totals = {("full", "smetric"): results.claim_range("C56")}
    panels.reuse(right, source.at_operating(table), policies, marks, totals)
    return made


if __name__ == "__main__":
    results.draw("figure22", __doc__, make)
