"""Figure 20: colocated, 235B: TTFT and TPOT of all requests at the operating load, full tier.

    python paper_figures/figure20.py [--preset medium] [--results RESULTS] [--out OUT]

One seed; crosses: what the paper states for SMetric; the vertical line: the TPOT SLO.
"""

from __future__ import annotations

import latencies
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    marks = [(results.claim("C49"), 0.5), (results.claim("C50"), 0.9)]
    return latencies.draw(source, "colocated-235b", marks)


if __name__ == "__main__":
    results.draw("figure20", __doc__, make)
