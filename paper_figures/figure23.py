"""Figure 23: prefill pool of 30B: TTFT of all requests at the operating load, full tier.

    python paper_figures/figure23.py [--preset medium] [--results RESULTS] [--out OUT]

One seed; crosses: what the paper states for SMetric.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.DISAGGREGATED
    made = panels.canvas(5.4, 3.6)
    axes = made.subplots(1, 1, squeeze=False)[0]
    panels.distributions(
        axes[0],
        source.profile("prefill-30b", "ttft_s", policies),
        policies,
        1.0,
        "TTFT [s]",
        marks=[(results.claim(c), at) for c, at in (("C63", 0.5), ("C64", 0.9), ("C65", 0.99))],
    )
    panels.logarithmic(axes[0])
    panels.legend(made, policies, [panels.paper_cross()])
    return made


if __name__ == "__main__":
    results.draw("figure23", __doc__, make)
