"""What a capacity plan says: plain, frozen results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from smetric_model.analytic.predict import Reuse
from smetric_model.scenario import Scenario

__all__ = ["ENDS", "EndPlan", "FetchAdvice", "Plan", "StepShare", "TierDemand"]

ENDS: tuple[Reuse, ...] = ("none", "tiers", "ideal")


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
        By assumption about reuse; empty for two pools, of which perfect placement says nothing.
    tiers : TierDemand or None
        At ``rate_rps``, or at the ideal attainment capacity where there is no rate; None for two
        pools.
    fetch : FetchAdvice or None
        None where nothing is reusable, and for two pools.
    steps : tuple of StepShare
        A typical prefill chunk, a decode step at the tiers' rate, and one with a full KV pool;
        none for two pools.
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
    tiers: TierDemand | None
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
            "tiers": None if self.tiers is None else asdict(self.tiers),
            "fetch": None if self.fetch is None else asdict(self.fetch),
            "steps": [asdict(step) for step in self.steps],
            "notes": list(self.notes),
            "elapsed_s": self.elapsed_s,
        }
