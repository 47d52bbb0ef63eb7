"""``plan``: how many tokens per second a cluster can serve within its SLO, and why.

Three columns answer under three assumptions about reuse (see
:mod:`smetric_model.analytic.predict`): nothing reused, this cluster's tiers, and a store that
forgets nothing.  The truth under a router lies between the first and the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize_scalar

from smetric_model.analytic.demand import Demand, demand_of
from smetric_model.analytic.fabric import fetch_bytes_per_s
from smetric_model.analytic.latency import prefill_time_s
from smetric_model.analytic.predict import Prediction, Reuse

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["EndPlan", "FetchAdvice", "Plan", "TierDemand", "plan"]

ENDS: tuple[Reuse, ...] = ("none", "tiers", "ideal")
_LARGEST_CLUSTER = 1 << 16


@dataclass(frozen=True)
class EndPlan:
    """Capacity under one assumption about reuse.

    Attributes
    ----------
    reuse : str
        ``none``, ``tiers`` or ``ideal``.
    reused_ratio : float
        Share of prompt tokens that are reused at the attainment capacity (at saturation, where
        there is none).
    saturation_rps, saturation_tps : float
        Cluster rate at which a resource saturates, and total tokens/s there (SLO or not).
    binding_resource : str
        Which: ``compute``, ``kv`` (twice the pool would lift the limit by 10 % or more) or ``nic``.
    tpot_ceiling_rps : float
        Cluster rate at which the mean TPOT reaches its SLO.
    peak_rps, peak_within_slo_tps : float
        Rate with most tokens/s within SLO, and those tokens.
    attainment_rps, attainment_tps : float or None
        Largest rate with the asked share of requests within SLO, and total tokens/s there; None
        where no rate reaches it.
    best_within_slo_ratio : float
        Share within SLO on an idle cluster.
    instances_needed : int or None
        Fewest instances that reach the share at ``rate_rps`` of the plan; None without a rate, or
        where no number does.
    max_batch : float
        Requests in service that fill an instance's KV pool.
    limited_by : str
        What keeps the attainment capacity from being higher, in words.
    rates_rps, within_slo_ratio, within_slo_tps : tuple of float
        The sweep over rates behind the peak.
    """

    reuse: str
    reused_ratio: float
    saturation_rps: float
    saturation_tps: float
    binding_resource: str
    tpot_ceiling_rps: float
    peak_rps: float
    peak_within_slo_tps: float
    attainment_rps: float | None
    attainment_tps: float | None
    best_within_slo_ratio: float
    instances_needed: int | None
    max_batch: float
    limited_by: str
    rates_rps: tuple[float, ...] = field(repr=False)
    within_slo_ratio: tuple[float, ...] = field(repr=False)
    within_slo_tps: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class TierDemand:
    """What the workload asks of the KV tiers at the plan's rate.

    Attributes
    ----------
    rate_rps : float
        Servable requests per second of the cluster.
    local_bytes : float
        KV pools of all instances together [bytes].
    pinned_bytes : float
        Of those, what running requests hold [bytes].
    local_retention_s : float
        How long the local tier keeps KV under perfect placement [s].
    local_ratio, global_ratio : float
        Shares of prompt tokens served by the local and, from there, by an unbounded global tier.
    global_bytes : dict of str to float
        Global-tier bytes needed to serve 50, 90, 95 and 99 % of the reusable tokens [bytes].
    provisioned_bytes : float
        Global tier of the scenario [bytes].
    provisioned_serves_ratio : float
        Share of the reusable tokens that this much serves.
    link_bytes_per_s_per_node : float
        Traffic per node and direction that fetches and writes ask for [bytes/s].
    link_capacity_bytes_per_s_per_node : float
        What a node's NICs carry for these transfers while GPUs compute [bytes/s].
    """

    rate_rps: float
    local_bytes: float
    pinned_bytes: float
    local_retention_s: float
    local_ratio: float
    global_ratio: float
    global_bytes: dict[str, float]
    provisioned_bytes: float
    provisioned_serves_ratio: float
    link_bytes_per_s_per_node: float
    link_capacity_bytes_per_s_per_node: float


@dataclass(frozen=True)
class FetchAdvice:
    """Load or recompute, for the workload's mean reusable prefix.

    Attributes
    ----------
    prefix_tokens : float
        Mean reusable prefix of the requests that have one [tokens].
    recompute_s : float
        Prefilling it [s].
    dram_s, rdma_s : float
        Fetching it from the node's memory and from another node, GPUs busy [s].
    break_even_bytes_per_s : float
        Slowest link at which fetching pays: bytes over recompute time.
    break_even_tokens : float or None
        Shortest prefix that is worth fetching over RDMA; None where none is.
    verdict : str
        In words.
    """

    prefix_tokens: float
    recompute_s: float
    dram_s: float
    rdma_s: float
    break_even_bytes_per_s: float
    break_even_tokens: float | None
    verdict: str


@dataclass(frozen=True)
class Plan:
    """A capacity plan.

    Attributes
    ----------
    scenario : Scenario
        The question.
    workload : dict
        Source, requests, sessions, unservable requests by reason, means of the servable ones.
    instance : dict
        LLM, GPU, KV pool.
    rate_rps : float or None
        Rate the cluster must serve, unservable requests included; None where neither the scenario
        nor the trace has one.
    ends : dict of str to EndPlan
        By assumption about reuse.
    tiers : TierDemand
        At ``rate_rps``, or at the ideal attainment capacity where there is no rate.
    fetch : FetchAdvice or None
        None where nothing is reusable.
    notes : tuple of str
        What to know before believing the numbers.
    elapsed_s : float
        How long planning took [s].
    """

    scenario: Scenario
    workload: dict[str, Any]
    instance: dict[str, Any]
    rate_rps: float | None
    ends: dict[str, EndPlan]
    tiers: TierDemand
    fetch: FetchAdvice | None
    notes: tuple[str, ...]
    elapsed_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return {
            "scenario": self.scenario.to_dict(),
            "scenario_id": self.scenario.scenario_id,
            "workload": self.workload,
            "instance": self.instance,
            "rate_rps": self.rate_rps,
            "ends": {name: asdict(end) for name, end in self.ends.items()},
            "tiers": asdict(self.tiers),
            "fetch": None if self.fetch is None else asdict(self.fetch),
            "notes": list(self.notes),
            "elapsed_s": self.elapsed_s,
        }


def plan(
    scenario: Scenario,
    trace: Trace | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Plan the capacity of a scenario.

    Parameters
    ----------
    scenario : Scenario
        The question.  ``workload.rate_rps`` is the rate to serve; ``"trace"`` means the trace's
        own, and none where its sessions share no clock (capacity only).
    trace : Trace, optional
        The workload, if it is at hand; else it is loaded.
    progress : callable, optional
        Told what is being worked out.

    Returns
    -------
    Plan

    Raises
    ------
    SpecError
        If the scenario cannot be resolved, or the LLM does not fit.
    TraceError
        If the trace cannot be read.
    """
    started = time.perf_counter()
    tell = progress or (lambda _text: None)
    if trace is None:
        from smetric_model.workload.trace import load_trace

        tell("loading the trace")
        trace = load_trace(scenario.trace_path())
    tell("reuse of the trace")
    demand = demand_of(scenario, trace)
    rate = _rate(scenario, demand)
    servable = None if rate is None else rate * (1 - demand.unservable_ratio)
    ends: dict[str, EndPlan] = {}
    predictions: dict[str, Prediction] = {}
    for reuse in ENDS:
        tell(f"capacity, reuse = {reuse}")
        predictions[reuse] = Prediction(scenario, demand, reuse)
        ends[reuse] = _end(predictions[reuse], servable, tell)
    ideal = predictions["ideal"]
    at = servable or ends["ideal"].attainment_rps or 0.5 * ends["ideal"].saturation_rps
    return Plan(
        scenario=scenario,
        workload=_workload(demand, trace),
        instance=_instance(demand),
        rate_rps=rate,
        ends=ends,
        tiers=_tier_demand(ideal, at),
        fetch=_fetch_advice(ideal),
        notes=_notes(ideal, demand, rate),
        elapsed_s=time.perf_counter() - started,
    )


