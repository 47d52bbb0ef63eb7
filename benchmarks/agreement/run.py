"""Run ``predict`` and ``simulate`` on the scenarios of a half and keep every row.

``python benchmarks/agreement/run.py --half development`` (then ``report.py``).

One line of JSON a scenario, seed and verb in ``OUT/HALF.jsonl``; what is there is not computed
again, so that an interrupted run goes on where it stopped.  Rows of ``predict`` are renewed when
the closed form's sources change, rows of ``simulate`` with ``--again simulate`` only, rows that
were refused always.  Failures are rows, too.

Both verbs get the same trace, ``predict`` at the rate that the simulator realised in its window.
Sessions that wait come later, so that a cluster without a steady state realises less than it was
asked for: whether ``predict`` says so is a third row, ``asked``, at the rate of the design.
The seeds are the same for all scenarios of a half (common random numbers).  Where a run has many
requests, there are fewer seeds: so many that a scenario's runs together stay near
``SCENARIO_REQUESTS``, at least two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import design
import numpy as np

import smetric_model
from smetric_model.errors import SpecError, UnstableError
from smetric_model.outcome import Outcome

SEEDS = 5
SCENARIO_REQUESTS = 250_000
FIRST_SEED = {"development": 0, "held-out": 1_000}
VERBS = ("simulate", "predict", "asked")
Row = dict[str, Any]
Task = tuple[design.Point, int, dict[str, Row | None], str]


def seeds_of(point: design.Point, half: str, most: int = SEEDS) -> list[int]:
    """Seeds of a scenario."""
    requests = point.rate_rps * (point.warmup_s + point.window_s + 600.0)
    count = int(min(max(SCENARIO_REQUESTS // requests, 2), most))
    return [FIRST_SEED[half] + k for k in range(count)]


def chosen(points: list[design.Point], numbers: str | None) -> list[design.Point]:
    """Points whose number a text such as ``0-9,17`` names; all without one."""
    if not numbers:
        return points
    wanted: set[int] = set()
    for part in numbers.split(","):
        low, _, high = part.partition("-")
        try:
            wanted |= set(range(int(low), int(high or low) + 1))
        except ValueError:
            raise ValueError(f"{numbers!r}: numbers such as 0-9,17 are needed") from None
    return [point for point in points if point.number in wanted]


def sources_digest(package: str = "analytic") -> str:
    """Digest of the closed form's sources, and of the facts it reads."""
    root = Path(smetric_model.__file__).parent
    digest = hashlib.sha256()
    for path in sorted((root / package).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def read_rows(path: Path) -> list[Row]:
    """Rows of a file, the last of each key; a line that was cut short is left out."""
    rows: dict[tuple[int, int, str], Row] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            rows[row["number"], row["seed"], row["verb"]] = row
    return list(rows.values())


def _timed(work: Callable[[], Outcome]) -> Row:
    """Row of a verb: its outcome, or why there is none."""
    start = time.process_time()
    row: Row
    try:
        outcome = work()
        row = {"status": "done", **_numbers(outcome)}
    except UnstableError as error:
        row = {"status": "unstable", "error": str(error), "resource": error.resource}
    except SpecError as error:
        row = {"status": "refused", "error": str(error)}
    except Exception as error:
        traceback.print_exc()
        row = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    return row | {"cpu_s": time.process_time() - start}


def _numbers(outcome: Outcome) -> Row:
    kept = {}
    for name, value in outcome.items():
        if isinstance(value, str | bool) or value is None:
            kept[name] = value
        elif not math.isnan(value):
            kept[name] = float(value)
    return kept


def _growth(outcome: Outcome) -> float:
    """Mean end-to-end time of the window's last third ÷ that of its first."""
    table = outcome.requests
    assert table is not None
    arrival, e2e = table["arrival_s"].to_numpy(), table["e2e_s"].to_numpy()
    third = np.array_split(e2e[np.argsort(arrival)], 3)
    return float(np.nanmean(third[2]) / np.nanmean(third[0]))


def evaluate(task: Task) -> list[Row]:
    """Return the rows of a scenario and seed that are missing."""
    point, seed, known, digest = task
    from smetric_model.analytic.predict import predict
    from smetric_model.simulate import simulate

    scenario = point.scenario(seed)
    start = time.process_time()
    trace = point.trace(seed)
    generating = time.process_time() - start
    key = {"number": point.number, "seed": seed}
    rows = []
    simulated = known["simulate"]
    if simulated is None:

        def simulation() -> Outcome:
            outcome = simulate(scenario, trace)
            growth.append(_growth(outcome))
            return outcome

        growth: list[float] = []
        simulated = {**key, "verb": "simulate", **_timed(simulation), "trace_cpu_s": generating}
        if growth:
            simulated["growth"] = growth[0]
        rows.append(simulated)
    if known["predict"] is None:
        row = {**key, "verb": "predict", "sources": digest}
        if simulated.get("status") == "done":
            rate = simulated["arrival_rate_rps"]
            asked = scenario.replace(**{"workload.rate_rps": rate})
            row |= _timed(lambda: predict(asked, trace=trace))
        else:
            row |= {"status": "refused", "error": "not simulated", "cpu_s": 0.0}
        rows.append(row)
    if known["asked"] is None:
        asked = scenario.replace(**{"workload.rate_rps": point.rate_rps})
        row = {**key, "verb": "asked", "sources": digest}
        rows.append(row | _timed(lambda: predict(asked, trace=trace)))
    return rows


def _tasks(
    points: list[design.Point], half: str, rows: list[Row], digest: str, again: set[str], most: int
) -> Iterator[Task]:
    found = {(r["number"], r["seed"], r["verb"]): r for r in rows}
    for point in points:
        for seed in seeds_of(point, half, most):
            known: dict[str, Row | None] = {}
            for verb in VERBS:
                row = found.get((point.number, seed, verb))
                stale = row is not None and (
                    verb in again
                    or row["status"] == "refused"
                    or (verb != "simulate" and row["sources"] != digest)
                )
                known[verb] = None if stale else row
            if None in known.values():
                yield point, seed, known, digest


def _without_others(task: Task, verb: str) -> Task:
    """Return a task in which no row but the verb's is missing."""
    point, seed, known, digest = task
    kept = {name: known[name] or ({} if name != verb else None) for name in VERBS}
    return point, seed, kept, digest


def _quiet() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--half", choices=design.HALVES, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/agreement"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most so many a scenario")
    parser.add_argument("--scenarios", help="numbers, such as 0-9,17; default: all")
    parser.add_argument("--only", choices=VERBS, help="leave the other verb out")
    parser.add_argument("--again", action="append", choices=VERBS, default=[])
    options = parser.parse_args(arguments)
    if options.jobs < 1 or options.seeds < 1:
        parser.error("--jobs and --seeds: at least 1")
    points = design.load(options.half)
    try:
        points = chosen(points, options.scenarios)
    except ValueError as error:
        parser.error(f"--scenarios: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.half}.jsonl"
    digest = sources_digest()
    tasks = list(
        _tasks(points, options.half, read_rows(path), digest, set(options.again), options.seeds)
    )
    if options.only:
        tasks = [_without_others(task, options.only) for task in tasks]
        tasks = [task for task in tasks if task[2][options.only] is None]
    if not tasks:
        print("nothing to do", file=sys.stderr)
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start, done, failed = time.perf_counter(), 0, 0
    context = multiprocessing.get_context("spawn")
    pool = context.Pool(options.jobs, _quiet)
    try:
        with path.open("a", encoding="utf-8") as file:
            for rows in pool.imap_unordered(evaluate, tasks):
                for row in rows:
                    file.write(json.dumps(row) + "\n")
                    failed += row["status"] == "failed"
                file.flush()
                done += 1
                spent = time.perf_counter() - start
                left = spent / done * (len(tasks) - done)
                print(
                    f"\r{done}/{len(tasks)} runs, {spent:.0f} s, about {left:.0f} s left,"
                    f" {failed} failed ",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
        pool.close()
    except KeyboardInterrupt:
        pool.terminate()
        print(f"\ninterrupted: {done} of {len(tasks)} runs are kept in {path}", file=sys.stderr)
        return 130
    finally:
        pool.join()
    print(file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
