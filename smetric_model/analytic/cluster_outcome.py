"""From a cluster's closed form to the row of the schema."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.balanced_holders import balanced_holding_of
from smetric_model.analytic.cluster import ClusterState, ColocatedCluster, engine_resource
from smetric_model.analytic.coverage import notes_left_out, too_far, two_states
from smetric_model.analytic.demand import copies_of
from smetric_model.analytic.imbalance import imbalance_columns
from smetric_model.analytic.loaded import SloProbability
from smetric_model.analytic.prefix_holders import ColdCluster, holding_of, returns_of
from smetric_model.analytic.quantiles import quantiles
from smetric_model.analytic.request_weights import RequestWeights

if TYPE_CHECKING:
    from smetric_model.analytic.decode_pool import DecodePool
    from smetric_model.analytic.disaggregated import DisaggregatedCluster
    from smetric_model.outcome import Outcome

__all__ = ["goodput_of", "outcome_of"]

FloatArray = NDArray[np.float64]

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_DECODES = 24  # times in a decode pool that stand for all
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

    rate = state.rate_rps
    probability = _slo_probability(cluster, state)
    both = float(probability.both.mean())
    scenario, demand = cluster.scenario, cluster.demand
    unservable = demand.unservable_ratio
    window = scenario.workload
    latencies = _latencies(cluster, state)
    invalid = too_far(cluster, state, latencies)
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
        **latencies,
        **_hits(cluster, state),
        **_stickiness(cluster, state),
        **_imbalance(cluster, state),
        **_limits(cluster, state),
        "valid": not invalid,
        "note": "; ".join((*_notes(cluster, state), *two_states(cluster, state), *invalid)),
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


def goodput_of(cluster: ColocatedCluster, state: ClusterState) -> dict[str, float]:
    """Return what searches look at, without quantiles, stickiness and imbalance.

    Parameters
    ----------
    cluster : ColocatedCluster
        The scenario.
    state : ClusterState
        Its fixed point at a rate.

    Returns
    -------
    dict of str to float
        ``within_slo_ratio`` and the columns in tokens per second of :func:`outcome_of`.
    """
    both = _slo_probability(cluster, state).both
    return {"within_slo_ratio": float(both.mean()), **_tokens(cluster, state, both)}


def _slo_probability(cluster: ColocatedCluster, state: ClusterState) -> SloProbability:
    probability = state.loaded.slo_probability()
    decode = getattr(cluster, "decode", None)
    if decode is not None:
        probability = _with_decode_pool(cluster, probability, decode)
    return probability


def _tokens(cluster: ColocatedCluster, state: ClusterState, both: FloatArray) -> dict[str, float]:
    """Tokens per second: means of all requests of the window, shares within SLO of the picked."""
    prompt, output = state.mixed.prompt, state.mixed.output
    reused = state.mixed.local + state.mixed.fetched
    means = {"prompt": cluster.work.mean_prompt, "output": cluster.work.mean_output}
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
        share = float(tokens @ both) / whole if whole > 0 else 0.0
        within[name] = means[name] * share
    # the parts are rounded apart: prompt is their sum
    within["prompt"] = within["reused_prompt"] + within["computed_prompt"]
    means["total"] = means["prompt"] + means["output"]
    within["total"] = within["prompt"] + within["output"]
    result = {f"{name}_tps": state.rate_rps * value for name, value in means.items()}
    result |= {f"{name}_within_slo_tps": state.rate_rps * v for name, v in within.items()}
    return result


def _with_decode_pool(
    cluster: ColocatedCluster, of_prefill: SloProbability, decode: DecodePool
) -> SloProbability:
    """Probabilities with the decode pool's TPOT; requests are independent of their batches."""
    within = decode.within(cluster.scenario.slo.tpot_s)
    several = float(np.mean(cluster.work.output_tokens > 1))
    tpot = np.full(of_prefill.ttft.size, several * float(within.mean()) + 1 - several)
    return SloProbability(of_prefill.ttft, tpot, of_prefill.ttft * tpot)


