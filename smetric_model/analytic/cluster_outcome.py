"""From a cluster's closed form to the row of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.cluster import ClusterState, ColocatedCluster, engine_resource

if TYPE_CHECKING:
    from smetric_model.outcome import Outcome

__all__ = ["outcome_of"]

FloatArray = NDArray[np.float64]

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
#: Above this share of its capacity a resource is what limits throughput.
_SATURATED = 0.95


def outcome_of(cluster: ColocatedCluster, state: ClusterState) -> Outcome:
    """Return the outcome of a cluster at a rate.

    Parameters
    ----------
    cluster : ColocatedCluster
        The scenario.
    state : ClusterState
        Its fixed point at a rate.

    Returns
    -------
    Outcome
    """
    from smetric_model.outcome import Outcome

    loaded, rate = state.loaded, state.rate_rps
    probability = loaded.slo_probability()
    both = float(probability.both.mean())
    scenario, demand = cluster.scenario, cluster.demand
    unservable = demand.unservable_ratio
    window = scenario.workload
    values = {
        "scenario_id": scenario.scenario_id,
        "verb": "predict",
        "policy": scenario.router.policy,
        "seed": scenario.seed,
        "arrival_rate_rps": rate / (1 - unservable),
        "warmup_s": window.warmup_s,
        "window_s": window.window_s,
        "requests": rate / (1 - unservable) * window.window_s,
        "unservable_ratio": unservable,
        "within_slo_ratio": both,
        "timed_out_ratio": 0.0,
        **_tokens(cluster, state, probability.both),
        **_latencies(state),
        **_hits(cluster, state),
        **_stickiness(cluster, state),
        **_limits(cluster, state),
        "valid": True,
        "note": "; ".join(_notes(cluster, state)),
    }
    values["inflight_requests_mean"] = rate * float(values["e2e_mean_s"])
    if (
        both < scenario.slo.attainment
        and max(
            float(values[f"{name}_utilisation_ratio"])
            for name in ("compute", "kv", "nic_in", "pcie")
        )
        < _SATURATED
    ):
        late = 1 - float(probability.ttft.mean())
        slow = 1 - float(probability.tpot.mean())
        values["binding_resource"] = "ttft" if late >= slow else "tpot"
    return Outcome(values)


def _tokens(cluster: ColocatedCluster, state: ClusterState, both: FloatArray) -> dict[str, float]:
    """Tokens per second: means of all requests of the window, shares within SLO of the picked."""
    rows, demand = cluster.work.rows, cluster.demand
    prompt, output = state.mixed.prompt, state.mixed.output
    reused = state.mixed.local + state.mixed.fetched
    means = {
        "prompt": float(demand.prompt_tokens[rows].mean()),
        "output": float(demand.output_tokens[rows].mean()),
    }
    reuse_ratio = min(state.local_ratio + state.global_ratio, 1.0)
    means["reused_prompt"] = means["prompt"] * reuse_ratio
    means["computed_prompt"] = means["prompt"] - means["reused_prompt"]
    picked = {
        "prompt": prompt,
        "output": output,
        "reused_prompt": reused,
        "computed_prompt": prompt - reused,
    }
    within = {}
    for name, tokens in picked.items():
        whole = float(tokens.sum())
        share = float((tokens * both).sum()) / whole if whole > 0 else 0.0
        within[name] = means[name] * share
    # the parts are rounded apart: prompt is their sum
    within["prompt"] = within["reused_prompt"] + within["computed_prompt"]
    means["total"] = means["prompt"] + means["output"]
    within["total"] = within["prompt"] + within["output"]
    result = {f"{name}_tps": state.rate_rps * value for name, value in means.items()}
    result |= {f"{name}_within_slo_tps": state.rate_rps * v for name, v in within.items()}
    return result


def _latencies(state: ClusterState) -> dict[str, float]:
    loaded, fetch_s = state.loaded, state.mixed.fetch_s
    steps = np.maximum(loaded.instance.mix.output_tokens - 1.0, 0.0)
    decode = loaded.mean_decode_s()
    ttft = loaded.mean_ttft_s()
    result = {
        "ttft_mean_s": ttft,
        "tpot_mean_s": decode / steps.mean() if steps.any() else float("nan"),
        "e2e_mean_s": ttft + decode,
        "queue_mean_s": loaded.mean_wait_s(),
        "fetch_mean_s": float(fetch_s.mean()),
    }
    shares = list(_QUANTILES.values())
    for name, values in (
        ("ttft", loaded.ttft_quantiles_s(shares)),
        ("tpot", loaded.tpot_quantiles_s(shares)),
        ("fetch", [float(v) for v in np.quantile(fetch_s, shares)]),
    ):
        result |= {f"{name}_{q}_s": v for q, v in zip(_QUANTILES, values, strict=True)}
    return result


def _hits(cluster: ColocatedCluster, state: ClusterState) -> dict[str, float]:
    local, total = state.local_ratio, state.local_ratio + state.global_ratio
    total = min(total, 1.0)
    result = {
        "local_ratio": local,
        "global_ratio": total - local,
        "peer_ratio": 0.0,
        "recomputed_ratio": 1 - total,
    }
    reuse = cluster.demand.session_reuse
    rows = cluster.work.local.rows
    reused = state.total_tokens
    whole = float(reused.sum())
    if whole > 0:
        # a hit is a prefix: the framework's part comes first, the session's own last
        system = np.minimum(reuse.system_tokens[rows], reused)
        other = np.maximum(
            cluster.work.reusable - reuse.system_tokens[rows] - reuse.intra_tokens[rows], 0.0
        )
        other = np.minimum(other, reused - system)
        shares = (float((reused - system - other).sum()), float(system.sum()), float(other.sum()))
        for name, tokens in zip(("intra", "system", "other"), shares, strict=True):
            result[f"{name}_reuse_ratio"] = tokens / whole
    return result


def _stickiness(cluster: ColocatedCluster, state: ClusterState) -> dict[str, float]:
    routed = state.routed
    if not cluster.work.follow_up_ratio:
        return {}
    previous = routed.return_to_previous_ratio
    first = routed.return_to_first_ratio
    if routed.rule.first_turn != "hash":
        first = cluster.work.return_ratio(previous, cluster.cluster.instances)
    return {
        "return_to_first_ratio": first,
        "return_to_previous_ratio": previous,
        **{
            f"migrated_{cause}_ratio": getattr(routed, f"migrated_{cause}_ratio")
            for cause in ("overload", "evicted", "other")
        },
    }


def _limits(cluster: ColocatedCluster, state: ClusterState) -> dict[str, float | str]:
    used = {
        "compute": state.computing,
        "kv": min(state.pinned_tokens / cluster.demand.pool_tokens, 1.0),
        "nic_in": state.fetches.nic_utilisation,
        "nic_out": state.fetches.nic_utilisation,
        "pcie": state.fetches.pcie_utilisation,
    }
    busiest = max(used, key=lambda name: used[name])
    if busiest == "compute":
        busiest = engine_resource(state.loaded.instance)
    result: dict[str, float | str] = {
        f"{name}_utilisation_ratio": value for name, value in used.items()
    }
    result["binding_resource"] = busiest
    return result


def _notes(cluster: ColocatedCluster, state: ClusterState) -> list[str]:
    notes = list(state.notes)
    if cluster.fitted.carried_over:
        notes.append(
            f"efficiencies of {cluster.fitted.fitted_for} carried over to"
            f" {cluster.demand.instance.gpu.name}"
        )
    notes += [f"{count} requests {reason}" for reason, count in cluster.demand.unservable.items()]
    return notes
