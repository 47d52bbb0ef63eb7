"""First turns crowd where the system prompt lies: the closed form against the simulator.

Agent traffic with 1, 6 and 50 frameworks under SMetric, Bailian and LMetric.  Simulated: every
engine step, caches as they are.  Closed form: the routing mean field, told the workload (turns,
think times, prompts, frameworks), the instance's completion rates for the simulated mix of hits,
and the characteristic time of the local tier; nothing of where requests went.  ``predict`` is told
the trace and the rate that came about, nothing else.

    python benchmarks/first_turn_crowding.py [--out table.json]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smetric_model.analytic.batching import ColocatedInstance, RequestMix
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.imbalance import imbalance
from smetric_model.analytic.predict import predict
from smetric_model.analytic.request_weights import RequestWeights
from smetric_model.analytic.returns import TurnLaw
from smetric_model.analytic.routed_cluster import FollowUpHits, Frameworks, RoutedCluster
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.stickiness import Stickiness, stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.routing import make_policy
from smetric_model.scenario import Scenario
from smetric_model.simulate.run import Simulation, simulate_in_detail
from smetric_model.workload.synthesis import generate, preset_parameters

INSTANCES, RATE_RPS, WARMUP_S, WINDOW_S = 16, 6.0, 3600.0, 3600.0
POLICIES = ("smetric", "bailian", "lmetric")
COUNTS = (1, 6, 50)
PRESET = "bailian-trace-1-short"
QUANTITIES = ("processed_tokens", "inflight_tokens", "requests")
FEWEST = 20  # first turns of a framework in the window from which it is counted


def parameters(frameworks: int) -> Any:
    """The preset with long system prompts, few rewrites, no forks, and so many frameworks."""
    base = preset_parameters(PRESET)
    length = type(base.frameworks.system_tokens)
    return base.replace(
        frameworks=replace(
            base.frameworks,
            count=frameworks,
            toolsets=1,
            system_tokens=length(6000.0, 0.3),
            tool_tokens=length(4000.0, 0.3),
        ),
        forks=replace(base.forks, spawn_ratio=0.0),
        history=replace(base.history, rewrite_ratio=0.05),
    )


def scenario(policy: str, seed: int, rate_rps: float) -> Scenario:
    return Scenario(
        seed=seed,
        cluster={"instances": INSTANCES},
        workload={
            "preset": PRESET,
            "rate_rps": rate_rps,
            "warmup_s": WARMUP_S,
            "window_s": WINDOW_S,
        },
        router={"policy": policy},
    )


def top_segments(trace: Any) -> np.ndarray:
    """The first segment below the root of each request: its framework."""
    tree = trace.tree
    top = np.arange(tree.parent.size)
    for segment in range(tree.parent.size):
        above = tree.parent[segment]
        if above >= 0 and tree.parent[above] >= 0:
            top[segment] = top[above]
    return top[tree.request_segment]


def common_blocks(trace: Any, rows: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Blocks that a request shares with its session's previous one."""
    tree = trace.tree
    result = np.zeros(rows.size, dtype=np.int64)
    for k, (row, before) in enumerate(zip(rows.tolist(), previous.tolist(), strict=True)):
        a, b = int(tree.request_segment[row]), int(tree.request_segment[before])
        reach = min(int(tree.request_blocks[row]), int(tree.request_blocks[before]))
        while a != b:
            if a > b:
                a = int(tree.parent[a])
                reach = min(reach, int(tree.end_block[a]))
            else:
                b = int(tree.parent[b])
                reach = min(reach, int(tree.end_block[b]))
        result[k] = min(reach, int(tree.end_block[a]))
    return result


def closed_form(given: Scenario, run: Simulation, params: Any) -> Stickiness:
    """The mean field of a simulated scenario, from its workload and its mix of hits."""
    trace = run.prepared.trace
    served = run.outcome.requests
    served = served[served["status"] == "served"]
    hit = (served["local_tokens"] + served["global_tokens"]).to_numpy(float)
    demand = demand_of(given, trace)
    keep = np.linspace(0, len(served) - 1, 400).astype(int)
    order = np.argsort(served["prompt_tokens"].to_numpy(), kind="stable")[keep]
    mix = RequestMix(
        served["prompt_tokens"].to_numpy(float)[order],
        served["output_tokens"].to_numpy(float)[order],
        hit[order],
        np.zeros(order.size),
    )
    instance = ColocatedInstance(
        step_model(demand.instance),
        mix,
        demand.pool_tokens,
        demand.instance.token_budget,
        given.engine.max_running_requests,
    )
    # sessions, think times and histories as the trace has them
    inputs = run.prepared.inputs.requests
    previous = inputs.previous
    rows = np.flatnonzero(previous >= 0)
    rows = rows[np.linspace(0, rows.size - 1, min(rows.size, 4000)).astype(int)]
    block = trace.block_tokens
    shared = common_blocks(trace, rows, previous[rows]) * block
    prompt = inputs.prompt_tokens[rows].astype(float)
    gaps = inputs.think_ticks[rows] / 1e12
    busy = run.outcome["arrival_rate_rps"] / INSTANCES
    batch = min(instance.mean_batch(min(busy, 0.95 * instance.stability_rps)), instance.max_batch)
    free = demand.pool_tokens - batch * instance.mean_resident_tokens
    tau = demand.profile.retention_s(INSTANCES * free, run.outcome["arrival_rate_rps"])
    whole = params.frameworks.prefix_tokens()[1][:, 0].astype(float)
    kinds = params.frameworks.shares()
    evicted = gaps > tau
    prefix = float(kinds @ whole)
    home = np.where(evicted, np.minimum(prefix, shared), np.maximum(shared, 1))
    first = inputs.turn == 0
    own = np.maximum(inputs.prompt_tokens[first] - prefix, 64.0)
    sessions = np.unique(trace.column("session_id"), return_counts=True)[1]
    return stickiness(
        RoutedCluster(
            instances=INSTANCES,
            arrival_rate_rps=run.outcome["arrival_rate_rps"],
            completion_rate_rps=instance.completion_rate_rps,
            policy=make_policy(given.router.policy),
            turns=TurnLaw.from_turns(sessions),
            think_time=ThinkTime.fit(gaps),
            follow_ups=FollowUpHits(
                prompt,
                np.minimum(home, prompt),
                np.minimum(shared, prompt),
                np.minimum(prefix, prompt),
            ),
            frameworks=Frameworks(kinds, whole, own, tau, WARMUP_S + WINDOW_S / 2),
        )
    )


