"""How good the thresholds of ``tune`` are: regret against simulated grids, and directions.

``python benchmarks/agreement/thresholds.py STEP ...`` with the steps, in order,

``screen``  of a seeded Latin hypercube of the region where thresholds should matter, the first 20
            candidates whose simulated tokens within SLO differ by at least 10 % between the best
            and the worst of five pairs of thresholds (``SCREEN``, two seeds);
``grid``    OVERLOAD x HIT_RATIO simulated for those, and one OVERLOAD line for each of two
            variants: prompts half as long at the same load, and links four times as fast;
``tune``    ``tune`` and the closed form for all of them;
``report``  regrets and directions.

The rule was fixed, with the region, before any of it was run.  Rows are kept in
``OUT/thresholds.jsonl`` and not computed again (``tune`` is, when its sources change); what the
candidates and the short variants take from the closed form stands in two CSV files.
"""

from __future__ import annotations

import argparse
import functools
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
import run
from scipy.stats import qmc

SEED = 20_260_703
CANDIDATES, CASES, BATCH = 60, 20, 10
SPREAD = 0.10
SCREEN = ((1.0, 0.0), (1.0, 0.9), (2.0, 0.5), (math.inf, 0.0), (math.inf, 0.9))
OVERLOADS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, math.inf)
HIT_RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9)
CONSTANT = (2.0, 0.5)
SEEDS = (2_000, 2_001, 2_002)
VARIANTS = ("base", "short", "fast")
NAME, SHORT = "thresholds-candidates", "thresholds-short"
REQUESTS = 8_000
Row = dict[str, Any]


def _candidate(number: int, u: Any) -> design.Point:
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
    return [_candidate(number, u) for number, u in enumerate(cube.random(CANDIDATES))]


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
    return _short(point.number) if name == "short" else point


def simulated(task: tuple[design.Point, str, int, list[tuple[float, float]]]) -> list[Row]:
    """Rows of a variant and seed at some pairs of thresholds."""
    from smetric_model.simulate import simulate

    point, name, seed, pairs = task
    point = variant(point, name)
    trace = point.trace(seed)
    rows = []
    for overload, hit_ratio in pairs:
        scenario = point.scenario(seed).replace(
            **{"router.overload": overload, "router.hit_ratio": hit_ratio}
        )
        outcome = simulate(scenario, trace)
        rows.append(
            {
                "number": point.number,
                "variant": name,
                "seed": seed,
                "overload": "inf" if math.isinf(overload) else overload,
                "hit_ratio": hit_ratio,
                "total_within_slo_tps": outcome.number("total_within_slo_tps"),
                "e2e_mean_s": outcome.number("e2e_mean_s"),
                "return_to_previous_ratio": outcome.number("return_to_previous_ratio"),
                "recomputed_ratio": outcome.number("recomputed_ratio"),
                "valid": bool(outcome["valid"]),
            }
        )
    return rows


def tuned(task: tuple[design.Point, str, str]) -> list[Row]:
    """Row of ``tune`` for a variant."""
    from smetric_model.tuning import tune

    point, name, digest = task
    row: Row = {"number": point.number, "variant": name, "tune": digest}
    point = variant(point, name)
    asked = point.scenario(SEEDS[0]).replace(**{"workload.rate_rps": point.rate_rps})
    grid = (OVERLOADS, HIT_RATIOS) if name == "base" else ((2.0,), (0.5,))
    try:
        tuning = tune(
            asked, point.trace(SEEDS[0]), loss=None, overloads=grid[0], hit_ratios=grid[1]
        )
    except (ValueError, RuntimeError) as error:
        return [row | {"error": f"{type(error).__name__}: {error}"}]
    result = tuning.to_dict()
    row["balance"] = tuning.situation.social_balance
    kept = ("overload", "hit_ratio", "matters", "spread_ratio", "social_overload")
    kept += ("social_hit_ratio", "private_overload", "private_hit_ratio", "hit_weight", "grid")
    return [row | {key: result[key] for key in kept} | {"cost": result["situation"]["cost"]}]


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


