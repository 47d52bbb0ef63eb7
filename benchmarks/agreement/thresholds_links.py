"""Whether OVERLOAD* falls with link speed: pairs of scenarios that differ in nothing else.

``python benchmarks/agreement/thresholds_links.py STEP ...`` with the steps, in order,

``draw``    of a seeded Latin hypercube of clusters in which moves fetch (a global tier 1.5 to 6
            times the local ones, nodes of full size, prompts 1 to 2 times the preset's, rates .5
            to .85 of the largest with a steady state at (2, .5) on the slower interfaces), the
            first 20 candidates that pass :func:`refused`; odd ones always fetch, even ones
            recompute where that is faster;
``line``    OVERLOAD at HIT_RATIO .5 simulated with interfaces of 5 to 40 Gbps ("slow") and 8 times
            as fast ("fast"), six seeds;
``tune``    ``tune``, the closed form and ``predict`` for both, at the rate that the traces have;
``keep``    what was simulated and predicted, in ``thresholds-links-lines.csv``, and what ``tune``
            said, in ``thresholds-links-tuned.csv``;
``report``  directions, from these two files.

Region, rule and statistics were fixed before any of it was simulated.  No simulation decides which
candidates are taken (a pilot sets the pace at which a trace is recorded), and ``predict`` decides
by sizes only, not by directions.  The statistic is that of the other pairs (``leaning`` of the
tokens within SLO, OVERLOAD 3, 4, inf against 1.5 and 2; a pair tells by two standard errors).
Looked at beside it: the leaning of 1 ÷ mean end-to-end time, which knows no SLO; the far leaning, 2
to inf against 1 and 1.25; where the OVERLOADs within 1 % of the best lie (mean of 1/OVERLOAD).
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import design
import links_report
import numpy as np
import pandas as pd
import run
import thresholds as study
from scipy.stats import qmc

from smetric_model.analytic.cluster_demand import with_sessions
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import cluster_form
from smetric_model.errors import SolveError, UnstableError
from smetric_model.tuning import situation_of
from smetric_model.tuning.search import within_slo_tps

SEED = 20_260_704
CANDIDATES, PAIRS = 120, 20
FASTER = 8.0
SEEDS = links_report.SEEDS
OVERLOADS, HIT_RATIO = study.OVERLOADS, study.CONSTANT[1]
LINE = [(overload, HIT_RATIO) for overload in OVERLOADS]
NAME = links_report.NAME
VARIANTS = ("slow", "fast")
#: least share of what a move loses that is fetched, and of the best tokens that the worst loses
FETCHED, SPREAD = 0.5, 0.05
#: most that writes may ask of the slow NICs
WRITES = 0.9
Row = dict[str, Any]


def _candidate(number: int, u: Any) -> design.Point:
    """A global tier that holds what moves and full nodes; else as the cases of ``tune``."""
    log, rounded = design._log, design._rounded
    point = study.candidate(number, u)
    return replace(
        point,
        # two nodes of 8, or 2 to 8 nodes of 2
        instances=16 if point.tp == 1 else 2 * round(log(u[1], 2, 8)),
        load=rounded(0.5 + 0.35 * u[2]),
        tier_ratio=rounded(1.5 + 4.5 * u[3]),
        nic_bytes_per_s=rounded(log(u[11], 0.625e9, 5e9)),
        recompute_if_faster=number % 2 == 0,
    )


def drawn() -> list[design.Point]:
    """Return the candidates as drawn."""
    cube = qmc.LatinHypercube(d=12, rng=np.random.default_rng(SEED))
    return [_candidate(number, u) for number, u in enumerate(cube.random(CANDIDATES))]


def variant(point: design.Point, name: str) -> design.Point:
    """Return a candidate with its own interfaces, or faster ones."""
    if name == "fast":
        return replace(point, nic_bytes_per_s=FASTER * point.nic_bytes_per_s)
    return point


def refused(point: design.Point) -> str:
    """Return why a candidate is not taken, by the closed form; empty where it is.

    Both variants must have a steady state, and serve something within SLO, at OVERLOAD 1.5 to inf;
    the slow one's writes must not lag behind; at (2, .5) a mean move must fetch at least half of
    what it loses on the fast one; tokens within SLO must differ by at least 5 % between the best
    and the worst OVERLOAD on one of the two.
    """
    trace = point.trace(SEEDS[0])
    spread = 0.0
    for name in VARIANTS:
        scenario = variant(point, name).scenario().replace(**{"workload.rate_rps": point.rate_rps})
        demand = with_sessions(demand_of(scenario, trace))
        cluster = cluster_form(scenario, demand)
        try:
            state = cluster.at(point.rate_rps)
        except (UnstableError, SolveError):
            return "no steady state, or nothing within SLO"
        if state.fetches.write_utilisation > WRITES:
            return "writes lag behind"
        situation = situation_of(cluster, state)
        if name == "fast" and situation.fetched_tokens < FETCHED * situation.moved_tokens:
            return "moves do not fetch"
        # from inf downwards, OVERLOAD 1 and 1.25 only as long as they are needed to tell
        line: list[float] = []
        for overload in reversed(OVERLOADS):
            if overload < 1.5 and spread >= SPREAD:
                break
            line.append(within_slo_tps(study.with_pair(scenario, overload, HIT_RATIO), demand))
            if overload >= 1.5 and line[-1] <= 0:
                return "no steady state, or nothing within SLO"
            spread = max(spread, 1.0 - min(line) / max(line))
    return "" if spread >= SPREAD else "thresholds do not matter"


def steady_rps(point: design.Point) -> float:
    """Return the largest rate with a steady state, as the closed form has it [requests/s]."""
    scenario = point.scenario()
    trace = point.trace(1, length_s=max(12_000 / point.rate_rps, 3_600.0))
    cluster = cluster_form(scenario, with_sessions(demand_of(scenario, trace)))

    def steady(rate_rps: float) -> bool:
        try:
            cluster.at(rate_rps)
        except (UnstableError, SolveError):
            return False
        return True

    low, high = 0.1 * point.capacity_rps, 4.0 * point.capacity_rps
    for _ in range(8):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if steady(middle) else (low, middle)
    return low


def _completed(point: design.Point) -> tuple[design.Point, str]:
    point = design.completed(point)
    most = design._rounded(steady_rps(point), 3)
    point = replace(point, capacity_rps=most, rate_rps=design._rounded(point.load * most))
    window = min(max(study.REQUESTS / point.rate_rps, 1_800.0), 14_400.0)
    point = design.paced(replace(point, window_s=60.0 * round(window / 60)))
    return point, refused(point)


def draw(jobs: int) -> None:
    """Complete candidates, in their order, until enough are taken, and keep those."""
    taken: list[design.Point] = []
    reasons: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(jobs, run._quiet) as pool:
        for point, reason in pool.imap(_completed, drawn(), chunksize=1):
            reasons[reason or "taken"] += 1
            taken += [] if reason else [point]
            print(point.number, reason or "taken", file=sys.stderr, flush=True)
            if len(taken) == PAIRS:
                break
    print(dict(reasons), file=sys.stderr)
    design.save(NAME, taken)


# --- rows --------------------------------------------------------------------------------------


def simulated(task: tuple[design.Point, str, int, list[tuple[float, float]]]) -> list[Row]:
    """Rows of a variant and seed."""
    point, name, seed, pairs = task
    return study.simulated_pairs(variant(point, name), name, seed, pairs)


def line(path: Path, points: list[design.Point], jobs: int) -> None:
    """Simulate the lines, a seed of all pairs before the next."""
    rows = study._rows(path)
    tasks = [
        (point, name, seed, pairs)
        for seed in SEEDS
        for point in points
        for name in VARIANTS
        if (pairs := study._missing(rows, point, name, seed, LINE))
    ]
    if tasks:
        study._work(path, simulated, tasks, jobs)


def tuned(task: tuple[design.Point, str, str]) -> list[Row]:
    """Row of ``tune`` for a variant, with ``predict`` along the line."""
    from smetric_model import predict
    from smetric_model.errors import SolveError, UnstableError

    point, name, digest = task
    point = variant(point, name)
    row = study.tuned_point(point, name, digest, (HIT_RATIO,), SEEDS)
    asked = point.scenario(SEEDS[0]).replace(**{"workload.rate_rps": row["rate_rps"]})
    trace = point.trace(SEEDS[0])
    row["e2e_mean_s"] = {}
    for pair in LINE:
        try:
            outcome = predict(study.with_pair(asked, *pair), trace=trace)
            row["e2e_mean_s"][str(pair[0])] = outcome.number("e2e_mean_s")
        except (UnstableError, SolveError):
            row["e2e_mean_s"][str(pair[0])] = math.inf
    return [row]


def tune_all(path: Path, points: list[design.Point], jobs: int) -> None:
    """Tune both variants of all."""
    digest = run.sources_digest() + run.sources_digest("tuning")
    known = {(r["number"], r["variant"]) for r in study._rows(path) if r.get("tune") == digest}
    every = [(point, name, digest) for point in points for name in VARIANTS]
    tasks = [task for task in every if (task[0].number, task[1]) not in known]
    if tasks:
        study._work(path, tuned, tasks, jobs)


def keep(path: Path) -> None:
    """Write what the report needs."""
    rows = study._rows(path)
    answers = {(r["number"], r["variant"]): r for r in rows if "tune" in r and "error" not in r}
    found: dict[tuple[int, str, float], dict[int, Row]] = {}
    for row in rows:
        if "seed" in row:
            key = row["number"], row["variant"], float(row["overload"])
            found.setdefault(key, {})[row["seed"]] = row
    lines, said = [], []
    for (number, name, overload), seeds in sorted(found.items()):
        if set(seeds) != set(SEEDS):
            continue
        kept: Row = {"number": number, "variant": name, "overload": overload}
        kept["hit_ratio"] = HIT_RATIO
        kept |= {f"tps_{s}": round(seeds[s]["total_within_slo_tps"], 1) for s in SEEDS}
        kept |= {f"e2e_{s}": round(seeds[s]["e2e_mean_s"], 3) for s in SEEDS}
        for column in ("global_ratio", "recomputed_ratio", "nic_in_utilisation_ratio"):
            kept[column] = round(float(np.mean([seeds[s][column] for s in SEEDS])), 4)
        answer = answers.get((number, name), {})
        predicted = {
            float(p["overload"]): p["total_within_slo_tps"] for p in answer.get("grid", ())
        }
        kept["predicted_tps"] = round(predicted.get(overload, math.nan), 1)
        kept["predicted_e2e_s"] = answer.get("e2e_mean_s", {}).get(str(overload), math.nan)
        lines.append(kept)
    for (number, name), answer in sorted(answers.items()):
        columns = ("rate_rps", "overload", "social_overload", "private_overload", "balance")
        said.append(
            {"number": number, "variant": name}
            | {key: answer[key] for key in columns}
            | {key: answer["cost"][key] for key in ("private_s", "social_s")}
        )
    pd.DataFrame(lines).to_csv(links_report.LINES, index=False, float_format="%.6g")
    pd.DataFrame(said).to_csv(links_report.TUNED, index=False, float_format="%.4g")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("steps", nargs="+", choices=["draw", "line", "tune", "keep", "report"])
    parser.add_argument("--out", type=Path, default=Path("out/agreement"))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "thresholds-links.jsonl"
    if not (design.HERE / f"{NAME}.csv").exists():
        if "draw" not in options.steps:
            print("no candidates yet: draw first", file=sys.stderr)
            return 1
        draw(options.jobs)
    points = design.load(NAME)
    if "line" in options.steps:
        line(path, points, options.jobs)
    if "tune" in options.steps:
        tune_all(path, points, options.jobs)
    if "keep" in options.steps:
        keep(path)
    if "report" in options.steps:
        text = links_report.report(points)
        (options.out / "thresholds-links.md").write_text(text + "\n", encoding="utf-8")
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