def serving(run: Simulation, frameworks: int) -> tuple[np.ndarray, np.ndarray]:
    """First turns by framework (most popular first) and instance, and which are counted."""
    top = top_segments(run.prepared.trace)
    requests = run.outcome.requests
    first = requests[(requests["turn"] == 0) & (requests["instance"] >= 0)]
    kinds, index = np.unique(top, return_inverse=True)
    table = np.zeros((kinds.size, INSTANCES))
    rows = index[first["request_id"].to_numpy()]
    np.add.at(table, (rows, first["instance"].to_numpy()), 1.0)
    table = table[np.argsort(-table.sum(axis=1))]
    return table, table.sum(axis=1) >= FEWEST


def compare(frameworks: int, policy: str, seed: int, rate_rps: float) -> dict[str, Any]:
    params = parameters(frameworks)
    given = scenario(policy, seed, rate_rps)
    trace = generate(params, rate_rps=rate_rps, window_s=WARMUP_S + 2 * WINDOW_S, seed=seed)
    run = simulate_in_detail(given, trace=trace)
    began = time.process_time()
    solved = closed_form(given, run, params)
    stickiness(solved.cluster)
    began = time.process_time()
    stickiness(solved.cluster)
    spent = time.process_time() - began
    requests = run.outcome.requests
    served = requests[requests["status"] == "served"]
    table, counted = serving(run, frameworks)
    total = table[counted].sum(axis=1)
    met = (table[counted] * (table[counted] - 1)).sum(axis=1) / (total * (total - 1))
    weights = total / total.sum()
    predicted = solved.prefixes.serving_instances(WINDOW_S)
    popular = np.argsort(-solved.cluster.frameworks.popularity)[: total.size]
    tokens = (served["prompt_tokens"] + served["output_tokens"]).to_numpy(float)
    session = served["session_id"].to_numpy()
    row: dict[str, Any] = {
        "frameworks": frameworks,
        "policy": policy,
        "seed": seed,
        "busy_simulated": run.outcome["compute_utilisation_ratio"],
        "solve_ms": 1e3 * spent,
        "serving_simulated": float(1 / (weights @ met)) if total.size else float("nan"),
        "serving_closed": float(1 / (weights @ (1 / predicted[popular]))) if total.size else 0.0,
        "load_simulated": run.outcome["inflight_requests_mean"] / INSTANCES,
        "load_closed": solved.mean_load,
    }
    asked = given.replace(**{"workload.rate_rps": run.outcome["arrival_rate_rps"]})
    predicted_row = predict(asked, trace=trace)
    for name in ("return_to_first_ratio", "return_to_previous_ratio"):
        row[f"{name}_predict"] = predicted_row[name]
        row[f"{name}_simulated"] = run.outcome[name]
        row[f"{name}_closed"] = getattr(solved, name)
    for quantity in QUANTITIES:
        present = served["e2e_s"].to_numpy() if quantity == "inflight_tokens" else None
        law = RequestWeights.of(tokens, session, present)
        row[f"{quantity}_simulated"] = run.outcome[f"imbalance_{quantity}_60s_mean"]
        row[f"{quantity}_predict"] = predicted_row[f"imbalance_{quantity}_60s_mean"]
        row[f"{quantity}_closed"] = imbalance(solved, quantity, 60.0, law).mean
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rate", type=float, default=RATE_RPS)
    options = parser.parse_args()
    rows = []
    for count in COUNTS:
        for policy in POLICIES:
            for seed in range(1, options.seeds + 1):
                row = compare(count, policy, seed, options.rate)
                rows.append(row)
                pairs = [k[: -len("_closed")] for k in row if k.endswith("_closed")]
                text = "  ".join(
                    f"{k} {row[f'{k}_simulated']:.3f}/{row[f'{k}_closed']:.3f}"
                    + (f"/{row[f'{k}_predict']:.3f}" if f"{k}_predict" in row else "")
                    for k in pairs
                )
                head = f"{policy} F={count} busy {row['busy_simulated']:.2f}"
                print(f"{head} {row['solve_ms']:.0f} ms  {text}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