def _rate(scenario: Scenario, demand: Demand) -> float | None:
    rate = scenario.workload.rate_rps
    if rate != "trace":
        return rate
    return demand.trace_rate_rps if np.isfinite(demand.trace_rate_rps) else None


# --- capacity -----------------------------------------------------------------------------------


def _link_limit(prediction: Prediction, high: float) -> float:
    """Largest rate below ``high`` at which the NICs do not saturate."""

    def carried(rate: float) -> bool:
        return prediction.nic_utilisation(rate, prediction.hits(rate).fetched) < 1

    if prediction.reuse == "none" or carried(high):
        return high
    low = 0.0
    for _ in range(14):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if carried(middle) else (low, middle)
    return low


def _end(
    prediction: Prediction, servable_rps: float | None, tell: Callable[[str], None]
) -> EndPlan:
    stable = prediction.stability_rps
    limit = _link_limit(prediction, stable)
    n = prediction.cluster.instances
    instance, _ = prediction.instance_at(0.999 * limit)
    resource = "nic" if limit < stable else prediction.engine_resource(instance)
    mean_tokens = float((prediction.prompt_tokens + prediction.output_tokens).mean())

    rates = np.concatenate((limit * np.array([1e-3, 0.05]), np.linspace(0.1, 0.98, 12) * limit))
    shares, good = (
        np.array(v) for v in zip(*(prediction.within_slo(r) for r in rates), strict=True)
    )
    best = int(good.argmax())
    around = (rates[max(best - 1, 0)], rates[min(best + 1, rates.size - 1)])
    refined = minimize_scalar(
        lambda r: -prediction.within_slo(float(r))[1],
        bounds=around,
        method="bounded",
        options={"xatol": 0.003 * limit},
    )
    peak_rps, peak_tps = float(refined.x), float(-refined.fun)
    if good[best] > peak_tps:
        peak_rps, peak_tps = float(rates[best]), float(good[best])

    wanted = prediction.scenario.slo.attainment
    attainment = _attainment(prediction, rates, shares, wanted)
    at = attainment if attainment else limit * 0.999
    _, hits = prediction.instance_at(at)
    reused = float((hits.local + hits.fetched).sum() / prediction.prompt_tokens.sum())
    needed = None
    if servable_rps is not None:
        tell(f"instances needed, reuse = {prediction.reuse}")
        needed = _instances_needed(prediction, servable_rps, wanted)
    return EndPlan(
        reuse=prediction.reuse,
        reused_ratio=reused,
        saturation_rps=limit,
        saturation_tps=limit * mean_tokens,
        binding_resource=resource,
        tpot_ceiling_rps=n * instance.tpot_ceiling_rps(prediction.scenario.slo.tpot_s),
        peak_rps=peak_rps,
        peak_within_slo_tps=peak_tps,
        attainment_rps=attainment,
        attainment_tps=None if attainment is None else attainment * mean_tokens,
        best_within_slo_ratio=float(shares[0]),
        instances_needed=needed,
        max_batch=instance.max_batch,
        limited_by=_why(prediction, attainment, limit, wanted, float(shares[0])),
        rates_rps=tuple(float(r) for r in rates),
        within_slo_ratio=tuple(float(s) for s in shares),
        within_slo_tps=tuple(float(g) for g in good),
    )


