"""Figure 12: follow-ups that return to the instance of their session's first turn.

    python paper_figures/figure12.py [--preset medium] [--results RESULTS] [--out OUT]

At the operating load with the full tier; bars: mean over seeds, whiskers: least and most.
"""

from __future__ import annotations

import panels
import results
from common import PAPER, POLICIES
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = ("load-balance", "lmetric", "bailian", "smetric")
    table = source.rows("colocated-30b", policies, load=source.operating)
    made = panels.canvas(5.4, 3.4)
    axis = made.subplots()
    for place, policy in enumerate(policies):
        look = POLICIES[policy]
        values = table[table["policy"] == policy]["return_to_first_ratio"]
        axis.bar(place, values.mean(), 0.7, color=look.color, hatch=look.hatch, edgecolor="white")
        axis.plot([place, place], [values.min(), values.max()], color="black", linewidth=0.9)
        axis.text(place, values.max() + 0.015, f"{values.mean():.1%}", ha="center", fontsize=9)
    for policy, name in (("load-balance", "C21"), ("bailian", "C22")):
        axis.plot(policies.index(policy), results.claim(name), "_", color=PAPER, markersize=34,
                  markeredgewidth=2.4)  # fmt: skip
    axis.set_xticks(range(len(policies)), [POLICIES[p].name for p in policies])
    axis.grid(axis="x", visible=False)
    axis.set_ylim(0, 1.08)
    axis.set_ylabel("follow-ups back at the first instance")
    made.legend(handles=[panels.paper_mark()], loc="outside upper right", frameon=False)
    return made


if __name__ == "__main__":
    results.draw("figure12", __doc__, make)
