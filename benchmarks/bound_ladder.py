"""The ladder for the paper's three set-ups and both shared traces.

Usage: ``python benchmarks/bound_ladder.py [NAME ...]``; names: colocated-30b, colocated-235b,
disaggregated-30b, no-tier, mooncake, weka (the last two with ``SMETRIC_SHARED``).  Every policy and
eviction is simulated at several rates up to above what the cluster carries; the bound stands beside
the best of them.  Minutes each.
"""

from __future__ import annotations

import os
import sys
import time

import pandas as pd

from smetric_model.bound.ladder import ladder
from smetric_model.bound.solvers import SolverOptions
from smetric_model.scenario import Scenario

POLICIES = ("smetric", "bailian", "load-balance")
BASE = {
    "workload": {"preset": "bailian-trace-1-medium", "warmup_s": 600.0, "window_s": 600.0},
    "global_tier": {"bytes_per_node": 1280e9},
}
LARGE = {"name": "Qwen3-235B-A22B-FP8"}
SETUPS: dict[str, tuple[dict[str, object], tuple[float, ...]]] = {
    "colocated-30b": ({}, (6.0, 14.0)),
    "colocated-235b": (
        {"llm": LARGE, "engine": {"tp": 4}, "cluster": {"instances": 8}},
        (1.5, 3.0),
    ),
    "disaggregated-30b": (
        {
            "cluster": {
                "serving": "disaggregated",
                "prefill_instances": 24,
                "decode_instances": 8,
            },
            "slo": {"tpot_s": 0.1},
        },
        (8.0, 14.0),
    ),
    "no-tier": ({"global_tier": {"bytes_per_node": 0.0}}, (6.0, 7.0)),
}
TRACES = {
    "mooncake": ("mooncake-conversation.jsonl.gz", (3.0, 6.0)),
    "weka": ("weka-claude-code-120.jsonl.gz", (2.0, 4.0)),
}


def scenario_of(name: str) -> tuple[Scenario, tuple[float, ...]]:
    if name in SETUPS:
        changes, rates = SETUPS[name]
        return Scenario.from_dict({"name": name, **BASE, **changes}), rates
    file, rates = TRACES[name]
    workload = {
        "trace": os.path.join(os.environ["SMETRIC_SHARED"], "traces", file),
        "warmup_s": 600.0,
        "window_s": 600.0,
        "session_start": "poisson",
    }
    return Scenario.from_dict({"name": name, **BASE, "workload": workload}), rates


def main(names: list[str]) -> None:
    pd.set_option("display.width", 200, "display.max_columns", 20)
    known = [*SETUPS, *(TRACES if "SMETRIC_SHARED" in os.environ else ())]
    for name in names or known:
        start = time.perf_counter()
        scenario, rates = scenario_of(name)
        table = ladder(
            scenario,
            POLICIES,
            rates,
            evictions=("clairvoyant", "lru"),
            options=SolverOptions("highs-direct"),
        )
        print(f"== {name} ({time.perf_counter() - start:.0f} s)")
        print(table.to_string(index=False, float_format=lambda value: f"{value:,.3g}"))
        simulated = table[table["rung"] == "simulated"]
        bound = float(table["total_tps"].iloc[0])
        best = simulated.groupby("eviction")["total_tps"].max()
        print(
            f"   volume bound over best simulated:"
            f" {bound / best.max():.3f} (with LRU only {bound / best.get('lru'):.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
