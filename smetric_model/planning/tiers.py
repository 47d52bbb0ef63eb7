"""What a workload asks of the KV tiers and links, and whether fetching pays."""

from __future__ import annotations

from typing import Any

import numpy as np

from smetric_model.analytic.fabric import fetch_bytes_per_s
from smetric_model.analytic.latency import prefill_time_s
from smetric_model.analytic.predict import Prediction
from smetric_model.planning.results import FetchAdvice, TierDemand

__all__ = ["fetch_advice", "tier_demand"]

_CURVE_POINTS = 60  # of the tier-size and fetch curves


def tier_demand(prediction: Prediction, rate_rps: float) -> TierDemand:
    """Work out what the workload asks of the KV tiers and links.

    Parameters
    ----------
    prediction : Prediction
        With ideal reuse.
    rate_rps : float
        Servable requests per second of the cluster [requests/s].

    Returns
    -------
    TierDemand
    """
    demand, cluster = prediction.demand, prediction.cluster
    profile, per_token = demand.profile, demand.kv_bytes_per_token
    hits = prediction.hits(rate_rps)
    instance, _ = prediction.instance_at(rate_rps)
    own = min(rate_rps / cluster.instances, 0.999 * instance.stability_rps)

    def store_bytes(age_s: Any) -> Any:
        return rate_rps * np.asarray(profile.resident_token_s(age_s)) * per_token

    # inf where sessions share no clock and the age of what another session left counts
    needed = {
        f"{share:.0%}": float(store_bytes(profile.retention_for(share)))
        for share in (0.5, 0.9, 0.95, 0.99)
    }
    provisioned = cluster.nodes * prediction.scenario.global_tier.bytes_per_node
    serves = profile.hit_ratio(profile.retention_s(provisioned / per_token, rate_rps))
    traffic = float(hits.fetched.mean()) + prediction.written_tokens(hits)
    link = rate_rps * cluster.remote_ratio * traffic * per_token / cluster.nodes
    used = prediction.nic_utilisation(rate_rps, hits.fetched)
    ages = np.unique([profile.retention_for(s) for s in np.linspace(0.01, 1, _CURVE_POINTS)])
    ages = ages[np.isfinite(ages)] if profile.reused_tokens > 0 else ages[:0]
    return TierDemand(
        rate_rps=rate_rps,
        local_bytes=cluster.instances * demand.pool_tokens * per_token,
        pinned_bytes=cluster.instances
        * instance.mean_batch(own)
        * instance.mean_resident_tokens
        * per_token,
        local_retention_s=hits.local_retention_s,
        local_ratio=prediction.prompt_share(hits.local),
        global_ratio=prediction.prompt_share(hits.fetched),
        global_bytes=needed,
        provisioned_bytes=provisioned,
        provisioned_serves_ratio=serves,
        link_bytes_per_s_per_node=link,
        link_capacity_bytes_per_s_per_node=link / used if used > 0 else float("nan"),
        curve_bytes=tuple(float(size) for size in store_bytes(ages)),
        curve_ratio=tuple(profile.hit_ratio(float(age)) for age in ages),
    )


def fetch_advice(prediction: Prediction) -> FetchAdvice | None:
    """Say whether fetching the workload's mean reusable prefix beats recomputing it.

    Parameters
    ----------
    prediction : Prediction
        For its cluster, instance and workload.

    Returns
    -------
    FetchAdvice or None
        None where nothing is reusable.
    """
    demand, cluster = prediction.demand, prediction.cluster
    reusable = demand.reusable_tokens[demand.reusable_tokens > 0]
    if not reusable.size:
        return None
    instance = demand.instance
    budget = instance.token_budget

    def recompute(tokens: Any) -> Any:
        return prefill_time_s(prediction.model, tokens, 0, budget)

    def fetch(tokens: Any, path: Any, fixed: float) -> Any:
        size = np.asarray(tokens, dtype=float) * demand.kv_bytes_per_token
        return fixed + size / fetch_bytes_per_s(
            cluster, instance.gpu, instance.tp, path, size, busy=True
        )

    fitted = prediction.fitted
    prefix = float(reusable.mean())
    alone = float(recompute(prefix))
    rdma = float(fetch(prefix, "rdma", fitted.rdma_fetch_s))
    dram = float(fetch(prefix, "dram", fitted.dram_fetch_s))
    lengths = np.unique(np.geomspace(16, max(float(reusable.max()), 32.0), 200).round())
    recomputed = recompute(lengths)
    by_rdma = fetch(lengths, "rdma", fitted.rdma_fetch_s)
    by_dram = fetch(lengths, "dram", fitted.dram_fetch_s)
    rdma_pays = _pays(lengths, by_rdma, recomputed)
    shown = np.unique(np.linspace(0, lengths.size - 1, _CURVE_POINTS).round().astype(int))
    if cluster.nodes == 1 and dram < alone:
        verdict = f"fetch, from the node's DRAM {alone / dram:.1f} times as fast as recomputing"
    elif cluster.nodes > 1 and rdma < alone:
        verdict = f"fetch, over RDMA {alone / rdma:.1f} times as fast as recomputing"
    elif dram < alone:
        verdict = "fetch from the own node only, over RDMA recomputing is faster"
    else:
        verdict = "recompute, the global tier is slower than prefilling"
    return FetchAdvice(
        prefix_tokens=prefix,
        recompute_s=alone,
        dram_s=dram,
        rdma_s=rdma,
        break_even_bytes_per_s=prefix * demand.kv_bytes_per_token / alone,
        break_even_tokens=rdma_pays[0][0] if rdma_pays else None,
        verdict=verdict,
        rdma_pays_tokens=rdma_pays,
        dram_pays_tokens=_pays(lengths, by_dram, recomputed),
        curve_tokens=tuple(float(x) for x in lengths[shown]),
        curve_recompute_s=tuple(float(x) for x in recomputed[shown]),
        curve_dram_s=tuple(float(x) for x in by_dram[shown]),
        curve_rdma_s=tuple(float(x) for x in by_rdma[shown]),
    )


def _pays(tokens: Any, fetch_s: Any, recompute_s: Any) -> tuple[tuple[float, float], ...]:
    """Ranges of lengths at which fetching is faster."""
    gain = np.log(recompute_s / fetch_s)
    pays = gain > 0
    before = np.flatnonzero(pays[1:] != pays[:-1])
    share = gain[before] / (gain[before] - gain[before + 1])
    crossings = tokens[before] * (tokens[before + 1] / tokens[before]) ** share
    ends = [*tokens[:1][pays[:1]], *crossings, *tokens[-1:][pays[-1:]]]
    return tuple((float(low), float(high)) for low, high in zip(ends[::2], ends[1::2], strict=True))
