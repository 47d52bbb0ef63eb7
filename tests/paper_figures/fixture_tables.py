"""Small result table and profiles, shaped as real ones; numbers made up."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from smetric_model.reproduction.parameters import load_parameters
from smetric_model.reproduction.profiles import PROBABILITIES
from smetric_model.reproduction.table import frame

PRESET = "bailian-trace-1-medium"
TIERS = {"none": 0.0, "0.8x": 0.8, "1.6x": 1.6, "full": 5.6}
LOADS = (0.5, 1.0, 1.25, 1.5, 1.75, 2.0)
SEEDS = (1, 2)
_STRENGTH = {"smetric": 1.0, "smetric-basic": 0.96, "bailian": 0.9, "lmetric": 0.85}


def results() -> pd.DataFrame:
    """Every set-up and policy at some loads and tiers, and the sweeps of the router's keys."""
    rows = []
    parameters = load_parameters()
    for setup in parameters.setups:
        for policy in setup.policies:
            for tier, ratio in TIERS.items():
                rows += [
                    _row(setup.name, policy, tier, ratio, load, seed)
                    for load in LOADS
                    for seed in SEEDS
                ]
    for key, values in parameters.router_sweeps.items():
        for value in values:
            rows += [
                _row("colocated-30b", "smetric", "full", 5.6, load, seed)
                | {"study": "router", "assumption": key, "variant": f"{key} = {value}"}
                | {key.partition(".")[2]: min(value, 1e9)}
                for load in (1.0, 1.5)  # the figure takes one of them
                for seed in SEEDS
            ]
    return frame(rows)


def _row(setup, policy, tier, ratio, load, seed):
    strength = _STRENGTH.get(policy, 0.8)
    goodput = 4e5 * load * strength / (1 + math.exp(9 * (load - 1.5 * strength)))
    goodput *= 0.7 + 0.3 * min(ratio / 2, 1)
    local = (0.06 if policy in ("load-balance", "dynamo") else 0.6) * strength
    return {
        "setup": setup,
        "preset": PRESET,
        "study": "sweep",
        "assumption": "",
        "variant": "",
        "policy": policy,
        "tier": tier,
        "load": load,
        "seed": seed,
        "verb": "simulate",
        "rate_rps": 8.0 * load,
        "tier_ratio": ratio,
        "overload": 2.0,
        "hit_ratio": 0.5,
        "goodput_tps": goodput * (1 + 0.02 * seed),
        "local_ratio": local,
        "global_ratio": 0.74 - local if ratio else 0.0,
        "return_to_first_ratio": 0.04 if policy == "load-balance" else 0.9 * strength,
        "imbalance_processed_tokens_60s_mean": 2 + strength,
        "imbalance_unprefilled_tokens_60s_mean": 3 + strength,
        "imbalance_processed_tokens_30s_p75": 2.4,
        "imbalance_processed_tokens_30s_p90": 2.8,
        "valid": True,
    }


def profiles() -> pd.DataFrame:
    """Distributions and minute loads of every set-up and policy."""
    rng = np.random.default_rng(0)
    parts = []
    for setup in load_parameters().setups:
        for policy in setup.policies:
            key = {"setup": setup.name, "preset": PRESET, "policy": policy}
            for name, median in (("ttft_s", 1.2), ("tpot_s", 0.02), ("imbalance_30s", 2.0)):
                value = median * (PROBABILITIES / (1 - PROBABILITIES)) ** 0.4
                parts.append(
                    pd.DataFrame(
                        {"quantity": name, "at": PROBABILITIES, "minute": np.nan, "value": value}
                    ).assign(**key)
                )
            count = setup.scenario.cluster.prefill_instances or setup.scenario.cluster.instances
            place, minute = np.divmod(np.arange(count * 10), 10)
            for name in ("processed_tokens", "inflight_tokens", "unprefilled_tokens"):
                value = 1e6 * rng.gamma(3.0, 1.0, count * 10)
                parts.append(
                    pd.DataFrame(
                        {"quantity": name, "at": place, "minute": minute, "value": value}
                    ).assign(**key)
                )
    return pd.concat(parts, ignore_index=True)
