"""The routing mean field against a toy cluster behind the real policies (tests/analytic).

Errors by policy over N = 8, 32, 128 and loads .5 to 8: equal exponential work shared by all
present, A = 2, E = .25, 33 turns, think times exponential or lognormal.

    python benchmarks/routing_mean_field.py [--requests 250000]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from smetric_model.analytic.imbalance import imbalance
from smetric_model.analytic.request_weights import RequestWeights
from smetric_model.analytic.returns import TurnLaw
from smetric_model.analytic.routed_cluster import FollowUpHits, RoutedCluster
from smetric_model.analytic.stickiness import stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.routing import make_policy

ROOT = Path(__file__).resolve().parents[1]
FIXED_S, SLOPE_S, TURNS, GAP_S, SIGMA = 2.0, 0.25, 33.0, 15.3, 1.496
HITS = {"lmetric": (30_000, 20_100), "bailian": (20_000, 18_000)}
CASES: tuple[tuple[str, str, dict[str, Any], bool], ...] = (
    ("smetric 1.25", "smetric", {"overload": 1.25}, False),
    ("smetric 1.5", "smetric", {"overload": 1.5}, False),
    ("smetric 2", "smetric", {"overload": 2.0}, False),
    ("smetric 2, lognormal", "smetric", {"overload": 2.0}, True),
    ("smetric 1", "smetric", {"overload": 1.0}, False),
    ("smetric 2, floor 2", "smetric", {"overload": 2.0, "overload_floor": 2.0}, False),
    ("lmetric", "lmetric", {}, False),
    ("bailian .7", "bailian", {}, False),
    ("bailian .4", "bailian", {"hit_weight": 0.4}, False),
    ("bailian .4 max", "bailian", {"hit_weight": 0.4, "load_normalisation": "max"}, False),
    ("bounded-hash 2", "bounded-hash", {"overload": 2.0}, False),
    ("load-balance", "load-balance", {}, False),
    ("power-of-two", "power-of-two", {}, False),
    ("round-robin", "round-robin", {}, False),
    ("random", "random", {}, False),
)


def toy_module() -> Any:
    path = ROOT / "tests" / "analytic" / "routing_toy.py"
    spec = importlib.util.spec_from_file_location("routing_toy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["routing_toy"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=250_000)
    options = parser.parse_args()
    run_toy = toy_module().run_toy
    rng = np.random.default_rng(11)
    turns = rng.geometric(1 / TURNS, 200_000)
    exponential = rng.exponential(GAP_S, 200_000)
    lognormal = rng.lognormal(np.log(GAP_S) - SIGMA**2 / 2, SIGMA, 200_000)
    amounts = rng.lognormal(0, 0.7, 200_000)
    weights = RequestWeights.of(amounts)
    present = np.arange(1.0, 400.0)
    rates = present / (FIXED_S + SLOPE_S * present)
    print(
        "| policy | migration abs (max) | return abs (max) | load % (max) | TV of P(l) (max) |"
        " E max % (max) | processed 60 s % (max) | requests 60 s % (max) | ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for label, name, parameters, heavy in CASES:
        policy = make_policy(name, parameters)
        errors = []
        for instances in (8, 32, 128):
            for load in (0.5, 1.0, 2.0, 4.0, 8.0):
                rate = load / (FIXED_S + SLOPE_S * load) * instances
                hit = HITS.get(name, (2_000, 1_000))
                gaps = lognormal if heavy else exponential
                toy = run_toy(
                    policy, instances, rate, rates, turns, gaps, hits=np.array([hit]),
                    weights=amounts, requests=options.requests,
                )  # fmt: skip
                think = ThinkTime.lognormal(GAP_S, SIGMA) if heavy else ThinkTime.exponential(GAP_S)
                cluster = RoutedCluster(
                    instances=instances,
                    arrival_rate_rps=toy.arrival_rate,
                    completion_rate_rps=rates,
                    policy=policy,
                    turns=TurnLaw.from_follow_up_ratio(toy.follow_up_ratio),
                    think_time=think,
                    follow_ups=FollowUpHits(np.array([hit[0]]), np.array([hit[1]])),
                )
                solved = stickiness(cluster)
                began = time.process_time()
                stickiness(cluster)
                spent = 1e3 * (time.process_time() - began)
                mean = toy.load_law @ np.arange(toy.load_law.size)
                size = max(toy.load_law.size, solved.load_law.size)
                law = np.zeros((2, size))
                law[0, : toy.load_law.size] = toy.load_law
                law[1, : solved.load_law.size] = solved.load_law_over_time
                ratios = [
                    100
                    * (imbalance(solved, q, 60.0, weights).mean / toy.max_over_mean(q).mean() - 1)
                    for q in ("processed_tokens", "requests")
                ]
                errors.append(
                    (
                        solved.migrated_ratio - toy.migrated.sum(),
                        solved.return_to_first_ratio - toy.return_to_first,
                        100 * (solved.mean_load / mean - 1),
                        0.5 * np.abs(law[0] - law[1]).sum(),
                        100 * (solved.largest_load_mean / toy.mean_maximum - 1),
                        *ratios,
                        spent,
                    )
                )
        table = np.abs(np.array(errors))
        cells = [
            f"{m:.3f} ({x:.3f})" if k in (0, 1, 3) else f"{m:.1f} ({x:.1f})"
            for k, (m, x) in enumerate(zip(table.mean(axis=0), table.max(axis=0), strict=True))
        ]
        cells[-1] = f"{np.median(table[:, -1]):.1f}"
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
