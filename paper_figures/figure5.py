"""Figure 5: how much of the prompts' KV is reusable, and where the reuse comes from.

    python paper_figures/figure5.py [TRACE ...] [--out out/figure5.png]

Bars: share of prompt tokens that an infinite store would save, by the session that produced the
block first.  Figures in and beside the parts: share of *reuse* (intra, system, other sum to 1).
"""

from __future__ import annotations

import common
import numpy as np

from smetric_model.workload import origin_shares, reuse_origin

PARTS = (
    ("intra", "same session", "#2166ac"),
    ("system", "system prompt", "#92c5de"),
    ("other", "other sessions", "#f4a582"),
)

#: behind what may stand on the paper's line
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def main() -> None:
    """Command line."""
    options = common.parser(__doc__, "figure5").parse_args()
    traces = common.load(options)
    made, (axis,) = common.figure(width=2.6 + 1.8 * len(traces), height=3.8)
    bottom = np.zeros(len(traces))
    tables = [
        origin_shares(reuse_origin(t.trace), int(t.trace.column("prompt_tokens").sum()))
        for t in traces
    ]
    for part, name, color in PARTS:
        height = np.array([table.loc[part, "prompt_ratio"] for table in tables])
        bars = axis.bar(range(len(traces)), height, 0.5, bottom, color=color, label=name)
        for bar, table in zip(bars, tables, strict=True):
            share = table.loc[part, "reuse_ratio"]
            if not bar.get_height() > 0.005:
                continue
            small = bar.get_height() < 0.07
            axis.text(
                bar.get_x() + bar.get_width() * (1.04 if small else 0.5),
                bar.get_y() + bar.get_height() / 2,
                f"{share:.0%} of reuse",
                ha="left" if small else "center",
                va="center",
                color="white" if part == "intra" and not small else "black",
                fontsize=8,
                bbox=ON_WHITE if small else None,
            )
        bottom += height
    for index, total in enumerate(bottom):
        axis.text(index, total + 0.025, f"{total:.1%}", ha="center", weight="bold", bbox=ON_WHITE)
    axis.axhline(0.8, color=common.PAPER, linestyle=":", zorder=0, label="paper, both traces")
    axis.set_xticks(range(len(traces)), [common.label(t) for t in traces])
    axis.grid(axis="x", visible=False)
    axis.set_xlim(-0.6, len(traces) - 0.2)
    axis.set_ylim(0, 1.08)
    axis.set_ylabel("reusable share of prompt tokens")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)
    common.save(made, options.out)


if __name__ == "__main__":
    common.run(main)
