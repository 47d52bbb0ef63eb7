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
from smetric_model.analytic.step_time import step_breakdown

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.workload.trace import Trace

__all__ = ["ENDS", "EndPlan", "FetchAdvice", "Plan", "StepShare", "TierDemand", "plan"]

ENDS: tuple[Reuse, ...] = ("none", "tiers", "ideal")
_LARGEST_CLUSTER = 1 << 16
_CURVE_POINTS = 60  # of the tier-size and fetch curves


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
    ttft_missed_ratio, tpot_missed_ratio : float
        Shares of requests that miss each SLO at the attainment capacity (on an idle cluster, where
        there is none).
    rates_rps, within_slo_ratio, within_slo_tps : tuple of float
        Every rate looked at, in order: the sweep and the searches for peak and attainment.
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
    ttft_missed_ratio: float
    tpot_missed_ratio: float
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
    curve_bytes, curve_ratio : tuple of float
        Size of a tier that all requests share, and the share of the reusable tokens that it
        serves; empty where nothing is reusable [bytes], [1].
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
    curve_bytes: tuple[float, ...] = field(repr=False)
    curve_ratio: tuple[float, ...] = field(repr=False)


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
    rdma_pays_tokens, dram_pays_tokens : tuple of (float, float)
        Ranges of prefix lengths worth fetching, over RDMA and from the node's own memory, up to the
        longest reusable prefix: a chunk or the links' efficiency may open and close one [tokens].
    curve_tokens, curve_recompute_s, curve_dram_s, curve_rdma_s : tuple of float
        Prefix lengths up to the longest reusable one, and what each way takes [tokens], [s].
    """

    prefix_tokens: float
    recompute_s: float
    dram_s: float
    rdma_s: float
    break_even_bytes_per_s: float
    break_even_tokens: float | None
    verdict: str
    rdma_pays_tokens: tuple[tuple[float, float], ...]
    dram_pays_tokens: tuple[tuple[float, float], ...]
    curve_tokens: tuple[float, ...] = field(repr=False)
    curve_recompute_s: tuple[float, ...] = field(repr=False)
    curve_dram_s: tuple[float, ...] = field(repr=False)
    curve_rdma_s: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class StepShare:
    """Where the time of one engine step goes, under this cluster's tiers.

    Attributes
    ----------
    name : str
        ``prefill chunk``, ``decode step`` or ``full decode step``.
    prefill_tokens, prefill_context_tokens : float
        New tokens of the chunk, and tokens before it [tokens].
    decode_batch, decode_context_tokens : float
        Decoding sequences, and the context of each [tokens].
    step_time_s : float
        The whole step [s].
    bound_by : str
        The kind of bound that takes most of it.
    groups : dict of str to dict
        As in :class:`smetric_model.analytic.step_time.StepBreakdown`.
    """

    name: str
    prefill_tokens: float
    prefill_context_tokens: float
    decode_batch: float
    decode_context_tokens: float
    step_time_s: float
    bound_by: str
    groups: dict[str, dict[str, Any]] = field(repr=False)


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
    steps : tuple of StepShare
        A typical prefill chunk, a decode step at the tiers' rate, and one with a full KV pool.
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
    steps: tuple[StepShare, ...]
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
            "steps": [asdict(step) for step in self.steps],
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
        steps=_steps(predictions["tiers"], at),
        notes=_notes(ideal, demand, rate, trace),
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

    seen: dict[float, tuple[float, float]] = {}

    def within_slo(rate: float) -> tuple[float, float]:
        if rate not in seen:
            seen[rate] = prediction.within_slo(rate)
        return seen[rate]

    rates = np.concatenate((limit * np.array([1e-3, 0.05]), np.linspace(0.1, 0.98, 12) * limit))
    shares, good = (np.array(v) for v in zip(*(within_slo(float(r)) for r in rates), strict=True))
    best = int(good.argmax())
    around = (rates[max(best - 1, 0)], rates[min(best + 1, rates.size - 1)])
    refined = minimize_scalar(
        lambda r: -within_slo(float(r))[1],
        bounds=around,
        method="bounded",
        options={"xatol": 0.003 * limit},
    )
    peak_rps, peak_tps = float(refined.x), float(-refined.fun)
    if good[best] > peak_tps:
        peak_rps, peak_tps = float(rates[best]), float(good[best])

    wanted = prediction.scenario.slo.attainment
    attainment = _attainment(within_slo, rates, shares, wanted)
    at = attainment if attainment else limit * 0.999
    _, hits = prediction.instance_at(at)
    reused = float((hits.local + hits.fetched).sum() / prediction.prompt_tokens.sum())
    ttft_missed, tpot_missed = _missed(prediction, attainment or float(rates[0]))
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
        limited_by=_why(attainment, limit, wanted, float(shares[0]), ttft_missed, tpot_missed),
        ttft_missed_ratio=ttft_missed,
        tpot_missed_ratio=tpot_missed,
        rates_rps=tuple(sorted(seen)),
        within_slo_ratio=tuple(seen[r][0] for r in sorted(seen)),
        within_slo_tps=tuple(seen[r][1] for r in sorted(seen)),
    )


def _attainment(
    within_slo: Callable[[float], tuple[float, float]], rates: Any, shares: Any, wanted: float
) -> float | None:
    met = np.flatnonzero(shares >= wanted)
    if not met.size:
        return None
    last = int(met[-1])
    if last == rates.size - 1:
        return float(rates[last])
    low, high = float(rates[last]), float(rates[last + 1])
    for _ in range(9):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if within_slo(middle)[0] >= wanted else (low, middle)
    return low


def _instances_needed(prediction: Prediction, rate_rps: float, wanted: float) -> int | None:
    """Fewest instances with the wanted share within SLO; nodes grow with them."""

    def enough(instances: int) -> bool:
        scenario = prediction.scenario.replace(**{"cluster.instances": instances})
        other = Prediction(scenario, prediction.demand, prediction.reuse)
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
    attainment: float | None,
    limit: float,
    wanted: float,
    best: float,
    ttft_missed: float,
    tpot_missed: float,
) -> str:
    missed = f"TTFT missed by {ttft_missed:.1%}, TPOT by {tpot_missed:.1%} of requests there"
    if attainment is None:
        return (
            f"no rate: even idle, {best:.1%} of requests meet the SLO ({wanted:.0%} wanted); "
            + missed
        )
    return "saturation" if attainment >= 0.97 * limit else missed


def _missed(prediction: Prediction, rate: float) -> tuple[float, float]:
    loaded, _ = prediction.loaded(rate)
    probability = loaded.slo_probability()
    return 1 - float(probability.ttft.mean()), 1 - float(probability.tpot.mean())


# --- tiers, links, words ------------------------------------------------------------------------


def _tier_demand(prediction: Prediction, rate_rps: float) -> TierDemand:
    demand, cluster = prediction.demand, prediction.cluster
    profile, per_token = demand.profile, demand.kv_bytes_per_token
    hits = prediction.hits(rate_rps)
    prompt = float(prediction.prompt_tokens.sum())
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
        local_ratio=float(hits.local.sum() / prompt),
        global_ratio=float(hits.fetched.sum() / prompt),
        global_bytes=needed,
        provisioned_bytes=provisioned,
        provisioned_serves_ratio=serves,
        link_bytes_per_s_per_node=link,
        link_capacity_bytes_per_s_per_node=link / used if used > 0 else float("nan"),
        curve_bytes=tuple(float(size) for size in store_bytes(ages)),
        curve_ratio=tuple(profile.hit_ratio(float(age)) for age in ages),
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
    recomputed = recompute(lengths)
    by_rdma = fetch(lengths, "rdma", fitted.rdma_fetch_s)
    by_dram = fetch(lengths, "dram", fitted.dram_fetch_s)
    rdma_pays = _pays(lengths, by_rdma, recomputed)
    shown = np.unique(np.linspace(0, lengths.size - 1, _CURVE_POINTS).round().astype(int))
    if rdma < alone:
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


def _steps(prediction: Prediction, rate_rps: float) -> tuple[StepShare, ...]:
    """Break down typical steps: a chunk in the middle of the mean uncached part, and decodes."""
    instance, hits = prediction.instance_at(rate_rps)
    own = min(rate_rps / prediction.cluster.instances, 0.999 * instance.stability_rps)
    hit = float((hits.local + hits.fetched).mean())
    new = float(prediction.prompt_tokens.mean()) - hit
    chunk = min(new, float(instance.token_budget))
    context = instance.decode_context_tokens
    kinds = {
        "prefill chunk": (chunk, hit + 0.5 * (new - chunk), 0.0, 0.0),
        "decode step": (0.0, 0.0, max(instance.mean_batch(own), 1.0), context),
        "full decode step": (0.0, 0.0, instance.max_batch, context),
    }
    steps = []
    for name, work in kinds.items():
        step = step_breakdown(prediction.model, *work)
        steps.append(StepShare(name, *work, step.step_time_s, step.bound_by, step.groups))
    return tuple(steps)


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


def _notes(
    prediction: Prediction, demand: Demand, rate: float | None, trace: Trace
) -> tuple[str, ...]:
    notes = [
        "first form: load spread evenly, sessions where their KV is, Poisson arrivals at each"
        " instance; what a router loses is not in these numbers yet"
    ]
    if rate is None:
        notes.append(
            "no rate: the trace's sessions share no clock; capacity only (give --rate for more)"
        )
    notes += [
        f"loading {demand.source}: {entry.action} {entry.count}: {entry.kind}"
        for entry in trace.report
    ]
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