def _latencies(cluster: ColocatedCluster, state: ClusterState) -> dict[str, float]:
    loaded, fetch_s = state.loaded, state.mixed.fetch_s
    steps = np.maximum(state.mixed.output - 1.0, 0.0)
    pool: DecodePool | None = getattr(cluster, "decode", None)
    decode = loaded.mean_decode_s()
    if cluster.scenario.cluster.serving == "disaggregated":
        several = float(np.mean(cluster.work.output_tokens > 1))
        decode = 0.0 if pool is None else pool.mean_after_first_token_s() * several
    tpot = decode / steps.mean() if steps.any() else float("nan")
    if pool is not None:
        tpot = pool.mean_tpot_s()
    ttft = loaded.mean_ttft_s()
    shares = list(_QUANTILES.values())
    queue = loaded.queue_s(loaded.instance.mix.before_prefill_s - fetch_s, shares)
    result = {
        "ttft_mean_s": ttft,
        "tpot_mean_s": tpot,
        "e2e_mean_s": ttft + decode,
        "queue_mean_s": min(queue[0], ttft),
        "fetch_mean_s": float(fetch_s.mean()),
    }
    after = None
    if cluster.scenario.cluster.serving == "disaggregated":
        after = np.zeros(1)
        if pool is not None:
            at = pool.after_first_token_s(_DECODES)
            after = np.append(at, np.zeros(round(_DECODES * (1 - several) / max(several, 0.1))))
    for name, values in (
        ("ttft", loaded.ttft_quantiles_s(shares)),
        ("e2e", loaded.e2e_quantiles_s(shares, after)),
        ("tpot", (pool or loaded).tpot_quantiles_s(shares)),
        ("fetch", quantiles(fetch_s, shares)),
        ("queue", queue[1:]),
    ):
        result |= {f"{name}_{q}_s": v for q, v in zip(_QUANTILES, values, strict=True)}
    for q in _QUANTILES:
        # all but the first are made of few waits: near saturation their tails are coarser
        result[f"e2e_{q}_s"] = max(result[f"e2e_{q}_s"], result[f"ttft_{q}_s"])
        result[f"queue_{q}_s"] = min(result[f"queue_{q}_s"], result[f"ttft_{q}_s"])
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
    routed, work, hits = state.routed, cluster.work, state.hits
    if not work.follow_up_ratio:
        return {}
    rule = state.stay_rule
    if rule.needs_own and cluster.instances > 1:
        cold = ColdCluster.of(work, cluster.model)
        if rule.seeks_hits:
            holding = holding_of(work, routed, hits, state.pace, cold)
        else:
            holding = balanced_holding_of(work, routed, rule, hits, state.pace, cold)
        moved = returns_of(work, holding, rule, hits, routed, state.pace)
        return {
            "return_to_first_ratio": moved.first_ratio,
            "return_to_previous_ratio": moved.previous_ratio,
            "migrated_overload_ratio": moved.overload_ratio,
            "migrated_evicted_ratio": moved.evicted_ratio,
            "migrated_other_ratio": moved.other_ratio,
        }
    previous, first = routed.return_to_previous_ratio, routed.return_to_first_ratio
    tied = min(hits.tied, previous)
    evicted = routed.migrated_evicted_ratio
    # those that any holder of a shared prefix may serve have not moved for an eviction
    adrift = evicted * min(hits.adrift / max(hits.refused, 1e-12), 1.0)
    if routed.rule.first_turn != "hash":
        first = work.return_ratio(
            state.stay_rule, hits, state.rate_rps, cluster.instances, state.pace
        )
    return {
        "return_to_first_ratio": first,
        "return_to_previous_ratio": previous - tied,
        "migrated_overload_ratio": max(routed.migrated_overload_ratio, 0.0),
        "migrated_evicted_ratio": evicted - adrift,
        "migrated_other_ratio": max(routed.migrated_other_ratio + tied + adrift, 0.0),
    }


def _imbalance(cluster: ColocatedCluster, state: ClusterState) -> dict[str, float]:
    """Imbalance columns; what a request adds is as unequal as in the trace."""
    local, work = cluster.work.local, cluster.work
    if cluster.instances < 2:
        return {}
    session, total = work.session_labels, work.context_tokens
    ttft, step = state.pace.first_token_s, state.pace.per_output_token_s
    new = np.maximum(local.prompt - state.hits.tokens, 1.0)
    computed = np.maximum(local.prompt - state.total_tokens, 1.0)
    loaded = state.loaded
    each = loaded.instance.prefill_s(max(loaded.mean_batch - 1.0, 0.0))
    share = min(loaded.rate_rps * float(each.mean()), 1.0)
    if cluster.scenario.cluster.serving == "disaggregated":
        share = 0.0  # an engine that only prefills stops no decode
    prefill_s = computed * (loaded.stretched_prefill_s / float(computed.mean()))
    present_s = ttft + step * work.output_tokens
    weights = {
        "processed_tokens": work.context_weights.of_engine(total, computed, prefill_s, share),
        "inflight_tokens": RequestWeights.of(total, session, present_s),
        # a prompt waits longer the more of it is new
        "unprefilled_tokens": RequestWeights.of(new, session, present_s=new, duration_s=ttft),
    }
    columns = imbalance_columns(
        state.routed, weights, observed_s=cluster.scenario.workload.window_s
    )
    return {name: value for name, value in columns.items() if math.isfinite(value)}


