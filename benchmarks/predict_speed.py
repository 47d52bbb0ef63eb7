"""CPU time of ``predict``, of a sweep, and of one simulation of the same scenarios.

Run: ``OMP_NUM_THREADS=1 python benchmarks/predict_speed.py [--scenarios 12] [--sweep 1000]``

Scenarios are the stable ones among the first of the agreement study's development half, at the
rates of its design.  ``predict`` gets the demand, as in a sweep; its first call on a workload,
which tabulates the trace, is counted apart, calls that compile or load kernels are not counted.
CPU time throughout (``process_time``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np

from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import predict
from smetric_model.errors import UnstableError
from smetric_model.scenario import Scenario
from smetric_model.simulate import simulate

sys.path.insert(0, str(Path(__file__).parent / "agreement"))
import design

REPEATS = 5


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def swept(scenario: Scenario, rate_rps: float, count: int) -> list[Scenario]:
    """Scenarios around one: rates, and thresholds where the policy has them."""
    shares = np.linspace(0.2, 1.0, max(count // 50, 1))
    thresholds = product(np.linspace(1.2, 4.0, 10), np.linspace(0.1, 0.9, 5))
    grid = product(shares, list(thresholds))
    return [
        scenario.replace(
            **{
                "workload.rate_rps": float(share * rate_rps),
                "router.overload": float(overload),
                "router.hit_ratio": float(hit_ratio),
            }
        )
        for share, (overload, hit_ratio) in grid
    ][:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--scenarios", type=int, default=12)
    parser.add_argument("--sweep", type=int, default=1_000)
    options = parser.parse_args()
    points = design.load("development")
    times, firsts, ratios = [], [], []
    sweep: tuple[Scenario, float, object] | None = None
    for point in points:
        if len(times) == options.scenarios:
            break
        scenario = point.scenario(0).replace(**{"workload.rate_rps": point.rate_rps})
        trace = point.trace(0)
        demand = demand_of(scenario, trace)
        try:
            predict(scenario, demand=demand_of(scenario, trace))  # kernels are compiled
        except UnstableError:
            continue
        firsts.append(cpu_s(lambda d=demand, s=scenario: predict(s, demand=d)))
        each = [cpu_s(lambda d=demand, s=scenario: predict(s, demand=d)) for _ in range(REPEATS)]
        simulation = cpu_s(lambda t=trace, s=scenario: simulate(s, t))
        if not times:  # the first simulation compiles, too
            simulation = cpu_s(lambda t=trace, s=scenario: simulate(s, t))
        times.append(float(np.median(each)))
        ratios.append(simulation / times[-1])
        print(
            f"{point.number:4d} {point.policy:14s} {point.instances:4d} instances"
            f"  predict {1e3 * times[-1]:6.1f} ms, first {1e3 * firsts[-1]:6.0f} ms"
            f"  simulate {simulation:6.2f} s = {ratios[-1]:5.0f} x",
            flush=True,
        )
        if sweep is None and point.policy == "smetric":
            sweep = (scenario, point.rate_rps, demand)
    print(
        f"median: predict {1e3 * np.median(times):.1f} CPU ms (first on a workload"
        f" {1e3 * np.median(firsts):.0f}), one simulation {np.median(ratios):.0f} x"
    )
    if sweep is not None and options.sweep > 0:
        scenario, rate, demand = sweep
        unstable = 0
        start, wall = time.process_time(), time.perf_counter()
        asked = swept(scenario, rate, options.sweep)
        for one in asked:
            try:
                predict(one, demand=demand)  # type: ignore[arg-type]
            except UnstableError:
                unstable += 1
        spent = time.process_time() - start
        print(
            f"sweep: {len(asked)} scenarios of one workload ({unstable} unstable) in"
            f" {spent:.1f} CPU s, {time.perf_counter() - wall:.1f} s by the clock; 10,000 on two"
            f" idle cores would take {spent / len(asked) * 10_000 / 2:.0f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
