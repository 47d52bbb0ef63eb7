"""Figure 9: imbalance when each request goes to the instance with the fewest tokens in flight.

    python paper_figures/figure9.py [TRACE ...] [--instances 32] [--window 60]

Distribution over windows of max ÷ mean over the instances: solid, tokens of the requests dispatched
in the window; dotted, time average of tokens in flight (the paper does not say which).  Windows
before every instance could have had a request are left out, as are those after the last arrival.
The load of a trace decides this figure: requests per instance and minute stand in the legend (the
paper's clusters have 43 and 48).
"""

from __future__ import annotations

import common
import numpy as np

from smetric_model.workload import dispatch_balance


def main() -> None:
    """Command line."""
    parser = common.parser(__doc__, "figure9")
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--window", type=float, default=60.0, help="[s]")
    options = parser.parse_args()
    made, (axis,) = common.figure()
    traces = common.load(options, sessions=False, clock=True)
    for named, color in zip(traces, common.COLORS, strict=False):
        table = dispatch_balance(named.trace, options.instances, window_s=options.window)
        table = table[table["requests"].cumsum() >= options.instances].iloc[:-1]
        per_minute = table["requests_per_instance"].mean() * 60 / options.window
        for column, style in (
            ("imbalance_processed_tokens", "-"),
            ("imbalance_inflight_tokens", ":"),
        ):
            values = np.sort(table[column].dropna())
            if not values.size:
                continue
            rank = (np.arange(values.size) + 1) / values.size
            text = f"{named.name}: {per_minute:.1f} requests/instance/min"
            axis.plot(
                values, rank, color=color, linestyle=style, label=text if style == "-" else None
            )
    for median, worst, mark in ((1.7, 2.4, "o"), (1.5, 2.1, "s")):
        axis.plot([median, worst], [0.5, 1.0], mark, color=common.PAPER, markersize=4)
    axis.plot([], [], "o", color=common.PAPER, markersize=4, label="paper: median, worst window")
    axis.set_xlim(left=1)
    axis.set_ylim(0, 1.03)
    axis.set_xlabel(
        f"max ÷ mean over {options.instances} instances, windows of {options.window:g} s"
    )
    axis.set_ylabel("share of windows")
    axis.legend(frameon=False, fontsize=8)
    common.save(made, options.out)


if __name__ == "__main__":
    common.run(main)