def _attainment(prediction: Prediction, rates: Any, shares: Any, wanted: float) -> float | None:
    met = np.flatnonzero(shares >= wanted)
    if not met.size:
        return None
    last = int(met[-1])
    if last == rates.size - 1:
        return float(rates[last])
    low, high = float(rates[last]), float(rates[last + 1])
    for _ in range(9):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if prediction.within_slo(middle)[0] >= wanted else (low, middle)
    return low


def _instances_needed(prediction: Prediction, rate_rps: float, wanted: float) -> int | None:
    """Fewest instances with the wanted share within SLO; nodes grow with them."""

    def enough(instances: int) -> bool:
        scenario = prediction.scenario.replace(**{"cluster.instances": instances})
        other = prediction.on(scenario)
        return other.within_slo(rate_rps)[0] >= wanted

    high = max(prediction.cluster.instances, 1)
    while not enough(high):
        high *= 2
        if high > _LARGEST_CLUSTER:
            return None
        # on an idle cluster nothing waits: more instances then change nothing
        if rate_rps / high < 1e-3 * prediction.stability_rps / prediction.cluster.instances:
            return None
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _why(
    prediction: Prediction, attainment: float | None, limit: float, wanted: float, best: float
) -> str:
    if attainment is None:
        return (
            f"no rate: even idle, {best:.1%} of requests meet the SLO ({wanted:.0%} wanted); "
            + _unmet(prediction, 1e-3 * limit)
        )
    if attainment >= 0.97 * limit:
        return "saturation"
    return _unmet(prediction, attainment)


def _unmet(prediction: Prediction, rate: float) -> str:
    loaded, _ = prediction.loaded(rate)
    probability = loaded.slo_probability()
    ttft, tpot = 1 - float(probability.ttft.mean()), 1 - float(probability.tpot.mean())
    return f"TTFT missed by {ttft:.1%}, TPOT by {tpot:.1%} of requests there"


# --- tiers, links, words ------------------------------------------------------------------------


