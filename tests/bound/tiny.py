"""Tiny clusters on which every placement can be simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from smetric_model.bound.problem import make_problem, realised_timeline
from smetric_model.bound.solvers import SolverOptions
from smetric_model.bound.timed import timed_bound
from smetric_model.scenario import Scenario
from smetric_model.simulate import engine
from smetric_model.simulate.prepare import prepare
from smetric_model.simulate.tables import request_table
from smetric_model.simulate.workload import replayed_trace
from smetric_model.workload.prefix_tree import PrefixTreeBuilder
from smetric_model.workload.trace import LoadReport, Trace

BLOCK = 256


def tiny_scenario(seed: int, requests: int = 5) -> tuple[Scenario, Trace]:
    """Two instances, a few requests of two or three sessions, an SLO that some may miss."""
    rng = np.random.default_rng([seed, 11])
    fresh = iter(range(10**9))
    sessions = int(rng.integers(2, 4))
    histories = [[next(fresh) for _ in range(rng.integers(10, 120))] for _ in range(sessions)]
    builder = PrefixTreeBuilder()
    root = builder.root(None)
    arrival = np.sort(np.round(rng.random(requests) * float(rng.choice([4.0, 15.0])), 3))
    rows = []
    for at in arrival.tolist():
        session = int(rng.integers(sessions))
        histories[session] = histories[session] + [next(fresh) for _ in range(rng.integers(1, 20))]
        path = histories[session]
        builder.add_ids([root], np.array(path, dtype=np.int64), [0, len(path)])
        rows.append((session, at, len(path) * BLOCK, int(rng.integers(1, 150))))
    n = len(rows)
    empty = pd.Categorical([None] * n, categories=[])
    names: dict[int, int] = {}
    numbers = [names.setdefault(row[0], len(names)) for row in rows]
    turns = [numbers[:k].count(numbers[k]) for k in range(n)]
    table = pd.DataFrame(
        {
            "request_id": np.arange(n),
            "session_id": np.array(numbers),
            "turn": np.array(turns),
            "parent": np.full(n, -1),
            "arrival_s": arrival,
            "prompt_tokens": np.array([row[2] for row in rows]),
            "output_tokens": np.array([row[3] for row in rows]),
            "think_time_s": np.full(n, np.nan),
            "e2e_s": np.full(n, np.nan),
            "trigger": empty,
            "model": empty,
            "source_line": np.full(n, -1),
        }
    )
    trace = Trace(table, builder.build(), BLOCK, "shared", LoadReport(), f"tiny-{seed}", "tiny")
    scenario = Scenario.from_dict(
        {
            "name": f"tiny-{seed}",
            "engine": {"memory_utilisation": float(rng.choice([0.68, 0.75]))},
            "cluster": {"instances": 2, "gpus_per_node": 2},
            "global_tier": {"bytes_per_node": float(rng.choice([0.0, 20e9]))},
            "router": {"policy": "random"},
            "workload": {
                "trace": trace.source,
                "rate_rps": "trace",
                "warmup_s": 0.0,
                "window_s": 20.0,
                "start": "cold",
                "loop": "open",
            },
            "slo": {
                "ttft_base_s": float(rng.choice([0.5, 1.5, 4.0])),
                "ttft_per_prompt_token_s": float(rng.choice([0.0, 0.0002])),
                "tpot_s": float(rng.choice([0.015, 0.05])),
            },
        }
    )
    return scenario, trace


def best_placement(scenario: Scenario, trace: Trace) -> tuple[float, float, float, int]:
    """Most tokens within SLO over all placements; the bound on that run; offered; placements."""
    replayed, _ = replayed_trace(scenario, trace)
    prepared = prepare(scenario, replayed)
    count = int((prepared.inputs.requests.unservable == 0).sum())
    wanted = prepared.inputs.fabric.instances**count
    seen: set[tuple[int, ...]] = set()
    best, best_run = -1.0, None
    for seed in range(60 * wanted):
        inputs = replace(prepared.inputs, seed=seed)
        run = engine.run(inputs)
        placed = tuple(run.instance.tolist())
        if placed in seen:
            continue
        seen.add(placed)
        table = request_table(scenario, replace(prepared, inputs=inputs), run)
        tokens = table["prompt_tokens"] + table["output_tokens"]
        good = float(tokens[table["within_slo"]].sum())
        if good > best:
            best, best_run = good, run
        if len(seen) == wanted:
            break
    assert best_run is not None
    timeline = realised_timeline(scenario, prepared.inputs, best_run)
    problem = make_problem(scenario, prepared.inputs, timeline)
    bound = timed_bound(
        problem,
        SolverOptions("highs-direct"),
        window_s=0.5,
        detail=np.inf,
    )
    return best, bound.bound_tokens, float(problem.value_tokens.sum()), len(seen)
