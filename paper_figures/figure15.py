"""Figure 15: colocated, 30B: TPS within SLO over load, and the load of each instance.

    python paper_figures/figure15.py [--preset medium] [--results RESULTS] [--out OUT]

(a) Mean over seeds, bands from least to most; beside it SMetric's gain over the best of the
others, grey: the paper's at 1.0, 1.5 and 1.75 times.  (b) Tokens in flight by instance and minute,
one seed, each map on its own scale; above each the mean max ÷ mean of the *processed* tokens a
minute (all seeds), which decides the claims, and the paper's.
"""

from __future__ import annotations

import colocated
import results
from matplotlib.figure import Figure

CLAIMS = {"smetric": "C24", "bailian": "C25", "lmetric": "C26", "load-balance": "C27"}


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    gains = {1.0: 0.0, 1.5: results.claim("C29"), 1.75: results.claim("C30")}
    return colocated.load_and_instances(source, "colocated-30b", CLAIMS, gains)


if __name__ == "__main__":
    results.draw("figure15", __doc__, make)
