r"""The closed form under perfect placement: the ends between which any router lies.

Load is spread evenly over the instances, every session is served where its KV is, and KV comes
from one of three stores:

``none``
    nothing is reused: the lower end;
``tiers``
    the scenario's local and global tiers, LRU, each with its characteristic time;
``ideal``
    a store that forgets nothing (the upper end): the local tier serves what it keeps, the rest is
    fetched from a global tier as large as that takes.

What a router changes is in :mod:`smetric_model.analytic.cluster`; here those columns stay empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.batching import ColocatedInstance, LoadedInstance, RequestMix
from smetric_model.analytic.coverage import left_out, notes_left_out
from smetric_model.analytic.demand import Demand, cluster_of, copies_of, thinned
from smetric_model.analytic.efficiencies import get_efficiencies
from smetric_model.analytic.fabric import (
    fetch_bytes_per_s,
    node_nic_utilisation,
)
from smetric_model.analytic.latency import host_time_s, prefill_time_s
from smetric_model.analytic.step_model import step_model
from smetric_model.errors import SpecError, UnstableError

if TYPE_CHECKING:
    from smetric_model.outcome import Outcome
    from smetric_model.scenario import Scenario

__all__ = ["Prediction", "Reuse"]

Reuse = Literal["none", "tiers", "ideal"]
_AGES = 256  # ages of KV told apart where a tier's reach is looked up
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, eq=False)
class TierHits:
    """Where the reused tokens of each request come from at one rate; arrays of shape (n,).

    Attributes
    ----------
    local, fetched : ndarray of float
        Tokens in the instance's own memory, and fetched from the global tier [tokens].
    fetch_s : ndarray of float
        Time of each fetch, links shared at this rate [s].
    local_retention_s, global_retention_s : float
        Characteristic times [s].
    """

    local: NDArray[np.float64]
    fetched: NDArray[np.float64]
    fetch_s: NDArray[np.float64]
    local_retention_s: float
    global_retention_s: float


class Prediction:
    """Closed form of a scenario under one assumption about reuse, at any rate.

    Parameters
    ----------
    scenario : Scenario
        The question.
    demand : Demand
        Its workload.
    reuse : {"none", "tiers", "ideal"}
        Where KV comes from.
    """

    def __init__(self, scenario: Scenario, demand: Demand, reuse: Reuse):
        if scenario.cluster.serving != "colocated":
            raise SpecError(
                f"cluster.serving = {scenario.cluster.serving!r}: perfect placement is worked out"
                " for colocated serving only"
            )
        if reuse not in ("none", "tiers", "ideal"):
            raise SpecError(f"reuse = {reuse!r}; one of none, tiers, ideal")
        self.scenario = scenario
        self.demand = demand
        self.reuse: Reuse = reuse
        self.cluster = cluster_of(scenario)
        self.model = step_model(demand.instance)
        self.fitted = get_efficiencies(demand.instance.gpu.name, demand.instance.engine)
        self._instances: dict[bytes, ColocatedInstance] = {}
        self.prompt_tokens, self.output_tokens = thinned(
            demand, demand.prompt_tokens, demand.output_tokens
        )
        # the representatives' means are near, but not at, those of all requests
        self.prompt_scale = float(demand.prompt_tokens.mean() / self.prompt_tokens.mean())
        self.output_scale = float(demand.output_tokens.mean() / self.output_tokens.mean())
        reusable = float(self._all_reusable().mean())
        self.reuse_scale = float(demand.reusable_tokens.mean()) / reusable if reusable else 1.0
        self.ttft_limit_s = np.asarray(scenario.slo.ttft_s(self.prompt_tokens), dtype=float)

    def on(self, scenario: Scenario) -> Prediction:
        """Return the same prediction for another cluster, sharing what does not depend on it.

        Parameters
        ----------
        scenario : Scenario
            Same LLM, engine and workload.
        """
        other = Prediction(scenario, self.demand, self.reuse)
        other._instances = self._instances
        return other

    # --- tiers ------------------------------------------------------------------------------

    def hits(self, rate_rps: float) -> TierHits:
        """Return where reused tokens come from at a cluster rate [requests/s]."""
        demand, cluster = self.demand, self.cluster
        zero = np.zeros(self.prompt_tokens.size)
        if self.reuse == "none":
            return TierHits(zero, zero, zero, 0.0, 0.0)
        profile = demand.profile
        # Perfect placement: the instances' free memory acts as one store.  What running requests
        # pin is not free; it is taken at the load of this rate, by two passes.
        pinned = 0.0
        tau_local = 0.0
        for _ in range(2):
            free = cluster.instances * max(demand.pool_tokens - pinned, 0.0)
            tau_local = profile.retention_s(free, rate_rps)
            instance = self._instance(profile.hit_tokens(self._reach(tau_local, rate_rps)))
            busy = min(rate_rps / cluster.instances, 0.999 * instance.stability_rps)
            pinned = instance.mean_batch(busy) * instance.mean_resident_tokens
        reach = self._reach(tau_local, rate_rps)
        local_all = profile.hit_tokens(tau_local)
        total_all = profile.hit_tokens(reach)
        local, total = thinned(demand, local_all, total_all)
        block = demand.instance.block_tokens
        total = np.minimum(total, (self.prompt_tokens - 1) // block * block)
        local = np.minimum(local, total)
        fetched = total - local
        if fetched.any():
            # decided on unloaded links, as an engine does that knows its own transfer alone
            saved = self._prefill_alone(local) - self._prefill_alone(total)
            worse = (fetched > 0) & (self._fetch_s(fetched, 0.0) > saved)
            if self.scenario.global_tier.recompute_if_faster and self.reuse == "tiers":
                fetched = np.where(worse, 0.0, fetched)
        fetch_s = self._fetch_s(fetched, rate_rps)
        return TierHits(local, fetched, fetch_s, tau_local, reach)

    def _reach(self, tau_local: float, rate_rps: float) -> float:
        """Age up to which KV is found in either tier [s]."""
        if self.reuse == "ideal":
            return float("inf")
        capacity = self.cluster.nodes * self.scenario.global_tier.bytes_per_node
        tokens = capacity / self.demand.kv_bytes_per_token
        reach = max(tau_local, self.demand.profile.retention_s(tokens, rate_rps))
        # rounded down to one of some hundred ages, so that neighbouring rates share their tables
        index = int(np.searchsorted(self._ages, reach, side="right"))
        return float(self._ages[index - 1]) if index else 0.0

    @cached_property
    def _ages(self) -> NDArray[np.float64]:
        profile = self.demand.profile
        shares = np.linspace(1 / _AGES, 1, _AGES)
        ages = [profile.retention_for(float(share)) for share in shares]
        return np.unique(ages)

    def _fetch_s(self, tokens: NDArray[np.float64], rate_rps: float) -> NDArray[np.float64]:
        """Time to fetch: the local share over PCIe beside the remote share over shared NICs."""
        demand, cluster = self.demand, self.cluster
        instance = demand.instance
        size = tokens * demand.kv_bytes_per_token
        remote = size * cluster.remote_ratio
        dram = (size - remote) / fetch_bytes_per_s(
            cluster, instance.gpu, instance.tp, "dram", size, busy=True
        )
        # processor sharing of the NIC: a transfer is stretched by 1 / (1 - utilisation)
        busy = min(self.nic_utilisation(rate_rps, tokens), 0.99)
        wire = remote / fetch_bytes_per_s(
            cluster, instance.gpu, instance.tp, "rdma", np.maximum(remote, 1.0), busy=True
        )
        fixed = max(self.fitted.dram_fetch_s, self.fitted.rdma_fetch_s)
        return np.where(tokens > 0, fixed + np.maximum(dram, wire / (1.0 - busy)), 0.0)

    def _prefill_alone(self, hit: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(
            prefill_time_s(
                self.model, self.prompt_tokens - hit, hit, self.demand.instance.token_budget
            )
        )

    def written_tokens(self, hits: TierHits) -> float:
        """Mean tokens a request writes to the global tier: what it computed and generated."""
        if self.reuse == "none" or (
            self.reuse == "tiers" and self.scenario.global_tier.bytes_per_node == 0
        ):
            return 0.0
        return float((self.prompt_tokens - hits.local - hits.fetched + self.output_tokens).mean())

    def nic_utilisation(self, rate_rps: float, fetched: NDArray[np.float64]) -> float:
        """Share of each node's NICs that fetches and writes take at a cluster rate."""
        per_token = self.demand.kv_bytes_per_token
        reused = float(fetched.mean())
        written = self.demand.profile.new_tokens if self.reuse != "none" else 0.0
        if self.reuse == "tiers" and self.scenario.global_tier.bytes_per_node == 0:
            written = 0.0
        return node_nic_utilisation(
            self.cluster, rate_rps, (reused + written) * per_token, self._transfer_bytes(fetched)
        )

    def _transfer_bytes(self, fetched: NDArray[np.float64]) -> float:
        """Size of the transfers that carry most bytes: the byte-weighted mean fetch [bytes]."""
        total = float(fetched.sum())
        mean = float((fetched * fetched).sum() / total) if total > 0 else 1.0
        return max(mean * self.demand.kv_bytes_per_token * max(self.cluster.remote_ratio, 0.1), 1.0)

    # --- instance ---------------------------------------------------------------------------

    def _instance(
        self, hit: NDArray[np.float64], before_prefill_s: NDArray[np.float64] | None = None
    ) -> ColocatedInstance:
        """Instance for a hit of each request; its tables depend on the hits alone and are kept."""
        if hit.size != self.prompt_tokens.size:
            (hit,) = thinned(self.demand, hit)
        block = self.demand.instance.block_tokens
        hit = np.minimum(hit, (self.prompt_tokens - 1) // block * block)
        if before_prefill_s is None:
            before_prefill_s = np.zeros(hit.size)
        key = hit.tobytes()
        mix = RequestMix(self.prompt_tokens, self.output_tokens, hit, before_prefill_s)
        known = self._instances.get(key)
        if known is None:
            known = ColocatedInstance(
                self.model,
                mix,
                self.demand.pool_tokens,
                self.demand.instance.token_budget,
                self.demand.instance.max_running_requests,
                self.demand.fixed_state_tokens,
            )
            _ = known.completion_rate_rps  # tabulated once, before copies of it are made
            self._instances[key] = known
        return known.with_mix(mix)

    def instance_at(self, rate_rps: float) -> tuple[ColocatedInstance, TierHits]:
        """Return the instance's closed form and the tiers' hits at a cluster rate [requests/s]."""
        hits = self.hits(rate_rps)
        host = np.asarray(host_time_s(self.demand.instance, self.prompt_tokens, self.fitted))
        return self._instance(hits.local + hits.fetched, host + hits.fetch_s), hits

    def loaded(self, rate_rps: float) -> tuple[LoadedInstance, TierHits]:
        """Return an instance under its share of a cluster rate.

        Parameters
        ----------
        rate_rps : float
            Rate of the whole cluster [requests/s].

        Returns
        -------
        LoadedInstance, TierHits

        Raises
        ------
        UnstableError
            If a resource saturates at this rate.
        """
        instance, hits = self.instance_at(rate_rps)
        own = rate_rps / self.cluster.instances
        if own >= instance.stability_rps:
            resource = self.engine_resource(instance)
            raise UnstableError(
                f"{rate_rps:.4g} requests/s over {self.cluster.instances} instances exceed "
                f"{instance.stability_rps * self.cluster.instances:.4g}: {resource} saturates",
                resource,
            )
        if self.nic_utilisation(rate_rps, hits.fetched) >= 1:
            raise UnstableError(
                f"{rate_rps:.4g} requests/s fetch and write more than the NICs of "
                f"{self.cluster.nodes} nodes carry",
                "nic",
            )
        return instance.at_rate(own, self.ttft_limit_s, self.scenario.slo.tpot_s), hits

    def engine_resource(self, instance: ColocatedInstance) -> str:
        """Name what limits the engine: ``kv`` if twice the pool would lift the limit by 10 %."""
        return "kv" if instance.rate_with_pool(2.0) > 1.1 * instance.stability_rps else "compute"

    # --- limits -----------------------------------------------------------------------------

    @cached_property
    def stability_rps(self) -> float:
        """Cluster rate at which the engines saturate [requests/s]."""
        if self.reuse != "tiers":
            instance = self._instance(self._hit_at_any_rate())
            return instance.stability_rps * self.cluster.instances
        # hits fall as the rate grows: find the rate that equals what the engines then bear
        low = self._instance(np.zeros(self.prompt_tokens.size)).stability_rps
        high = self._instance(self._all_reusable()).stability_rps
        n = self.cluster.instances
        low, high = low * n, high * n
        for _ in range(12):
            middle = 0.5 * (low + high)
            instance, _ = self.instance_at(middle)
            if instance.stability_rps * n > middle:
                low = middle
            else:
                high = middle
        return low

    def _all_reusable(self) -> NDArray[np.float64]:
        (hit,) = thinned(self.demand, self.demand.reusable_tokens)
        return np.asarray(hit)

    def _hit_at_any_rate(self) -> NDArray[np.float64]:
        return self._all_reusable() if self.reuse == "ideal" else np.zeros(self.prompt_tokens.size)

    def within_slo(self, rate_rps: float) -> tuple[float, float]:
        """Return the share of requests, and the tokens/s of the cluster, within SLO at a rate.

        Zeros where a resource saturates.
        """
        try:
            loaded, _ = self.loaded(rate_rps)
        except UnstableError:
            return 0.0, 0.0
        both = loaded.slo_probability().both
        tokens = self.total_tokens
        return float(both.mean()), rate_rps * float((both * tokens).mean())

    def prompt_share(self, hit: NDArray[np.float64]) -> float:
        """Return hit ÷ prompt tokens, so scaled that ideal reuse is that of all requests."""
        share = float(hit.sum() / self.prompt_tokens.sum())
        return share * self.reuse_scale / self.prompt_scale

    @property
    def total_tokens(self) -> NDArray[np.float64]:
        """Tokens of each request, scaled so that their mean is that of all requests; shape (n,)."""
        return np.asarray(
            self.prompt_scale * self.prompt_tokens + self.output_scale * self.output_tokens
        )

    # --- outcome ----------------------------------------------------------------------------

    def outcome(self, rate_rps: float) -> Outcome:
        """Return the outcome at a cluster rate.

        Parameters
        ----------
        rate_rps : float
            Servable requests per second of the whole cluster [requests/s].

        Returns
        -------
        Outcome

        Raises
        ------
        UnstableError
            If a resource saturates.
        """
        from smetric_model.outcome import Outcome

        loaded, hits = self.loaded(rate_rps)
        instance = loaded.instance
        probability = loaded.slo_probability()
        prompt, output = self.prompt_tokens, self.output_tokens
        reused = hits.local + hits.fetched
        counts = {
            "prompt": self.prompt_scale * prompt,
            "computed_prompt": self.prompt_scale * prompt - self.reuse_scale * reused,
            "reused_prompt": self.reuse_scale * reused,
            "output": self.output_scale * output,
            "total": self.total_tokens,
        }
        tps = {f"{name}_tps": rate_rps * tokens.mean() for name, tokens in counts.items()}
        within = {
            f"{name}_within_slo_tps": rate_rps * (tokens * probability.both).mean()
            for name, tokens in counts.items()
        }
        ttft_mean = loaded.mean_ttft_s()
        decode_mean = loaded.mean_decode_s()
        e2e_mean = ttft_mean + decode_mean
        steps = np.maximum(output - 1.0, 0.0)
        shares = list(_QUANTILES.values())
        queue = loaded.queue_s(instance.mix.before_prefill_s - hits.fetch_s, shares)
        latency = {
            "ttft_mean_s": ttft_mean,
            "tpot_mean_s": decode_mean / steps.mean() if steps.any() else float("nan"),
            "e2e_mean_s": e2e_mean,
            "queue_mean_s": min(queue[0], ttft_mean),
            "fetch_mean_s": float(hits.fetch_s.mean()),
        }
        for name, values in (
            ("ttft", loaded.ttft_quantiles_s(shares)),
            ("tpot", loaded.tpot_quantiles_s(shares)),
            ("fetch", [float(v) for v in np.quantile(hits.fetch_s, shares)]),
            ("queue", queue[1:]),
        ):
            latency |= {f"{name}_{q}_s": v for q, v in zip(_QUANTILES, values, strict=True)}
        for q in _QUANTILES:
            latency[f"queue_{q}_s"] = min(latency[f"queue_{q}_s"], latency[f"ttft_{q}_s"])
        own = rate_rps / self.cluster.instances
        nic = self.nic_utilisation(rate_rps, hits.fetched)
        engine = own / instance.stability_rps
        kv = loaded.mean_batch * instance.mean_resident_tokens / self.demand.pool_tokens
        resource = "nic" if nic > engine else self.engine_resource(instance)
        notes = [f"perfect placement, reuse = {self.reuse}, Poisson arrivals"]
        if self.fitted.carried_over:
            notes.append(
                f"efficiencies of {self.fitted.fitted_for} carried over to"
                f" {self.demand.instance.gpu.name}"
            )
        unservable = self.demand.unservable_ratio
        notes += copies_of(self.scenario, self.demand, rate_rps / (1 - unservable))
        notes += notes_left_out(self.scenario, policy="")
        window = self.scenario.workload
        return Outcome(
            {
                "scenario_id": self.scenario.scenario_id,
                "verb": "predict",
                "policy": f"perfect placement ({self.reuse})",
                "seed": self.scenario.seed,
                "arrival_rate_rps": rate_rps / (1 - unservable),
                "warmup_s": window.warmup_s,
                "window_s": window.window_s,
                "requests": rate_rps / (1 - unservable) * window.window_s,
                "unservable_ratio": unservable,
                "within_slo_ratio": float(probability.both.mean()),
                "inflight_requests_mean": rate_rps * e2e_mean,
                **{k: float(v) for k, v in (tps | within).items()},
                **latency,
                "local_ratio": self.prompt_share(hits.local),
                "global_ratio": self.prompt_share(hits.fetched),
                "peer_ratio": 0.0,
                "recomputed_ratio": 1 - self.prompt_share(reused),
                "compute_utilisation_ratio": engine,
                "kv_utilisation_ratio": min(kv, 1.0),
                "nic_in_utilisation_ratio": nic,
                "nic_out_utilisation_ratio": nic,
                "binding_resource": resource,
                "valid": "failures" not in left_out(self.scenario, policy=""),
                "note": "; ".join(notes),
            }
        )