def _cases(rows: list[Row], points: list[design.Point]) -> list[design.Point] | None:
    """The first candidates that pass, or None where some are not screened yet."""
    cases = []
    for point in points:
        values = []
        for pair in SCREEN:
            by_seed = _mean(rows, point.number, "base", pair)
            if by_seed.size < 2:
                return None
            values.append(by_seed[:2].mean())
        if max(values) > 0 and min(values) <= (1 - SPREAD) * max(values):
            cases.append(point)
        if len(cases) == CASES:
            break
    return cases


def screen(path: Path, jobs: int) -> None:
    """Simulate the screening pairs until there are enough cases."""
    for count in range(BATCH, CANDIDATES + 1, BATCH):
        points = draw(count, jobs)
        rows = _rows(path)
        tasks = [
            (point, "base", seed, pairs)
            for point in points
            for seed in SEEDS[:2]
            if (pairs := _missing(rows, point, "base", seed, SCREEN))
        ]
        if tasks:
            _work(path, simulated, tasks, jobs)
        found = len(_cases(_rows(path), points) or [])
        print(f"{found} cases among {count} candidates", file=sys.stderr)
        if found >= CASES:
            return


def grid(path: Path, points: list[design.Point], jobs: int) -> None:
    """Simulate grids and lines of the cases."""
    rows = _rows(path)
    cases = _cases(rows, points)
    assert cases is not None, "screen first"
    shorten(cases, jobs)
    whole = [(o, h) for o in OVERLOADS for h in HIT_RATIOS]
    line = [(o, CONSTANT[1]) for o in OVERLOADS]
    tasks = [
        (point, name, seed, pairs)
        for point in cases
        for name in VARIANTS
        for seed in SEEDS
        if (pairs := _missing(rows, point, name, seed, whole if name == "base" else line))
    ]
    if tasks:
        _work(path, simulated, tasks, jobs)


def tune_all(path: Path, points: list[design.Point], jobs: int) -> None:
    """Tune the cases and their variants."""
    rows = _rows(path)
    digest = run.sources_digest() + run.sources_digest("tuning")
    cases = _cases(rows, points)
    assert cases is not None, "screen first"
    known = {(r["number"], r["variant"]) for r in rows if r.get("tune") == digest}
    tasks = [
        (point, name, digest)
        for point in cases
        for name in VARIANTS
        if (point.number, name) not in known
    ]
    if tasks:
        _work(path, tuned, tasks, jobs)


# --- report ------------------------------------------------------------------------------------


def _nearest(value: float, grid_values: tuple[float, ...]) -> float:
    def place(x: float) -> float:
        return math.log(min(max(x, 0.5), 8.0))

    return min(grid_values, key=lambda g: abs(place(g) - place(value)))


def report(path: Path, points: list[design.Point]) -> str:
    """Return regrets and directions."""
    rows = _rows(path)
    cases = _cases(rows, points)
    if cases is None:
        return "not all candidates are screened yet"
    answers = {(r["number"], r["variant"]): r for r in rows if "tune" in r}
    out = [
        "| case | LLM | N | load | tier | context | Gbps | spread | best pair | tune |"
        " closed form | regret of tune | closed form | (2, .5) | noise |",
        "|" + "---|" * 15,
    ]
    regrets: dict[str, list[float]] = {"tune": [], "closed form": [], "constant": []}
    within = 0
    counted = 0
    for point in cases:
        n = point.number
        table = {(o, h): _mean(rows, n, "base", (o, h)) for o in OVERLOADS for h in HIT_RATIOS}
        if any(values.size < len(SEEDS) for values in table.values()):
            continue
        means = {pair: float(values.mean()) for pair, values in table.items()}
        best = max(means, key=lambda pair: means[pair])
        spread = 1 - min(means.values()) / means[best]
        answer = answers.get((n, "base"))
        picks: dict[str, tuple[float, float] | None] = {"constant": CONSTANT}
        picks["tune"] = picks["closed form"] = None
        if answer is not None and "error" not in answer:
            picks["tune"] = (float(answer["overload"]), answer["hit_ratio"])
            hit = min(HIT_RATIOS, key=lambda h: abs(h - answer["social_hit_ratio"]))
            picks["closed form"] = (_nearest(float(answer["social_overload"]), OVERLOADS), hit)
        cells = {}
        noise = math.nan
        for name, pair in picks.items():
            if pair is None:
                cells[name] = "–"
                continue
            regret = 1 - means[pair] / means[best]
            regrets[name].append(regret)
            cells[name] = f"{regret:.3f}"
            if name == "tune":
                paired = (table[best] - table[pair]) / means[best]
                noise = float(paired.std(ddof=1) / math.sqrt(paired.size))
                counted += 1
                within += regret <= 0.02 + noise
        shown = {k: "–" if p is None else f"{p[0]:g}, {p[1]:g}" for k, p in picks.items()}
        out.append(
            f"| {n} | {point.llm[:10]} | {point.instances} | {point.load:.2f} |"
            f" {point.tier_ratio:.2f} | {point.context_factor:.2f} |"
            f" {point.nic_bytes_per_s * 8e-9:.0f} | {spread:.2f} | {best[0]:g}, {best[1]:g} |"
            f" {shown['tune']} | {shown['closed form']} | {cells['tune']} |"
            f" {cells['closed form']} | {cells['constant']} | {noise:.3f} |"
        )
    out.append("")
    for name, values in regrets.items():
        if values:
            out.append(
                f"- {name}: regret median {np.median(values):.3f}, mean {np.mean(values):.3f},"
                f" largest {max(values):.3f} ({len(values)} cases)"
            )
    out.append(f"- tune within .02 + noise: {within} of {counted}")
    out += _directions(rows, cases, answers)
    return "\n".join(out)


