"""How good the thresholds of ``tune`` are: regret against simulated grids, and directions.

``python benchmarks/agreement/thresholds.py STEP ...`` with the steps, in order,

``screen``  of a seeded Latin hypercube of the region where thresholds should matter, the first 20
            candidates whose simulated tokens within SLO differ by at least 10 % between the best
            and the worst of five pairs of thresholds (``SCREEN``, two seeds);
``grid``    OVERLOAD x HIT_RATIO simulated for those, and one OVERLOAD line for each of three
            variants: prompts half as long at the same load, prompts half as long at the same rate,
            and links four times as fast;
``tune``    ``tune`` and the closed form for all of them, at the rate that the traces have;
``keep``    what was simulated and predicted, in ``thresholds-grids.csv`` (tokens/s within SLO by
            seed), and what ``tune`` said, in ``thresholds-tuned.csv``;
``report``  regrets and directions, from these two files.

The rule was fixed, with the region, before any of it was run.  Rows are kept in
``OUT/thresholds.jsonl`` and not computed again (``tune`` is, when its sources change); what the
candidates and the short variants take from the closed form stands in two more CSV files.
``screen --fresh N`` goes on to candidate N, grids and all: cases that nothing was chosen by.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import design
import numpy as np
import pandas as pd
import run
import thresholds_report as study
from scipy.stats import qmc

SEED = 20_260_703
CANDIDATES, CASES, BATCH = 60, 20, 10
SPREAD = 0.10
SCREEN = ((1.0, 0.0), (1.0, 0.9), (2.0, 0.5), (math.inf, 0.0), (math.inf, 0.9))
OVERLOADS, HIT_RATIOS, SEEDS = study.OVERLOADS, study.HIT_RATIOS, study.SEEDS
CONSTANT = study.CONSTANT
VARIANTS = ("base", "short", "short, same rate", "fast")
NAME, SHORT = "thresholds-candidates", "thresholds-short"
REQUESTS = 8_000
#: columns of an outcome that rows keep
KEPT = ("total_within_slo_tps", "e2e_mean_s", "return_to_previous_ratio", "recomputed_ratio")
KEPT += ("global_ratio", "nic_in_utilisation_ratio", "compute_utilisation_ratio")
Row = dict[str, Any]


def candidate(number: int, u: Any) -> design.Point:
    """Weak or no global tier, few instances, heavy sessions, slow links, both models."""
    llm, tp = design.MODELS[int(u[0] * 2)]
    log, rounded = design._log, design._rounded
    tpot = (0.02, 0.06) if tp == 1 else (0.03, 0.09)
    return design.Point(
        number=number,
        policy="smetric",
        llm=llm,
        tp=tp,
        instances=round(log(u[1], 4, 16)),
        prefill_instances=0,
        load=rounded(0.55 + 0.4 * u[2]),
        tier_ratio=0.0 if u[3] < 0.5 else rounded(u[3] - 0.5),
        think_factor=rounded(log(u[4], 0.25, 2.0)),
        context_factor=rounded(1.0 + u[5]),
        median_turns=rounded(log(u[6], 15.0, 40.0)),
        frameworks=round(log(u[7], 1, 20)),
        rewrite_ratio=rounded(0.3 * u[8]),
        spawn_ratio=0.0,
        nics_per_node=1,
        overload=2.0,
        hit_ratio=0.5,
        hit_weight=0.7,
        ttft_base_s=rounded(log(u[9], 0.5, 4.0)),
        tpot_s=rounded(log(u[10], *tpot)),
        nic_bytes_per_s=rounded(log(u[11], 1.25e9, 25e9)),
    )


def _completed(point: design.Point) -> design.Point:
    point = design.completed(point)
    window = min(max(REQUESTS / point.rate_rps, 1_800.0), 7_200.0)
    return design.paced(replace(point, window_s=60.0 * round(window / 60)))


def draw(count: int, jobs: int) -> list[design.Point]:
    """Return the first candidates, and keep them in a file: capacity and pace take a while."""
    points = design.load(NAME) if (design.HERE / f"{NAME}.csv").exists() else []
    missing = drawn()[len(points) : count]
    if missing:
        context = multiprocessing.get_context("spawn")
        with context.Pool(jobs, run._quiet) as pool:
            points += pool.map(_completed, missing, chunksize=1)
        design.save(NAME, points)
    return points[:count]


def drawn() -> list[design.Point]:
    """Return the candidates as drawn."""
    cube = qmc.LatinHypercube(d=12, rng=np.random.default_rng(SEED))
    return [candidate(number, u) for number, u in enumerate(cube.random(CANDIDATES))]


def _shortened(point: design.Point) -> design.Point:
    """Prompts half as long, at the same share of the capacity that they have."""
    other = design.completed(replace(point, context_factor=point.context_factor / 2))
    return replace(other, warmup_s=point.warmup_s, window_s=point.window_s)


def shorten(cases: list[design.Point], jobs: int) -> None:
    """Work out the short variants of the cases once, and keep them: rates must not move."""
    done = design.load(SHORT) if (design.HERE / f"{SHORT}.csv").exists() else []
    there = {point.number for point in done}
    missing = [point for point in cases if point.number not in there]
    if missing:
        context = multiprocessing.get_context("spawn")
        with context.Pool(jobs, run._quiet) as pool:
            done += pool.map(_shortened, missing, chunksize=1)
        design.save(SHORT, done)


@functools.cache
def _short(number: int) -> design.Point:
    return next(point for point in design.load(SHORT) if point.number == number)


def variant(point: design.Point, name: str) -> design.Point:
    """Return a case's variant."""
    if name == "fast":
        return replace(point, nic_bytes_per_s=4 * point.nic_bytes_per_s)
    if name == "short, same rate":
        return replace(point, context_factor=point.context_factor / 2)
    return _short(point.number) if name == "short" else point


