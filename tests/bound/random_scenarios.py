"""Random small scenarios that strain one resource each, with forks and branches."""

from __future__ import annotations

import numpy as np
import pandas as pd

from smetric_model.scenario import Scenario
from smetric_model.workload.prefix_tree import PrefixTreeBuilder
from smetric_model.workload.trace import LoadReport, Trace

KINDS = ("compute", "kv", "link")
BLOCK = 64


def random_trace(seed: int, kind: str, horizon_s: float, sessions: int) -> Trace:
    """Sessions with shared system prompts that grow, rewind, fork from others and repeat."""
    rng = np.random.default_rng([seed, 7])
    fresh = iter(range(1000, 10**9))

    def blocks(count: int) -> list[int]:
        return [next(fresh) for _ in range(count)]

    systems = [blocks(int(rng.integers(4, 80))) for _ in range(3)]
    long = {"compute": 90, "kv": 350, "link": 200}[kind]
    growth = {"compute": 15, "kv": 6, "link": 12}[kind]
    rows = []
    histories: list[list[int]] = []
    for session in range(sessions):
        history = list(systems[rng.integers(3)]) if rng.random() < 0.8 else []
        if histories and rng.random() < 0.2:  # a subagent that starts from another's context
            other = histories[rng.integers(len(histories))]
            history = other[: int(rng.integers(len(other) + 1))]
        history = history + blocks(int(rng.integers(long // 3, long)))
        at = float(rng.random() * horizon_s * (0.3 if kind == "kv" else 1.0))
        for turn in range(int(rng.integers(8, 30) if kind == "kv" else rng.integers(1, 12))):
            if turn and rng.random() < 0.1:  # a rewind, and so a branch
                history = history[: int(rng.integers(1, len(history) + 1))]
            if not (turn and rng.random() < 0.05):  # else the same prompt again
                history = history + blocks(int(rng.integers(1, growth)))
            part = int(rng.integers(0, BLOCK))
            path = history + (blocks(1) if part else [])
            output = int(rng.integers(1, {"compute": 400, "kv": 60, "link": 60}[kind]))
            think = float(rng.exponential({"compute": 3.0, "kv": 25.0, "link": 15.0}[kind]))
            at += think + 0.5 if turn else 0.0
            tokens = len(history) * BLOCK + part
            rows.append((round(at, 3), session, turn, path, max(tokens, 1), output, think))
        histories.append(history)
    order = sorted(range(len(rows)), key=lambda k: rows[k][0])
    rows = [rows[k] for k in order]
    builder = PrefixTreeBuilder()
    root = builder.root(None)
    for row in rows:
        builder.add_ids([root], np.array(row[3], dtype=np.int64), [0, len(row[3])])
    n = len(rows)
    empty = pd.Categorical([None] * n, categories=[])
    turn = np.array([row[2] for row in rows])
    table = pd.DataFrame(
        {
            "request_id": np.arange(n),
            "session_id": np.array([row[1] for row in rows]),
            "turn": turn,
            "parent": np.full(n, -1),
            "arrival_s": np.array([row[0] for row in rows]),
            "prompt_tokens": np.array([row[4] for row in rows]),
            "output_tokens": np.array([row[5] for row in rows]),
            "think_time_s": np.where(turn > 0, [row[6] for row in rows], np.nan),
            "e2e_s": np.full(n, np.nan),
            "trigger": empty,
            "model": empty,
            "source_line": np.full(n, -1),
        }
    )
    # numbered by first arrival, as traces are
    first = {}
    for session in table["session_id"]:
        first.setdefault(session, len(first))
    table["session_id"] = table["session_id"].map(first)
    return Trace(table, builder.build(), BLOCK, "shared", LoadReport(), f"random-{seed}", "random")


def _pools(rng: np.random.Generator, instances: int) -> dict[str, object]:
    """One in four disaggregated."""
    if instances < 3 or rng.random() < 0.7:
        return {}
    decode = int(rng.integers(1, instances - 1))
    return {
        "serving": "disaggregated",
        "prefill_instances": instances - decode,
        "decode_instances": decode,
    }


def random_scenario(seed: int, kind: str) -> tuple[Scenario, Trace]:
    """A scenario and its trace; most runs are near or above what the cluster carries."""
    rng = np.random.default_rng([seed, 3])
    window, warmup = 240.0, 120.0
    instances = int(rng.integers(2, 6))
    load = float(rng.choice([0.4, 0.7, 1.0]))
    per_instance = {"compute": 110, "kv": 16, "link": 40}[kind]
    pools = _pools(rng, instances)
    sessions = max(4, int(per_instance * instances * load))
    trace = random_trace(seed, kind, warmup + window, sessions)
    pool = {"compute": 0.9, "kv": 0.66, "link": 0.68}[kind]
    tier = {"compute": 100e9, "kv": float(rng.choice([0.0, 0.0, 4e9])), "link": 60e9}[kind]
    scenario = Scenario.from_dict(
        {
            "name": f"random-{kind}-{seed}",
            "seed": seed,
            "engine": {
                "memory_utilisation": pool + float(rng.uniform(0, 0.02)),
                "max_running_requests": int(rng.choice([8, 64, 256])),
                "token_budget": int(rng.choice([1024, 8192])),
                "mode": str(rng.choice(["graph", "eager"])),
            },
            "cluster": {
                "instances": instances,
                "gpus_per_node": int(rng.integers(1, 3)),
                "nic_efficiency": "measured" if kind != "link" else 0.04 if pools else 0.01,
                **pools,
            },
            "global_tier": {
                "bytes_per_node": tier,
                "fetch": str(rng.choice(["async", "stall"])),
                "recompute_if_faster": bool(rng.random() < 0.5),
                "write": str(rng.choice(["through", "through", "back"])),
                "peer_fetch": bool(rng.random() < 0.25),
                "eviction": str(rng.choice(["lru", "dead-first", "clairvoyant"])),
            },
            "local_tier": {"eviction": str(rng.choice(["lru", "dead-first", "clairvoyant"]))},
            "workload": {
                "trace": trace.source,
                "rate_rps": "trace",
                "window_s": window,
                "warmup_s": warmup,
                "start": "cold",
                "loop": str(rng.choice(["closed", "open"])),
            },
            "slo": {
                "ttft_base_s": float(rng.choice([2.0, 8.0, 20.0])),
                "ttft_per_prompt_token_s": float(rng.choice([0.0, 0.0005])),
                "tpot_s": float(rng.choice([0.03, 0.06, 0.15])),
            },
        }
    )
    return scenario, trace