def _directions(
    rows: list[Row], cases: list[design.Point], answers: dict[tuple[int, str], Row]
) -> list[str]:
    """Whether OVERLOAD* rises with history length and falls with link speed."""
    out = []
    for name, up, text in (("short", "base", "history length"), ("base", "fast", "link speed")):
        # OVERLOAD* must not be lower for longer histories, nor for slower links
        lower, higher = (name, up) if name == "short" else (up, name)
        right = wrong = flat = seen = agree = 0
        for point in cases:
            pair = [answers.get((point.number, v)) for v in (lower, higher)]
            if any(a is None or "error" in a for a in pair):
                continue
            values = [_unfloored(a) for a in pair if a is not None]
            step = math.log(values[1] / values[0])
            right += step > 0.01
            wrong += step < -0.01
            flat += abs(step) <= 0.01
            sims = [_best_overload(rows, point.number, v) for v in (lower, higher)]
            if None not in sims and sims[0] != sims[1]:
                seen += 1
                agree += sims[1] > sims[0]  # type: ignore[operator]
        out.append(
            f"- {text}: OVERLOAD* of the closed form moves the right way in {right}, the wrong way"
            f" in {wrong}, by less than 1 % in {flat}; the simulated optimum moves in {seen}, the"
            f" right way in {agree}"
        )
    return out


def _unfloored(answer: Row) -> float:
    """OVERLOAD* without its floor, by its own balance."""
    return max(float(answer["balance"]), 1e-6)


def _best_overload(rows: list[Row], number: int, name: str) -> float | None:
    values = {o: _mean(rows, number, name, (o, CONSTANT[1])) for o in OVERLOADS}
    if any(v.size < len(SEEDS) for v in values.values()):
        return None
    means = {o: float(v.mean()) for o, v in values.items()}
    best = max(means.values())
    # the middle of what is within 1 % of the best: a plateau has no best
    near = [math.log(min(o, 8.0)) for o, mean in means.items() if mean >= 0.99 * best]
    return round(float(np.mean(near)), 3)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("steps", nargs="+", choices=["screen", "grid", "tune", "report"])
    parser.add_argument("--out", type=Path, default=Path("out/agreement"))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "thresholds.jsonl"
    if "screen" in options.steps:
        screen(path, options.jobs)
    if not (design.HERE / f"{NAME}.csv").exists():
        print("no candidates yet: screen first", file=sys.stderr)
        return 1
    points = design.load(NAME)
    for name, step in (("grid", grid), ("tune", tune_all)):
        if name in options.steps:
            step(path, points, options.jobs)
    if "report" in options.steps:
        text = report(path, points)
        (options.out / "thresholds.md").write_text(text + "\n", encoding="utf-8")
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
