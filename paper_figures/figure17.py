"""Figure 17: colocated, 30B: TTFT and TPOT of all requests at the operating load, full tier.

    python paper_figures/figure17.py [--preset medium] [--results RESULTS] [--out OUT]

One seed; crosses: what the paper states for SMetric; the vertical line: the TPOT SLO.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.COLOCATED
    made = panels.canvas(10, 3.6)
    axes = made.subplots(1, 2, squeeze=False)[0]
    panels.distributions(
        axes[0],
        source.profile("colocated-30b", "ttft_s", policies),
        policies,
        1.0,
        "TTFT [s]",
        marks=[(results.claim("C36"), 0.5)],
    )
    panels.logarithmic(axes[0])
    panels.distributions(
        axes[1],
        source.profile("colocated-30b", "tpot_s", policies),
        policies,
        1e3,
        "TPOT [ms]",
    )
    limit_s = source.parameters.setup("colocated-30b").scenario.slo.tpot_s
    axes[1].axvline(1e3 * limit_s, color="black", linewidth=0.8)
    panels.logarithmic(axes[1])
    panels.legend(made, policies, [panels.paper_cross()])
    return made


if __name__ == "__main__":
    results.draw("figure17", __doc__, make)
