"""Requests of a cluster as its engines get them: what they find, fetch and compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _mix_kernels as kernels
from smetric_model.analytic._step_kernels import prefill_time_s
from smetric_model.analytic.batching import RequestMix
from smetric_model.analytic.latency import host_time_s
from smetric_model.analytic.mixed_requests import Mixed, Picked, pick

if TYPE_CHECKING:
    from smetric_model.analytic.cluster_demand import ClusterDemand
    from smetric_model.analytic.cluster_links import Fetches, Links
    from smetric_model.analytic.cluster_tiers import LocalHits
    from smetric_model.analytic.efficiencies import Efficiencies
    from smetric_model.analytic.step_time import StepModel
    from smetric_model.scenario import Scenario

__all__ = ["RequestsOfEngines"]

FloatArray = NDArray[np.float64]


class RequestsOfEngines:
    """What the engines of a cluster get, given what its local tiers hold.

    Parameters
    ----------
    scenario : Scenario
        For its global tier.
    work : ClusterDemand
        Its requests.
    links : Links
        Between nodes, and to their memory.
    model : StepModel
        What computing takes.
    fitted : Efficiencies
        For the host time of a request.
    nodes : int
        Of the cluster.

    Attributes
    ----------
    global_age_s : float
        Time since the global tier was emptied [s].
    picked : Picked or None
        Kinds of request that stand for all, kept between rounds; None: to be picked anew.
    """

    def __init__(
        self,
        scenario: Scenario,
        work: ClusterDemand,
        links: Links,
        model: StepModel,
        fitted: Efficiencies,
        nodes: int,
    ):
        self.work, self.links = work, links
        self.model, self.fitted = model, fitted
        self.tier = scenario.global_tier
        self._decodes_at_writes = (
            scenario.cluster.serving == "colocated" and scenario.global_tier.write == "through"
        )
        self.instance = work.demand.instance
        self.capacity_tokens = nodes * self.tier.bytes_per_node / work.demand.kv_bytes_per_token
        self.global_age_s = float("inf")
        self.picked: Picked | None = None

    def reach_s(self, rate_rps: float, local_s: float) -> float:
        """Return the age up to which the global tier holds KV [s].

        Parameters
        ----------
        rate_rps : float
            Of the cluster [requests/s].
        local_s : float
            Characteristic time of the local tier [s].
        """
        tokens, profile = self.capacity_tokens, self.work.demand.profile
        if tokens <= 0:
            return 0.0
        if self.tier.write != "through":
            # what the local tiers evict comes here: it holds the ages beyond theirs
            tokens += rate_rps * float(profile.resident_token_s(min(local_s, 1e12)))
        # otherwise every turn touches it
        return min(profile.retention_s(tokens, rate_rps), self.global_age_s)

    def held_tokens(self, reach_s: float) -> FloatArray:
        """Return what the global tier holds of each request of the sample [tokens].

        Parameters
        ----------
        reach_s : float
            Age up to which it holds KV [s].
        """
        return self.work.within(reach_s if self.capacity_tokens > 0 else -1.0)

    def mix(
        self, rate_rps: float, computing: float, hits: LocalHits
    ) -> tuple[Mixed, Fetches, float]:
        """Return requests as the engines get them, those that stay and those that do not.

        Parameters
        ----------
        rate_rps : float
            Of the cluster [requests/s].
        computing : float
            Share of time in which an instance computes.
        hits : LocalHits
            What they find where they land.

        Returns
        -------
        tuple
            The requests, their fetches, and the age up to which the global tier holds KV [s].
        """
        work, local = self.work, self.work.local
        reach = self.reach_s(rate_rps, hits.retention_s)
        held = self.held_tokens(reach)
        found = hits.found_tokens
        new, weight = np.empty((2, 3 * local.prompt.size))
        mean = kernels.kinds_of(local.prompt, held, hits.stay, hits.whole, found, new, weight)
        if self.picked is None:
            self.picked = pick(new, work.output_ranks, weight, work.by_output)
        else:
            self.picked = self.picked.with_mean(new[self.picked.kinds], mean)
        kinds, scale = self.picked
        table = np.empty((5, kinds.size))
        block = float(self.instance.block_tokens)
        fetching = kernels.mixed(
            kinds,
            scale,
            new,
            local.prompt,
            work.output_tokens,
            work.mean_output,
            held,
            local.longest,
            found,
            block,
            table,
        )
        prompt, output, here, potential, missing = table
        recompute = None
        if fetching and self.tier.recompute_if_faster:
            recompute = prefill_time_s(self.model, potential, here, self.instance.token_budget)
        weights = np.full(kinds.size, 1 / kinds.size)
        written = missing if self.capacity_tokens > 0 else np.zeros(kinds.size)
        fetches = self.links.fetches(
            rate_rps,
            potential,
            weights,
            written,
            recompute,
            computing,
            1.0 if self._decodes_at_writes else computing,
        )
        fetched = np.where(work.lots[: kinds.size] < fetches.made_ratio, potential, 0.0)
        fetch_s = np.where(fetched > 0, fetches.time_s, 0.0)
        is_free = kinds >= 2 * local.prompt.size
        return Mixed(prompt, output, here, fetched, potential, fetch_s, is_free), fetches, reach

    def host_s(self, prompt: FloatArray) -> FloatArray:
        """Return the host time of requests [s].

        Parameters
        ----------
        prompt : ndarray
            Their prompts [tokens].
        """
        return np.asarray(host_time_s(self.instance, prompt, self.fitted))

    def engine_mix(self, mixed: Mixed, output: FloatArray | None = None) -> RequestMix:
        """Return the mix that an engine's closed form wants.

        Parameters
        ----------
        mixed : Mixed
            Requests as the engines get them.
        output : ndarray, optional
            Other outputs than theirs [tokens].
        """
        return RequestMix(
            mixed.prompt,
            mixed.output if output is None else output,
            mixed.local + mixed.fetched,
            self.host_s(mixed.prompt) + mixed.fetch_s,
        )