def simulated(task: tuple[design.Point, str, int, list[tuple[float, float]]]) -> list[Row]:
    """Rows of a variant and seed at some pairs of thresholds."""
    point, name, seed, pairs = task
    return simulated_pairs(variant(point, name), name, seed, pairs)


def simulated_pairs(
    point: design.Point, name: str, seed: int, pairs: list[tuple[float, float]]
) -> list[Row]:
    """Rows of a scenario and seed at some pairs of thresholds."""
    from smetric_model.simulate import simulate

    trace = point.trace(seed)
    rows = []
    for overload, hit_ratio in pairs:
        outcome = simulate(with_pair(point.scenario(seed), overload, hit_ratio), trace)
        key = {"number": point.number, "variant": name, "seed": seed, "hit_ratio": hit_ratio}
        key["overload"] = "inf" if math.isinf(overload) else overload
        kept = {column: outcome.number(column) for column in KEPT}
        rows.append(key | kept | {"valid": bool(outcome["valid"])})
    return rows


def with_pair(scenario: Any, overload: float, hit_ratio: float) -> Any:
    """Return a scenario at a pair of thresholds."""
    return scenario.replace(**{"router.overload": overload, "router.hit_ratio": hit_ratio})


def trace_rate(point: design.Point, seeds: Iterable[int] = SEEDS) -> float:
    """Mean rate of the traces in their windows [requests/s].

    Sessions have heavy tails: what a few hours of a small cluster hold differs from what was asked.
    """
    end = point.warmup_s + point.window_s
    counts = []
    for seed in seeds:
        arrival = point.trace(seed).column("arrival_s")
        counts.append(int(((arrival >= point.warmup_s) & (arrival < end)).sum()))
    return float(np.mean(counts)) / point.window_s


def tuned(task: tuple[design.Point, str, str]) -> list[Row]:
    """Row of ``tune`` for a variant."""
    point, name, digest = task
    hit_ratios = HIT_RATIOS if name == "base" else CONSTANT[1:]
    point = variant(point, name)
    return [tuned_point(point, name, digest, hit_ratios, SEEDS)]


