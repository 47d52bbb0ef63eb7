"""Figure 7: what triggers the requests.

    python paper_figures/figure7.py [TRACE ...] [--out out/figure7.png]

``agent``: the prompt brings a tool's result; ``user``: it does not; ``compaction``: recorded, or a
prompt below 0.6 of its parent's; ``first``: a session's first turn; ``unknown``: the trace does not
say.  How the reader of each format tells is in docs/traces.md.
"""

from __future__ import annotations

import common

from smetric_model.workload import turn_table

PARTS = (
    ("agent", "#2166ac"),
    ("user", "#92c5de"),
    ("first", "#4d9221"),
    ("compaction", "#b2182b"),
    ("unknown", "#cccccc"),
)


def main() -> None:
    """Command line."""
    options = common.parser(__doc__, "figure7").parse_args()
    traces = common.load(options)
    made, (axis,) = common.figure(width=6.4, height=1.5 + 0.55 * len(traces))
    for row, named in enumerate(traces):
        shares = turn_table(named.trace)["trigger"].value_counts(normalize=True)
        left = 0.0
        for part, color in PARTS:
            share = float(shares.get(part, 0.0))
            axis.barh(row, share, 0.6, left, color=color, label=part if row == 0 else None)
            if share > 0.045:
                dark = part in ("agent", "first", "compaction")
                axis.text(
                    left + share / 2,
                    row,
                    f"{share:.1%}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                    fontsize=8,
                )
            left += share
    axis.set_yticks(range(len(traces)), [common.label(t) for t in traces])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlim(0, 1)
    axis.set_xlabel("share of requests")
    axis.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=5,
        frameon=False,
        columnspacing=1.2,
        handlelength=1.2,
    )
    common.save(made, options.out)


if __name__ == "__main__":
    common.run(main)