def _tier_demand(prediction: Prediction, rate_rps: float) -> TierDemand:
    demand, cluster = prediction.demand, prediction.cluster
    profile, per_token = demand.profile, demand.kv_bytes_per_token
    hits = prediction.hits(rate_rps)
    prompt = float(prediction.prompt_tokens.sum())
    instance, _ = prediction.instance_at(rate_rps)
    own = min(rate_rps / cluster.instances, 0.999 * instance.stability_rps)
    needed = {
        f"{share:.0%}": rate_rps
        * float(profile.resident_token_s(profile.retention_for(share)))
        * per_token
        for share in (0.5, 0.9, 0.95, 0.99)
    }
    provisioned = cluster.nodes * prediction.scenario.global_tier.bytes_per_node
    serves = profile.hit_ratio(profile.retention_s(provisioned / per_token, rate_rps))
    traffic = float(hits.fetched.mean()) + prediction.written_tokens(hits)
    link = rate_rps * cluster.remote_ratio * traffic * per_token / cluster.nodes
    used = prediction.nic_utilisation(rate_rps, hits.fetched)
    return TierDemand(
        rate_rps=rate_rps,
        local_bytes=cluster.instances * demand.pool_tokens * per_token,
        pinned_bytes=cluster.instances
        * instance.mean_batch(own)
        * instance.mean_resident_tokens
        * per_token,
        local_retention_s=hits.local_retention_s,
        local_ratio=float(hits.local.sum() / prompt),
        global_ratio=float(hits.fetched.sum() / prompt),
        global_bytes=needed,
        provisioned_bytes=provisioned,
        provisioned_serves_ratio=serves,
        link_bytes_per_s_per_node=link,
        link_capacity_bytes_per_s_per_node=link / used if used > 0 else float("nan"),
    )


def _fetch_advice(prediction: Prediction) -> FetchAdvice | None:
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
    pays = fetch(lengths, "rdma", fitted.rdma_fetch_s) < recompute(lengths)
    if rdma < alone:
        verdict = f"fetch: over RDMA {alone / rdma:.1f} times as fast as recomputing"
    elif dram < alone:
        verdict = "fetch from the own node only: over RDMA recomputing is faster"
    else:
        verdict = "recompute: the global tier is slower than prefilling"
    return FetchAdvice(
        prefix_tokens=prefix,
        recompute_s=alone,
        dram_s=dram,
        rdma_s=rdma,
        break_even_bytes_per_s=prefix * demand.kv_bytes_per_token / alone,
        break_even_tokens=float(lengths[pays.argmax()]) if pays.any() else None,
        verdict=verdict,
    )


def _workload(demand: Demand, trace: Trace) -> dict[str, Any]:
    prompt = float(demand.prompt_tokens.sum())
    return {
        "source": demand.source,
        "format": trace.format,
        "requests": demand.requests,
        "sessions": demand.sessions,
        "unservable": dict(demand.unservable),
        "unservable_ratio": demand.unservable_ratio,
        "capped": demand.capped,
        "prompt_tokens_mean": float(demand.prompt_tokens.mean()),
        "output_tokens_mean": float(demand.output_tokens.mean()),
        "ideal_reuse_ratio": float(demand.reusable_tokens.sum()) / prompt,
        "trace_rate_rps": demand.trace_rate_rps,
    }


def _instance(demand: Demand) -> dict[str, Any]:
    instance = demand.instance
    return {
        "llm": instance.llm.name,
        "gpu": instance.gpu.name,
        "tp": instance.tp,
        "ep": instance.ep,
        "engine": instance.engine,
        "weight_dtype": instance.weight_dtype,
        "kv_dtype": instance.kv_dtype,
        "kv_bytes_per_token": demand.kv_bytes_per_token,
        "local_tier_tokens": demand.pool_tokens,
    }


def _notes(prediction: Prediction, demand: Demand, rate: float | None) -> tuple[str, ...]:
    notes = [
        "first form: load spread evenly, sessions where their KV is, Poisson arrivals at each"
        " instance; what a router loses is not in these numbers yet"
    ]
    if rate is None:
        notes.append(
            "no rate: the trace's sessions share no clock; capacity only (give --rate for more)"
        )
    if demand.capped:
        notes.append(f"{demand.capped} prompts were cut to the longest context")
    if prediction.fitted.carried_over:
        notes.append(
            f"no fit for {demand.instance.gpu.name}/{demand.instance.engine}: efficiencies of"
            f" {prediction.fitted.fitted_for} carried over, expect tens of per cent"
        )
    longest = demand.instance.llm.max_context_tokens
    served = demand.instance.max_context_tokens or longest
    if served > longest:
        notes.append(f"max_context_tokens = {served} exceeds the {longest} the LLM was made for")
    return tuple(notes)
