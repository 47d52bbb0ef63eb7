"""Figure 25: Sensitivity to OVERLOAD and HIT_RATIO: colocated, 30B, operating load, full tier.

    python paper_figures/figure25.py [--preset medium] [--results RESULTS] [--out OUT]

Bars: local and global share of the reused prompt tokens; line: tokens within SLO against the
default's (2, 0.5), whiskers over seeds (paired with the default); grey band: the paper's spread.
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
    made = panels.canvas(9.4, 3.9)
    axes = made.subplots(1, 2, sharey=True)
    for axis, key, column, name, spread in (
        (axes[0], "router.overload", "overload", "OVERLOAD", "C69"),
        (axes[1], "router.hit_ratio", "hit_ratio", "HIT_RATIO", "C70"),
    ):
        table = source.router_rows(key)
        default = source.rows("colocated-30b", ["smetric"], load=source.operating)
        base = default.set_index("seed")["goodput_tps"]
        values = sorted(table[column].unique())
        right = axis.twinx()
        color = POLICIES["smetric"].color
        for place, value in enumerate(values):
            rows = table[table[column] == value]
            local, fetched = rows["local_ratio"].mean(), rows["global_ratio"].mean()
            axis.bar(place, local, 0.62, color=color, alpha=0.55)
            axis.bar(place, fetched, 0.62, bottom=local, color="white", edgecolor=color,
                     hatch="////", linewidth=0.8)  # fmt: skip
            change = 100 * (rows.set_index("seed")["goodput_tps"] / base - 1)
            right.plot([place, place], [change.min(), change.max()], color="black", linewidth=0.9)
            right.plot(place, change.mean(), "o", color="black", markersize=5)
        limit = 100 * results.claim(spread)
        right.axhspan(-limit, limit, color=PAPER, alpha=0.13, zorder=0)
        right.axhline(0, color="black", linewidth=0.6)
        right.set_ylim(-45, 15)
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        right.set_ylabel("TPS within SLO against the default [%]")
        names = ["∞" if value > 1e6 else f"{value:g}" for value in values]
        axis.set_xticks(range(len(values)), names)
        axis.set_xlabel(name)
        axis.grid(axis="x", visible=False)
        axis.set_ylim(0, 1.0)
    axes[0].set_ylabel("reused ÷ prompt tokens")
    handles = [
        Patch(facecolor=POLICIES["smetric"].color, alpha=0.55, label="local"),
        Patch(facecolor="white", edgecolor=POLICIES["smetric"].color, hatch="////", label="global"),
        Line2D([], [], color="black", marker="o", linestyle="none", label="TPS within SLO"),
        Patch(facecolor=PAPER, alpha=0.2, label="paper's spread of TPS"),
    ]
    made.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8.5)
    return made


if __name__ == "__main__":
    results.draw("figure25", __doc__, make)
