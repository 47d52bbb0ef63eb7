"""CPU time of ``predict``: cold, with a shared workload, in a sweep, and beside one simulation.

Run: ``OMP_NUM_THREADS=1 python benchmarks/predict_speed.py [--scenarios 40] [--sweep 1000]``

Scenarios are the stable ones among the first of the agreement study's development half, at the
rates of its design.  *Shared*: ``predict`` gets the demand, its tables built, as in a sweep.
*Cold*: trace at hand, everything that is worked out of it counted.  Calls that compile or load
kernels are not counted.  CPU time throughout (``process_time``): the clock of a busy machine
inflates it, too, so that ratios of one run say more than milliseconds.

The sweep goes through :func:`smetric_model.sweep` on two processes, over the shipped trace:
rates, policies, global tiers and thresholds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

import smetric_model
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import predict
from smetric_model.errors import UnstableError
from smetric_model.scenario import Scenario
from smetric_model.simulate import simulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "agreement"))
import design  # noqa: E402

REPEATS = 3
POLICIES = ("smetric", "smetric-slo", "bailian", "lmetric", "load-balance", "dynamo")


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def swept(count: int) -> list[Scenario]:
    """Scenarios of the shipped trace: rates, policies, tiers, thresholds."""
    base = Scenario.from_toml(ROOT / "data" / "scenarios" / "agents-small.toml")
    tier = base.global_tier.bytes_per_node
    rates = np.linspace(2.0, 8.0, max(count // (len(POLICIES) * 20), 1))
    return [
        base.replace(
            **{
                "workload.rate_rps": float(rate),
                "router.policy": policy,
                "global_tier.bytes_per_node": share * tier,
                "router.overload": overload,
                "router.hit_ratio": hit_ratio,
            }
        )
        for rate in rates
        for policy in POLICIES
        for share in (0.25, 1.0)
        for overload in (1.25, 1.5, 2.0, 3.0, 4.0)
        for hit_ratio in (0.25, 0.5)
    ][:count]


def told(name: str, times: list[float]) -> str:
    """Median, 90th percentile and largest of some times [ms]."""
    ms = 1e3 * np.array(times)
    return (
        f"{name:16s} {len(times):4d}  median {np.median(ms):7.1f}  P90 {np.quantile(ms, 0.9):7.1f}"
        f"  max {ms.max():7.1f} CPU ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--scenarios", type=int, default=40)
    parser.add_argument("--simulations", type=int, default=12, help="of the first scenarios")
    parser.add_argument("--sweep", type=int, default=1_000)
    options = parser.parse_args()
    shared: dict[str, list[float]] = defaultdict(list)
    cold, ratios, warmed = [], [], set()
    for point in design.load("development"):
        if len(cold) == options.scenarios:
            break
        scenario = point.scenario(0).replace(**{"workload.rate_rps": point.rate_rps})
        trace = point.trace(0)
        try:
            if point.policy not in warmed:  # kernels are compiled
                predict(scenario, demand=demand_of(scenario, trace))
                warmed.add(point.policy)
            demand = demand_of(scenario, trace)
            start = time.process_time()
            predict(scenario, demand=demand_of(scenario, trace))
            cold.append(time.process_time() - start)
        except UnstableError:
            continue
        predict(scenario, demand=demand)
        each = [cpu_s(lambda d=demand, s=scenario: predict(s, demand=d)) for _ in range(REPEATS)]
        shared[point.policy].append(float(np.median(each)))
        if len(ratios) < options.simulations:
            if not ratios:  # the first simulation compiles, too
                simulate(scenario, trace)
            simulation = cpu_s(lambda t=trace, s=scenario: simulate(s, t))
            ratios.append(simulation / shared[point.policy][-1])
        print(f"\r{len(cold)} of {options.scenarios}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(told("cold", cold))
    print(told("shared workload", [time_s for times in shared.values() for time_s in times]))
    for policy, times in sorted(shared.items()):
        print("  " + told(policy, times))
    if ratios:
        print(
            f"one simulation ÷ one prediction: median {np.median(ratios):.1f},"
            f" {min(ratios):.1f} to {max(ratios):.1f}"
        )
    if options.sweep > 0:
        asked = swept(options.sweep)
        at_s: list[float] = []
        started, own = time.perf_counter(), time.process_time()
        table = smetric_model.sweep(
            {str(number): scenario for number, scenario in enumerate(asked)},
            verb="predict",
            jobs=2,
            progress=lambda done, _: at_s.append(time.perf_counter() - started),
        )
        spent, own = time.perf_counter() - started, time.process_time() - own
        theirs = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        done = int((table["status"] == "done").sum())
        half = len(asked) // 2
        each = (at_s[-1] - at_s[half]) / (len(at_s) - 1 - half)
        print(
            f"sweep on two processes: {len(asked)} scenarios ({done} with a steady state) in"
            f" {spent:.1f} s by the clock, the first after {at_s[1]:.1f} s, {1e3 * each:.2f} ms a"
            f" scenario of the second half: 10,000 at that pace {at_s[1] + 1e4 * each:.0f} s"
        )
        print(f"  CPU: {own:.1f} s of the process that asks, {theirs:.1f} s of the two that work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
