"""Figure 25: sensitivity to OVERLOAD and HIT_RATIO: colocated, 30B, operating load, full tier.

    python paper_figures/figure25.py [--preset medium] [--results RESULTS] [--out OUT]

Top: tokens within SLO against the default's (2 and 0.5) on the same trace, whiskers: least and most
of the seeds; grey: the spread that the paper states.  Bottom: local and global share of prompts.
"""

from __future__ import annotations

import panels
import results
from common import PAPER, POLICIES
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    made = panels.canvas(9.0, 5.4)
    upper, lower = made.subplots(2, 2, sharex="col", sharey="row", height_ratios=(3, 2))
    color = POLICIES["smetric"].color
    default = source.rows("colocated-30b", ["smetric"], load=source.operating)
    base = default.set_index("seed")["goodput_tps"]
    for top, bottom, key, column, name, spread in (
        (upper[0], lower[0], "router.overload", "overload", "OVERLOAD", "C69"),
        (upper[1], lower[1], "router.hit_ratio", "hit_ratio", "HIT_RATIO", "C70"),
    ):
        table = source.router_rows(key)
        values = sorted(table[column].unique())
        limit = 100 * results.claim(spread)
        if limit > 0:
            top.axhspan(-limit, limit, color=PAPER, alpha=0.15, linewidth=0)
        top.axhline(0, color="black", linewidth=0.7)
        for place, value in enumerate(values):
            rows = table[table[column] == value]
            local, fetched = rows["local_ratio"].mean(), rows["global_ratio"].mean()
            bottom.bar(place, local, 0.62, color=color)
            bottom.bar(place, fetched, 0.62, bottom=local, color="white", edgecolor=color,
                       hatch="////", linewidth=0.8)  # fmt: skip
            change = (100 * (rows.set_index("seed")["goodput_tps"] / base - 1)).dropna()
            top.plot([place, place], [change.min(), change.max()], color=color, linewidth=1.4)
            top.plot(place, change.mean(), "o", color=color, markersize=6)
        names = ["∞" if value > 1e6 else f"{value:g}" for value in values]
        bottom.set_xticks(range(len(values)), names)
        bottom.set_xlabel(name)
        bottom.grid(axis="x", visible=False)
        bottom.set_ylim(0, 1.0)
    upper[0].set_ylabel("tokens within SLO\nagainst the default [%]")
    lower[0].set_ylabel("reused ÷ prompt tokens")
    handles = [
        Line2D([], [], color=color, marker="o", label="tokens within SLO"),
        Patch(facecolor=PAPER, alpha=0.25, label="paper's spread of them"),
        Patch(facecolor=color, label="local"),
        Patch(facecolor="white", edgecolor=color, hatch="////", label="global"),
    ]
    made.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8.5)
    return made


if __name__ == "__main__":
    results.draw("figure25", __doc__, make)
