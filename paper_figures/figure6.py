"""Figure 6: how soon KV is reused.

    python paper_figures/figure6.py [TRACE ...] [--out out/figure6.png]

Share of reused tokens whose prefix was last touched no longer ago than this: from the last
toucher's completion to the reusing request's arrival, or, where a trace records no completions
(dashed), from arrival to arrival, which is longer by the service time.
"""

from __future__ import annotations

import common
import numpy as np

from smetric_model.workload import reuse_intervals, share_within


def main() -> None:
    """Command line."""
    options = common.parser(__doc__, "figure6").parse_args()
    made, (axis,) = common.figure(height=3.8)
    limits = np.geomspace(0.1, 1e5, 400)
    for named, color in zip(common.load(options, sessions=False), common.COLORS, strict=False):
        table = reuse_intervals(named.trace)
        recorded = table["interval_s"].notna().mean() > 0.5
        column = "interval_s" if recorded else "start_to_start_s"
        shares = share_within(table[column], table["tokens"], limits)
        axis.plot(
            limits,
            shares,
            color=color,
            linestyle="-" if recorded else "--",
            label=named.name + ("" if recorded else " (start to start)"),
        )
    axis.plot([100], [0.9], "o", color=common.PAPER, label="paper, both traces")
    axis.set_xscale("log")
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("time since the prefix was last in use [s]")
    axis.set_ylabel("share of reused tokens")
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8)
    common.save(made, options.out)


if __name__ == "__main__":
    common.run(main)
