"""Figure 8: token use of sessions.

    python paper_figures/figure8.py [TRACE ...] [--out out/figure8.png]

Left: distribution of the tokens a session makes the cluster compute (prompt tokens that ideal
reuse leaves, plus output), beside all it sends.  Right: share of the computed tokens that belongs
to the most demanding sessions; the diagonal would be equal sessions.
"""

from __future__ import annotations

import common
import numpy as np

from smetric_model.workload import session_table


def main() -> None:
    """Command line."""
    options = common.parser(__doc__, "figure8").parse_args()
    made, (left, right) = common.figure(2, width=4.4, height=3.6)
    for named, color in zip(common.load(options), common.COLORS, strict=False):
        table = session_table(named.trace)
        total = table["prompt_tokens"] + table["output_tokens"]
        computed = table.get("computed_tokens", table["prompt_tokens"]) + table["output_tokens"]
        rank = (np.arange(len(table)) + 1) / len(table)
        left.plot(np.sort(computed), rank, color=color, label=named.name)
        left.plot(np.sort(total), rank, color=color, linestyle=":")
        share = np.cumsum(np.sort(computed)[::-1]) / computed.sum()
        right.plot(np.concatenate(([0], rank)), np.concatenate(([0], share)), color=color)
        tenth = float(np.interp(0.1, np.concatenate(([0], rank)), np.concatenate(([0], share))))
        right.plot([0.1], [tenth], "o", color=color, label=f"top 10 %: {tenth:.0%} ({named.name})")
    left.set_xscale("log")
    left.set_xlabel("tokens of a session (solid: computed, dotted: sent)")
    left.set_ylabel("share of sessions")
    left.legend(frameon=False, fontsize=8)
    right.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
    right.set_xlabel("share of sessions, most demanding first")
    right.set_ylabel("share of computed tokens")
    right.legend(frameon=False, fontsize=8, loc="lower right")
    common.save(made, options.out)


if __name__ == "__main__":
    common.run(main)
