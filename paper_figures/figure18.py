"""Figure 18: colocated, 235B: TPS within SLO over load, and the load of each instance.

    python paper_figures/figure18.py [--preset medium] [--results RESULTS] [--out OUT]

As Figure 15; grey in the gains: the paper's peak against Bailian's peak, at the operating load.
"""

from __future__ import annotations

import colocated
import results
from matplotlib.figure import Figure

CLAIMS = {"smetric": "C42", "lmetric": "C43", "bailian": "C44", "load-balance": "C45"}


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    gains = {source.operating: results.claim("C40")}
    return colocated.load_and_instances(source, "colocated-235b", CLAIMS, gains)


if __name__ == "__main__":
    results.draw("figure18", __doc__, make)
