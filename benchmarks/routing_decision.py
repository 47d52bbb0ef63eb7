"""Time of one routing decision, readable and compiled, for 32 and 512 instances.

Run: python benchmarks/routing_decision.py
"""

from __future__ import annotations

import time

import numba
import numpy as np

from smetric_model.routing.compiled import choose, choose_compiled, pack
from smetric_model.routing.policy import Loads, RoutingRequest, TieState
from smetric_model.routing.registry import POLICIES, make_policy


@numba.njit
def _many(parameters, hits, loads, queued, available, keys, turn, decisions):
    """Chain decisions inside compiled code, as a simulator does."""
    pointer, state, total = 0, np.uint64(1), 0
    for i in range(decisions):
        instance, reason, pointer, state = choose(
            parameters,
            40_000,
            turn,
            38_000,
            np.uint64(i),
            hits[i % hits.shape[0]],
            loads[i % loads.shape[0]],
            queued[i % queued.shape[0]],
            available,
            keys,
            pointer,
            state,
        )
        total += instance + reason
    return total


def _best_of(function, repeats: int, calls: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best / calls


def measure(name: str, instances: int) -> tuple[float, float, float]:
    """Seconds per decision: readable, compiled called from Python, compiled inside numba."""
    rng = np.random.default_rng(0)
    rows = 256
    loads = rng.poisson(4.0, (rows, instances)).astype(np.float64)
    queued = loads * 10_000.0
    hits = np.full((rows, instances), 15_008, dtype=np.int64)
    hits[np.arange(rows), rng.integers(0, instances, rows)] = 38_000
    available = np.ones(instances, dtype=np.bool_)
    keys = np.arange(instances, dtype=np.uint64)
    policy = make_policy(name, {"prefill_tokens_per_s": 10_000.0})
    record = pack(policy)
    request = RoutingRequest(40_000, 3, 38_000, 7)
    seen = [Loads.requests(loads[i], queued[i]) for i in range(rows)]
    ties = TieState(0, 1)

    def readable() -> None:
        for i in range(rows):
            policy.choose(request, hits[i], seen[i], ties)

    def from_python() -> None:
        for i in range(rows):
            choose(
                record,
                40_000,
                3,
                38_000,
                np.uint64(7),
                hits[i],
                loads[i],
                queued[i],
                available,
                keys,
                0,
                np.uint64(1),
            )

    decisions = 100_000

    def inside() -> None:
        _many(record, hits, loads, queued, available, keys, 3, decisions)

    choose_compiled(policy, request, hits[0], seen[0], ties)
    from_python(), inside()
    return (
        _best_of(readable, 5, rows),
        _best_of(from_python, 5, rows),
        _best_of(inside, 5, decisions),
    )


def main() -> None:
    print(
        f"{'policy':>14} {'instances':>9} {'readable':>10} {'from Python':>12} {'in numba':>10}  µs"
    )
    for name in POLICIES:
        for instances in (32, 512):
            row = " ".join(f"{1e6 * t:11.2f}" for t in measure(name, instances))
            print(f"{name:>14} {instances:9d} {row}")


if __name__ == "__main__":
    main()