def tuned_point(
    point: design.Point,
    name: str,
    digest: str,
    hit_ratios: tuple[float, ...],
    seeds: tuple[int, ...],
) -> Row:
    """Row of ``tune`` for a scenario, at the rate of its traces."""
    from smetric_model.tuning import tune

    row: Row = {"number": point.number, "variant": name, "tune": digest}
    row["rate_rps"] = trace_rate(point, seeds)
    asked = point.scenario(seeds[0]).replace(**{"workload.rate_rps": row["rate_rps"]})
    try:
        tuning = tune(
            asked, point.trace(seeds[0]), loss=None, overloads=OVERLOADS, hit_ratios=hit_ratios
        )
    except (ValueError, RuntimeError) as error:
        return row | {"error": f"{type(error).__name__}: {error}"}
    result = tuning.to_dict()
    row["balance"] = tuning.situation.social_balance
    kept = ("overload", "hit_ratio", "matters", "spread_ratio", "social_overload")
    kept += ("social_hit_ratio", "private_overload", "private_hit_ratio", "hit_weight", "grid")
    return row | {key: result[key] for key in kept} | {"cost": result["situation"]["cost"]}


# --- rows --------------------------------------------------------------------------------------


def _rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def _work(path: Path, function: Callable[[Any], list[Row]], tasks: list[Any], jobs: int) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, run._quiet) as pool, path.open("a", encoding="utf-8") as file:
        for done, rows in enumerate(pool.imap_unordered(function, tasks), 1):
            for row in rows:
                file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"\r{done}/{len(tasks)} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _overload(row: Row) -> float:
    return float(row["overload"])


