"""Compare SMetric with the baselines on the points of the design, and keep every row.

``python benchmarks/advantage/run.py`` (then ``report.py``): one line of JSON a point and seed in
``OUT/rows.jsonl``; what is there is not computed again, so that an interrupted run goes on where it
stopped.  One process, about 40 minutes of one core; each row has its CPU time.

The first points of ``space`` are predicted and simulated (two seeds, predicted the first; for
:data:`THIRD_SEED` points one more of each), then lines, ages and peaks (two seeds); then the rest
of ``space`` is predicted.  A policy whose closed form takes over :data:`LIMIT_S` has no answer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import design

from smetric_model.advantage import BASELINES, advantage
from smetric_model.errors import SolveError
from smetric_model.reproduction.table import read_rows

SIMULATED = 300
THIRD_SEED = 128  # points with a third simulated and a second predicted seed
LIMIT_S = 8.0  # CPU time after which the closed form of one policy is given up
Row = dict[str, Any]
Task = tuple[design.Point, int, tuple[str, ...]]


def tasks(simulated: int, predicted: int) -> Iterator[Task]:
    """Points, seeds and verbs in order of importance."""
    both, one = ("simulate", "predict"), ("simulate",)
    points = design.space(predicted)
    for point in points[:simulated]:
        for seed in (0, 1, 2)[: 3 if point.number < THIRD_SEED else 2]:
            yield point, seed, both if seed < 1 or (seed < 2 and point.number < THIRD_SEED) else one
    others = [*design.lines(), *design.ages(), *design.peaks()]
    for seed in (0, 1):
        for point in others:
            yield point, seed, both if seed < 1 and point.kind == "lines" else one
    for point in points[simulated:]:
        yield point, 0, ("predict",)


def evaluate(point: design.Point, seed: int, verbs: tuple[str, ...]) -> Row:
    """Return the row of a point and seed."""
    start = time.process_time()
    trace, scenario = point.trace(seed), point.scenario(seed)
    row: Row = {
        "point": asdict(point), "seed": seed, "rate_rps": point.rate_rps, "requests": len(trace),
        "trace_cpu_s": time.process_time() - start,
    }  # fmt: skip
    for verb in verbs:
        start = time.process_time()
        try:
            if verb == "predict":
                signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S, LIMIT_S)
            found = advantage(scenario, BASELINES, verb=verb, seeds=1, trace=trace)  # type: ignore[arg-type]
            kept = found.to_dict()
            kept["rows"] = {r.pop("policy"): _numbers(r) for r in kept["rows"]}
            row[verb] = _numbers(kept)
        except Exception as error:
            traceback.print_exc()
            row[verb] = {"error": f"{type(error).__name__}: {error}"}
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        row[f"{verb}_cpu_s"] = time.process_time() - start
    return row


def _numbers(content: dict[str, Any]) -> dict[str, Any]:
    """Plain values; numbers that are none are left out."""
    result: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            result[key] = _numbers(value)
        elif isinstance(value, str | bool) or value is None:
            result[key] = value
        elif hasattr(value, "item") or isinstance(value, int | float):
            number = float(value)
            if math.isfinite(number):
                result[key] = float(f"{number:.6g}")
    return result


def _give_up(_number: int, _frame: Any) -> None:
    raise SolveError(f"given up after {LIMIT_S:g} s")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/advantage"))
    parser.add_argument("--simulated", type=int, default=SIMULATED)
    parser.add_argument("--predicted", type=int, default=design.SPACE)
    parser.add_argument("--most", type=int, help="stop after so many rows")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rows.jsonl"
    done = {(r["point"]["kind"], r["point"]["number"], r["seed"]) for r in read_rows(path)}
    missing = [
        task
        for task in tasks(options.simulated, options.predicted)
        if (task[0].kind, task[0].number, task[1]) not in done
    ][: options.most]
    signal.signal(signal.SIGVTALRM, _give_up)
    start, failed = time.perf_counter(), 0
    with path.open("a", encoding="utf-8") as file:
        for count, task in enumerate(missing, 1):
            try:
                row = evaluate(*task)
            except Exception as error:  # a point that cannot be generated is a row, too
                traceback.print_exc()
                row = {"point": asdict(task[0]), "seed": task[1], "error": str(error)}
            failed += "error" in row or any("error" in row.get(verb, {}) for verb in task[2])
            file.write(json.dumps(row) + "\n")
            file.flush()
            left = (time.perf_counter() - start) / count * (len(missing) - count)
            print(
                f"\r{count}/{len(missing)} rows, about {left:.0f} s left, {failed} failed ",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print(file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
