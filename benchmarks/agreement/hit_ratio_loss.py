"""Why HIT_RATIO 0 loses tokens that ``predict`` does not: is it that requests crowd for minutes?

``python benchmarks/agreement/hit_ratio_loss.py`` takes the cases of ``thresholds.py`` in which
simulation loses most beyond the prediction between HIT_RATIO 0 and .5, simulates both again and
splits the difference of what misses the SLO (Kitagawa): how much of it comes from more requests at
instances that get more, or compute more, than the mean of their 300 s, and how much from more
misses at the same share.  Beside it, what predict says of TPOT and end-to-end time, and what misses
by whether a request found its context.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import design
import numpy as np
import pandas as pd
import thresholds as study
import thresholds_report

WINDOW_S = 300.0
EDGES = (0.0, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.2, np.inf)
#: a follow-up that computes more than this share of its prompt has lost its context
LOST = 0.5
COLUMNS = ("tpot_mean_s", "tpot_p90_s", "queue_mean_s", "e2e_mean_s", "recomputed_ratio")


def shares(table: pd.DataFrame, weight: Any, instances: int) -> Any:
    """Return each request's instance's part of a window's total, in multiples of an equal part.

    Parameters
    ----------
    table : DataFrame
        Requests: ``arrival_s``, ``instance``.
    weight : array_like of float, shape (n,)
        What is counted of each.
    instances : int
        Of the cluster.
    """
    window = ((table["arrival_s"] - table["arrival_s"].min()) // WINDOW_S).to_numpy(int)
    cell = window * instances + table["instance"].to_numpy(int)
    total = np.bincount(cell, weight, (window.max() + 1) * instances)
    mean = total.reshape(-1, instances).mean(axis=1)
    return total[cell] / np.maximum(mean[window], 1e-12)


def split(first: pd.DataFrame, second: pd.DataFrame, by: str) -> tuple[float, float]:
    """Return the difference of two missed shares, and the part due to how ``by`` is distributed.

    Parameters
    ----------
    first, second : DataFrame
        Requests: ``tokens``, ``missed`` (tokens), and the column.
    by : str
        The column; the other part is due to what misses at the same value of it.
    """
    law, miss = [], []
    for table in (first, second):
        place = np.digitize(table[by], EDGES) - 1
        tokens = np.bincount(place, table["tokens"], len(EDGES))
        missed = np.bincount(place, table["missed"], len(EDGES))
        law.append(tokens / tokens.sum())
        miss.append(np.where(tokens > 0, missed / np.maximum(tokens, 1e-12), np.nan))
    # where only one of them has requests, they miss as often
    miss = [np.nan_to_num(np.where(np.isnan(a), b, a)) for a, b in (miss, miss[::-1])]
    total = float(law[0] @ miss[0] - law[1] @ miss[1])
    return total, float((law[0] - law[1]) @ (miss[0] + miss[1]) / 2)


def cases(count: int) -> list[tuple[int, float]]:
    """Return number and OVERLOAD of those that lose most beyond the prediction."""
    simulated, predicted = thresholds_report.grids()
    beyond = {}
    for (number, variant), grid in simulated.items():
        for overload in (2.0, 3.0, 4.0) if variant == "base" else ():
            said = predicted[number, variant]
            kept = grid[overload, 0.0].mean() / grid[overload, 0.5].mean()
            gap = said[overload, 0.0] / said[overload, 0.5] - kept
            if gap > beyond.get(number, (0.0,))[0]:
                beyond[number] = (gap, overload)
    first = sorted(beyond, key=lambda number: -beyond[number][0])[:count]
    return [(number, beyond[number][1]) for number in first]


def _simulated(point: design.Point, overload: float, hit_ratio: float) -> tuple[Any, list[float]]:
    """Requests of all seeds, and the means of some columns."""
    from smetric_model.simulate import simulate

    tables, rows = [], []
    for seed in study.SEEDS:
        scenario = study.with_pair(point.scenario(seed), overload, hit_ratio)
        outcome = simulate(scenario, point.trace(seed))
        table = outcome.requests
        assert table is not None
        table = table[table["arrival_s"] >= point.warmup_s].copy()
        table["tokens"] = table["prompt_tokens"] + table["output_tokens"]
        table["missed"] = table["tokens"] * ~table["within_slo"].astype(bool)
        table["got"] = shares(table, np.ones(len(table)), point.instances)
        table["computed"] = shares(table, table["recomputed_tokens"], point.instances)
        tables.append(table)
        rows.append([outcome.number(name) for name in COLUMNS])
    return pd.concat(tables), list(np.mean(rows, axis=0))


def _missed(table: pd.DataFrame) -> str:
    lost = table["recomputed_tokens"] > LOST * table["prompt_tokens"]
    parts = [part["missed"].sum() / part["tokens"].sum() for part in (table[lost], table[~lost])]
    return f"{table['missed'].sum() / table['tokens'].sum():.3f}, {parts[0]:.2f}, {parts[1]:.3f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=8)
    options = parser.parse_args(arguments)
    from smetric_model import predict

    points = {point.number: point for point in design.load(study.NAME)}
    head = ["case, OVERLOAD", "missed at HIT_RATIO 0: all, of lost contexts, others", "at .5"]
    head += ["difference", "by requests in 300 s", "by tokens computed in 300 s"]
    head += ["0 ÷ .5, simulated and predicted: " + ", ".join(COLUMNS)]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for number, overload in cases(options.cases):
        point = points[number]
        (never, slow), (usual, fast) = (_simulated(point, overload, hit) for hit in (0.0, 0.5))
        total, by_requests = split(never, usual, "got")
        _, by_work = split(never, usual, "computed")
        rate = study.trace_rate(point)
        said = []
        for hit_ratio in (0.0, 0.5):
            asked = study.with_pair(point.scenario(study.SEEDS[0]), overload, hit_ratio)
            asked = asked.replace(**{"workload.rate_rps": rate})
            outcome = predict(asked, trace=point.trace(study.SEEDS[0]))
            said.append([outcome.number(name) for name in COLUMNS])
        ratios = ", ".join(
            f"{a / b:.2f} {c / d:.2f}" for a, b, c, d in zip(slow, fast, *said, strict=True)
        )
        print(
            f"| {number}, {overload:g} | {_missed(never)} | {_missed(usual)} | {total:.3f} |"
            f" {by_requests:+.3f} | {by_work:+.3f} | {ratios} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
