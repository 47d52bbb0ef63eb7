"""Figure 11: How the existing schedulers do: TPS by global tier, where reuse comes from, balance.

    python paper_figures/figure11.py [--preset medium] [--results RESULTS] [--out OUT]

(a) Most tokens within SLO over all loads; whiskers: least and most of the seeds.  (b) Share of the
prompts that is reused, at the operating load; white bars and the box: the paper's local shares and
its total.  (c) Tokens processed by each instance and minute of the first ten, one seed; above each
map the mean over minutes and seeds of max ÷ mean, and the paper's.
"""

from __future__ import annotations

import panels
import results
from matplotlib.figure import Figure


def make(source: results.Source) -> Figure:
    """Draw the figure."""
    policies = results.BASELINES
    table = source.rows("colocated-30b", policies, tier=None)
    made = panels.canvas(10, 6.8)
    top, bottom = made.subfigures(2, 1, height_ratios=(1, 1))
    left, right = top.subplots(1, 2)
    panels.peaks_by_tier(left, table, policies, "tokens")
    panels.bars_legend(left, policies)
    local = {"bailian": "C15", "lmetric": "C16", "load-balance": "C17"}
    low, high = results.claim_range("C14")
    panels.reuse(
        right,
        source.at_operating(table),
        policies,
        {("none", policy): results.claim(name) for policy, name in local.items()},
        {("full", policy): (low, high) for policy in policies},
    )
    full = source.rows("colocated-30b", policies, load=source.operating)
    ratios = full.groupby("policy")["imbalance_processed_tokens_60s_mean"].mean()
    panels.heatmaps(
        bottom,
        bottom.subplots(1, len(policies), sharey=True),
        source.profile("colocated-30b", "processed_tokens", policies),
        policies,
        ratios,
        {p: results.claim(c) for p, c in (("lmetric", "C19"), ("bailian", "C20"),
                                          ("load-balance", "C18"))},
        "tokens a minute ÷ P99 of all",
        own_scale=False,
    )  # fmt: skip
    return made


if __name__ == "__main__":
    results.draw("figure11", __doc__, make)