def _missing(
    rows: list[Row], point: design.Point, name: str, seed: int, pairs: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    there = {
        (_overload(row), row["hit_ratio"])
        for row in rows
        if "seed" in row
        and (row["number"], row["variant"], row["seed"]) == (point.number, name, seed)
    }
    return [pair for pair in pairs if pair not in there]


def _mean(rows: list[Row], number: int, name: str, pair: tuple[float, float]) -> Any:
    """Tokens within SLO by seed."""
    found = {
        row["seed"]: row["total_within_slo_tps"]
        for row in rows
        if "seed" in row
        and (row["number"], row["variant"]) == (number, name)
        and (_overload(row), row["hit_ratio"]) == pair
    }
    return np.array([found[seed] for seed in sorted(found)])


def _passes(rows: list[Row], point: design.Point) -> bool | None:
    """Whether a candidate is a case; None where it is not screened yet."""
    values = [_mean(rows, point.number, "base", pair) for pair in SCREEN]
    if any(by_seed.size < 2 for by_seed in values):
        return None
    means = [float(by_seed[:2].mean()) for by_seed in values]
    return max(means) > 0 and min(means) <= (1 - SPREAD) * max(means)


def _cases(rows: list[Row], points: list[design.Point]) -> list[design.Point] | None:
    """The first candidates that pass, or None where some are not screened yet."""
    if (design.HERE / f"{SHORT}.csv").exists():
        known = {point.number for point in design.load(SHORT)}
        if len(known) == CASES:  # screened before
            return [point for point in points if point.number in known]
    cases: list[design.Point] = []
    for point in points:
        if len(cases) == CASES:
            break
        passes = _passes(rows, point)
        if passes is None:
            return None
        if passes:
            cases.append(point)
    return cases


def _all_cases(rows: list[Row], points: list[design.Point]) -> list[design.Point]:
    """The cases, and those among the fresh candidates that were screened."""
    cases = _cases(rows, points)
    assert cases is not None, "screen first"
    later = [point for point in points if point.number >= study.FRESH and _passes(rows, point)]
    return cases + [point for point in later if point not in cases]


def _variants(point: design.Point) -> tuple[str, ...]:
    return VARIANTS if point.number < study.FRESH else VARIANTS[:1]


def screen(path: Path, jobs: int, fresh: int | None = None) -> None:
    """Simulate the screening pairs until there are enough cases, or up to a candidate."""
    if fresh is not None:
        _screen(path, draw(fresh, jobs), jobs)
        return
    for count in range(BATCH, CANDIDATES + 1, BATCH):
        points = draw(count, jobs)
        _screen(path, points, jobs)
        found = len(_cases(_rows(path), points) or [])
        print(f"{found} cases among {count} candidates", file=sys.stderr)
        if found >= CASES:
            return


def _screen(path: Path, points: list[design.Point], jobs: int) -> None:
    rows = _rows(path)
    tasks = [
        (point, "base", seed, pairs)
        for point in points
        for seed in SEEDS[:2]
        if (pairs := _missing(rows, point, "base", seed, SCREEN))
    ]
    if tasks:
        _work(path, simulated, tasks, jobs)


def grid(path: Path, points: list[design.Point], jobs: int) -> None:
    """Simulate grids and lines of the cases."""
    rows = _rows(path)
    cases = _all_cases(rows, points)
    shorten([point for point in cases if point.number < study.FRESH], jobs)
    whole = [(o, h) for o in OVERLOADS for h in HIT_RATIOS]
    line = [(o, CONSTANT[1]) for o in OVERLOADS]
    tasks = [
        (point, name, seed, pairs)
        for point in cases
        for name in _variants(point)
        for seed in SEEDS
        if (pairs := _missing(rows, point, name, seed, whole if name == "base" else line))
    ]
    if tasks:
        _work(path, simulated, tasks, jobs)


def tune_all(path: Path, points: list[design.Point], jobs: int) -> None:
    """Tune the cases and their variants."""
    rows = _rows(path)
    digest = run.sources_digest() + run.sources_digest("tuning")
    cases = _all_cases(rows, points)
    known = {(r["number"], r["variant"]) for r in rows if r.get("tune") == digest}
    tasks = [
        (point, name, digest)
        for point in cases
        for name in _variants(point)
        if (point.number, name) not in known
    ]
    if tasks:
        _work(path, tuned, tasks, jobs)


def keep(path: Path, points: list[design.Point]) -> None:
    """Write what the report needs."""
    rows = _rows(path)
    answers = {(r["number"], r["variant"]): r for r in rows if "tune" in r and "error" not in r}
    lines, said = [], []
    for point in _all_cases(rows, points):
        for name in _variants(point):
            answer = answers.get((point.number, name), {})
            predicted = {
                (_overload(p), p["hit_ratio"]): p["total_within_slo_tps"]
                for p in answer.get("grid", ())
            }
            hits = HIT_RATIOS if name == "base" else CONSTANT[1:]
            for pair in itertools.product(OVERLOADS, hits):
                by_seed = _mean(rows, point.number, name, pair)
                if by_seed.size < len(SEEDS):
                    continue
                line = {"number": point.number, "variant": name}
                line |= {"overload": pair[0], "hit_ratio": pair[1]}
                line |= {f"tps_{s}": round(v, 1) for s, v in zip(SEEDS, by_seed, strict=True)}
                lines.append(line | {"predicted_tps": round(predicted.get(pair, math.nan), 1)})
            if answer:
                kept = ("rate_rps", "overload", "hit_ratio", "social_overload", "social_hit_ratio")
                said.append(
                    {"number": point.number, "variant": name}
                    | {key: answer[key] for key in (*kept, "private_overload", "balance")}
                )
    pd.DataFrame(lines).to_csv(study.GRIDS, index=False)
    pd.DataFrame(said).to_csv(study.TUNED, index=False, float_format="%.4g")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("steps", nargs="+", choices=["screen", "grid", "tune", "keep", "report"])
    parser.add_argument("--out", type=Path, default=Path("out/agreement"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", type=int, metavar="CANDIDATE", help="screen up to this one")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "thresholds.jsonl"
    if "screen" in options.steps:
        screen(path, options.jobs, options.fresh)
    if not (design.HERE / f"{NAME}.csv").exists():
        print("no candidates yet: screen first", file=sys.stderr)
        return 1
    points = design.load(NAME)
    for name, step in (("grid", grid), ("tune", tune_all)):
        if name in options.steps:
            step(path, points, options.jobs)
    if "keep" in options.steps:
        keep(path, points)
    if "report" in options.steps:
        text = study.report(points)
        (options.out / "thresholds.md").write_text(text + "\n", encoding="utf-8")
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