def _limits(cluster: ColocatedCluster, state: ClusterState) -> dict[str, float | str]:
    used = {
        "compute": state.computing,
        "kv": min(state.pinned_tokens / cluster.demand.pool_tokens, 1.0),
        "nic_in": min(state.fetches.nic_utilisation, 1.0),
        "nic_out": min(state.fetches.nic_utilisation, 1.0),
        "pcie": state.fetches.pcie_utilisation,
    }
    busiest = max(used, key=lambda name: used[name])
    if busiest == "compute":
        busiest = engine_resource(state.loaded.instance)
    result: dict[str, float | str] = {
        f"{name}_utilisation_ratio": value for name, value in used.items()
    }
    result["binding_resource"] = busiest
    if cluster.scenario.cluster.serving == "disaggregated":
        result |= _pools(cluster, state)  # type: ignore[arg-type]
    return result


def _pools(cluster: DisaggregatedCluster, state: ClusterState) -> dict[str, float | str]:
    """Utilisation by pool and in all, the transfer's waits, and the busiest of the pools."""
    pool = cluster.decode
    prefill, decode = cluster.instances, cluster.decode_instances
    both = prefill + decode
    own = {
        "prefill_compute": state.computing,
        "prefill_kv": min(state.pinned_tokens / cluster.demand.pool_tokens, 1.0),
        "prefill_pcie": state.fetches.pcie_utilisation,
        "decode_compute": pool.computing if pool else 0.0,
        "decode_kv": pool.kv_ratio if pool else 0.0,
    }
    moved = cluster.transfer_nic_utilisation * cluster.cluster.nodes
    at_prefill, at_decode = moved / cluster.links.nodes, moved / max(cluster.decode_nodes, 1)
    fetched = state.fetches.nic_utilisation
    own |= {
        "prefill_nic_in": fetched,
        "prefill_nic_out": fetched + at_prefill,
        "decode_nic_in": at_decode,
    }
    result: dict[str, float | str] = {
        f"{name}_utilisation_ratio": min(value, 1.0) for name, value in own.items()
    }
    for name in ("compute", "kv"):
        mean = (prefill * own[f"prefill_{name}"] + decode * own[f"decode_{name}"]) / both
        result[f"{name}_utilisation_ratio"] = mean
    nic = fetched * cluster.links.nodes / cluster.cluster.nodes + cluster.transfer_nic_utilisation
    result |= {f"nic_{way}_utilisation_ratio": min(nic, 1.0) for way in ("in", "out")}
    # a decode pool steps nearly always, however few it serves: too slow, it misses the TPOT SLO
    named = {name: value for name, value in own.items() if name != "decode_compute"}
    result["binding_resource"] = max(named, key=lambda name: named[name])
    if pool is not None:
        result |= {
            "transfer_wait_mean_s": pool.wait_s,
            "transfer_mean_s": float(pool.transfer_s.mean()),
        }
        found = quantiles(pool.transfer_s, list(_QUANTILES.values()))
        result |= {f"transfer_{q}_s": v for q, v in zip(_QUANTILES, found, strict=True)}
    return result


def _notes(cluster: ColocatedCluster, state: ClusterState) -> list[str]:
    notes = list(state.notes)
    if cluster.fitted.carried_over:
        notes.append(
            f"efficiencies of {cluster.fitted.fitted_for} carried over to"
            f" {cluster.demand.instance.gpu.name}"
        )
    arriving = state.rate_rps / (1 - cluster.demand.unservable_ratio)
    notes += copies_of(cluster.scenario, cluster.demand, arriving)
    notes += notes_left_out(cluster.scenario)
    crowding = cluster.scenario.router.policy in ("bailian", "lmetric")
    if crowding and cluster.instances > 1 and float(cluster.work.local.shared.mean()) > 0:
        notes.append(
            "first turns that crowd where a shared prefix is held are not in the load: imbalance"
            " may come out low"
        )
    whole = cluster.demand.requests
    notes += [
        f"{count:,} of the workload's {whole:,} requests {reason}"
        for reason, count in cluster.demand.unservable.items()
    ]
    return notes
