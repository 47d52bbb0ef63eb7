"""Figure 17: colocated, 30B: TTFT and TPOT of all requests at the operating load, full tier.

    python paper_figures/figure17.py [--preset medium] [--results RESULTS] [--out OUT]

One seed; crosses: what the paper states for SMetric; the vertical line: the TPOT SLO.
"""

from __future__ import annotations

import latencies
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    marks = [(results.claim("C36"), 0.5)]
    return latencies.draw(source, "colocated-30b", marks)


if __name__ == "__main__":
    results.draw("figure17", __doc__, make)
