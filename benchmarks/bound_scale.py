"""Time, memory and loss of the bounds from 1k to 1M requests, in one run.

Usage: ``python benchmarks/bound_scale.py [REQUESTS ...]``.  Synthetic agents at 14 requests/s on 32
instances with small KV tiers, above what they carry; more requests are a longer window.  CPU
seconds are of this process and its threads.  Loss is what merging columns and
cutting time into blocks cost: against the unmerged program in one block up to 3,000 requests, above
(up to 100,000) against one block (goodput: blocks twice as large).
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from smetric_model.bound.certify import scale_bound
from smetric_model.bound.problem import make_problem, nominal_timeline
from smetric_model.bound.solvers import SolverOptions
from smetric_model.bound.timed import BLOCK_REQUESTS, DETAIL, timed_bound
from smetric_model.bound.volume import volume_bound, volume_by_thresholds
from smetric_model.scenario import Scenario
from smetric_model.simulate.prepare import prepare
from smetric_model.simulate.workload import replayed_trace

DIRECT = SolverOptions("highs-direct")
RATE = 14.0


def scenario_of(requests: int) -> Scenario:
    return Scenario.from_dict(
        {
            "name": f"scale-{requests}",
            "engine": {"memory_utilisation": 0.72},
            "global_tier": {"bytes_per_node": 50e9},
            "workload": {
                "preset": "bailian-trace-1-medium",
                "rate_rps": RATE,
                "warmup_s": 300.0,
                "window_s": requests / RATE,
                "start": "equilibrium",
            },
        }
    )


def cpu() -> float:
    return time.process_time()


def memory_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def one(requests: int) -> None:
    scenario = scenario_of(requests)
    start = cpu()
    trace, _ = replayed_trace(scenario)
    prepared = prepare(scenario, trace)
    loaded = cpu()
    problem = make_problem(scenario, prepared.inputs, nominal_timeline(scenario, prepared.inputs))
    built = cpu()
    print(
        f"{problem.size:>9,} requests, {problem.piece_tokens.size:,} pieces: trace"
        f" {loaded - start:.2f} s, pieces {built - loaded:.2f} s, {memory_gib():.2f} GiB",
        flush=True,
    )
    for name, detail in (("volume", 4.0), ("volume, finer", 8.0)):
        start = cpu()
        volume = volume_bound(problem, DIRECT, detail=detail)
        print(
            f"    {name:22s} {cpu() - start:8.2f} CPU s   load multiple {volume.load_multiple:.5f}",
            flush=True,
        )
    start = cpu()
    low, high, _ = volume_by_thresholds(problem, tolerance=1e-6)
    loss = 1 - (1 / volume.load_multiple) / low
    print(
        f"    {'by thresholds':22s} {cpu() - start:8.2f} CPU s   {1 / low:.5f} (gap"
        f" {high / low - 1:.1e}), loss of merging {max(loss, 0):.1e}",
        flush=True,
    )
    scale_bound(problem, volume.prices, writes=True)
    for objective in ("scale", "goodput"):
        values = {}
        exact = problem.size <= 3_000
        # the undivided goodput program is too large for a solver from some 100,000 requests on
        larger = np.inf if objective == "scale" else 2 * BLOCK_REQUESTS[objective]
        finer = (np.inf, np.inf) if exact else (DETAIL[objective], larger)
        choices = [(DETAIL[objective], BLOCK_REQUESTS[objective]), finer]
        for detail, block in choices if problem.size < 200_000 else choices[:1]:
            start, before = cpu(), time.perf_counter()
            found = timed_bound(
                problem,
                DIRECT,
                objective=objective,
                window_s=60.0,
                detail=detail,
                block_requests=block,
                fallback=volume.prices,
            )
            values[block] = 1 / found.load_multiple if objective == "scale" else -found.bound_tokens
            what = (
                f"load multiple {found.load_multiple:.5f}"
                if objective == "scale"
                else f"served {found.served_ratio:.5f}"
            )
            print(
                f"    {f'{objective}, {detail:g}, {block:g}':22s} {cpu() - start:8.2f} CPU s"
                f"   {what}"
                f"  (build {found.build_s:.2f}, solve {found.solve_s:.2f} s wall; largest block"
                f" {found.size[0]:,} rows, {found.size[2]:,} entries;"
                f" {time.perf_counter() - before:.1f} s wall) {found.status}"
                f" {memory_gib():.2f} GiB",
                flush=True,
            )
        if len(values) == 2:
            coarse, fine = values.values()
            print(f"    {'':22s} loss of merging {abs(coarse / fine - 1):.2%}", flush=True)


def main(arguments: list[str]) -> None:
    one(500)  # compiles
    for requests in [int(a) for a in arguments] or [1_000, 10_000, 100_000, 1_000_000]:
        one(requests)


if __name__ == "__main__":
    main(sys.argv[1:])
