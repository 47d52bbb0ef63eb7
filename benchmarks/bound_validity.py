"""Hold every policy's runs on random scenarios against their bounds.

Usage: ``python benchmarks/bound_validity.py [SCENARIOS] [POLICY ...]`` (default: 50, all policies).
Each run is simulated, inserted into the linear program (least multiple of the capacities at which
it fits: at most 1) and compared with the goodput bound on its own realised requests.  The last
line says how many there were of each kind and how near the rows came to being tight.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "bound"))

from random_scenarios import KINDS, random_scenario
from validity import judge

from smetric_model.routing.registry import POLICIES


def strained(elasticity: dict[str, float]) -> str:
    """KV or links where they have a fifth of the bottleneck (recomputing stands in for either)."""
    kv = sum(elasticity.get(name, 0.0) for name in ("local", "decode_local", "global"))
    links = elasticity.get("nic", 0.0) + elasticity.get("pcie", 0.0)
    if max(kv, links) < 0.2:
        return "compute"
    return "kv" if kv >= links else "link"


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 50
    policies = arguments[1:] or sorted(POLICIES)
    bottleneck: Counter[str] = Counter()
    served: Counter[str] = Counter()
    broken, runs, tightest, start = [], 0, 0.0, time.perf_counter()
    for seed in range(count):
        kind = KINDS[seed % len(KINDS)]
        scenario, trace = random_scenario(seed, kind)
        served[scenario.cluster.serving] += 1
        worst, ratio = 0.0, float("inf")
        for policy in policies:
            verdict = judge(scenario.replace(**{"router.policy": policy}), trace)
            runs += 1
            worst = max(worst, *verdict.least_multiples.values())
            if verdict.simulated_tokens > 0:
                ratio = min(ratio, verdict.bound_tokens / verdict.simulated_tokens)
            if not verdict.holds:
                broken.append((seed, kind, policy, verdict))
                print("BROKEN", seed, kind, policy, verdict)
        most = strained(verdict.elasticity)
        bottleneck[most] += 1
        tightest = max(tightest, worst)
        print(
            f"{seed:3d} {kind:8s} {scenario.cluster.serving:13s} {scenario.workload.loop:6s}"
            f" {verdict.requests:5d} requests, bottleneck {most:7s} least multiple {worst:.3f}"
            f" bound/best simulated {ratio:.3f}",
            flush=True,
        )
    print(
        f"{runs} runs, {len(broken)} broken; bottlenecks {dict(bottleneck)}; serving"
        f" {dict(served)}; largest least multiple {tightest:.3f};"
        f" {time.perf_counter() - start:.0f} s"
    )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
