"""A cluster with a prefill and a decode pool, under its router's policy, in closed form.

The router chooses the prefill instance; that pool is a cluster of its own whose requests end with
their first token (:mod:`smetric_model.analytic.cluster`).  Their KV then moves to the decode pool
(:mod:`smetric_model.analytic.decode_pool`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.analytic.batching import ColocatedInstance, LoadedInstance
from smetric_model.analytic.cluster import ClusterState, ColocatedCluster
from smetric_model.analytic.cluster_links import Fetches, stretch_of
from smetric_model.analytic.cluster_rounds import Guess
from smetric_model.analytic.cluster_tiers import LocalHits
from smetric_model.analytic.decode_pool import DecodePool
from smetric_model.analytic.mixed_requests import Mixed
from smetric_model.analytic.stickiness import Stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.errors import UnstableError

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario

__all__ = ["DisaggregatedCluster"]

#: output of a request on its prefill instance: the first token comes with the prompt
_NO_DECODE_TOKENS = 1e-6
_FULLEST = 0.98  # load of a link in rounds in which it is more
_LEAST_POOL = 0.1  # of a prefill pool's KV that waiting for the decode pool leaves in a round


class DisaggregatedCluster(ColocatedCluster):
    """Closed form of a disaggregated cluster.

    Parameters
    ----------
    scenario, demand
        As of :class:`~smetric_model.analytic.cluster.ColocatedCluster`.
    """

    def __init__(self, scenario: Scenario, demand: Demand):
        super().__init__(scenario, demand)
        self.decode_instances = self.cluster.decode_instances
        self.decode: DecodePool | None = None
        self.transfer_nic_utilisation = 0.0
        self._decode_s = 1.0
        per_node = self.cluster.instances_per_node
        first = self.instances // per_node
        self.decode_nodes = self.cluster.nodes - first
        # a node that holds some of both pools: transfers within it use no network
        mixed = self.instances % per_node
        prefill_share = mixed / self.instances
        decode_share = min(per_node - mixed, self.decode_instances) / self.decode_instances
        self.transfer_remote_ratio = 1.0 - (prefill_share * decode_share if mixed else 0.0)

    def at(self, rate_rps: float) -> ClusterState:
        """Return the cluster at a rate; :attr:`decode` is its decode pool there.

        Parameters
        ----------
        rate_rps : float
            Servable requests of the cluster [requests/s].

        Returns
        -------
        ClusterState
            Of the prefill pool.

        Raises
        ------
        UnstableError
            ``prefill_compute``, ``prefill_kv``, ``decode_kv``, ``decode_compute``, ``nic_in`` …
        """
        self._own_rps = rate_rps / self.instances
        prompt = self.work.local.prompt
        output = self.work.output_tokens
        several = np.flatnonzero(output > 1)
        self.decode = None
        self._decode_s = self._handover_s = self.links.passing = 0.0
        if several.size:
            # as many as the engine's laws are made of
            order = several[np.argsort(output[several], kind="stable")]
            at = order[((np.arange(512) + 0.5) * (order.size / 512)).astype(int)]
            scale = float(output[several].mean()) / float(output[at].mean())
            self._decodes = several.size / output.size
            self.decode = DecodePool(
                self.model,
                self.decode_instances,
                rate_rps * self._decodes,
                prompt[at],
                output[at] * scale,
                self.demand.pool_tokens,
                self.demand.fixed_state_tokens,
                self.demand.instance.max_running_requests,
                np.zeros(at.size),
            )
            self._sent_tokens = prompt[at]
            self._hand_over(0.5, None)
        try:
            return super().at(rate_rps)
        except UnstableError as error:
            if error.resource in ("compute", "kv"):
                raise UnstableError(f"prefill pool: {error}", f"prefill_{error.resource}") from None
            raise

    def _mix(self, rate_rps: float, guess: Guess, hits: LocalHits) -> tuple[Mixed, Fetches, float]:
        mixed, fetches, reach = super()._mix(rate_rps, guess, hits)
        self._hand_over(guess.computing, fetches)
        return mixed, fetches, reach

    def _hand_over(self, computing: float, fetches: Fetches | None) -> None:
        """Work out how long KV takes to the decode pool, beside fetches and writes.

        A node of the prefill pool sends what leaves, its own writes and its share of what others
        fetch; one of the decode pool gets what comes and its share of the writes.
        """
        pool, links, nodes = self.decode, self.links, self.cluster.nodes
        if pool is None:
            return
        tokens = self._sent_tokens
        transfer = tokens * links.bytes_per_token / links.pcie
        if nodes > 1:
            # slower if either of the two instances computes
            busy = 1.0 - (1.0 - computing) * (1.0 - pool.computing)
            remote = self.transfer_remote_ratio
            alone = links.nic_s(tokens, busy) / max(links.remote, 1e-12)
            load = pool.rate_rps * remote * float(alone.mean()) / links.streams
            self.transfer_nic_utilisation = load / nodes
            # the node that holds most of a pool carries most of its transfers
            per_node = self.cluster.instances_per_node
            leaving = load * min(per_node / self.instances, 1.0)
            coming = load * min(per_node / self.decode_instances, 1.0)
            links.passing = leaving
            if fetches is not None:
                spread = links.nodes / nodes
                reads = fetches.nic_utilisation - fetches.write_utilisation
                leaving += fetches.write_utilisation + spread * reads
                coming += spread * fetches.write_utilisation
            self._leaving, self._coming = leaving, coming
            stretch = stretch_of(min(max(leaving, coming), _FULLEST), links.streams)
            transfer = np.maximum(remote * alone * stretch, transfer)
        pool.transfer_s = np.asarray(transfer)
        self._decode_s = pool.mean_after_first_token_s() * self._decodes
        self._handover_s = (pool.wait_s + float(transfer.mean())) * self._decodes

    def _check_links(self, rate_rps: float, fetches: Fetches, mixed: Mixed) -> tuple[str, ...]:
        """Between the pools requests wait for the links, also for the writes on them."""
        if self.decode is not None and self.cluster.nodes > 1:
            busiest = max(self._leaving, self._coming)
            if busiest >= 1:
                side = "prefill_nic_out" if self._leaving >= self._coming else "decode_nic_in"
                sent = self.transfer_nic_utilisation * self.cluster.nodes
                raise UnstableError(
                    f"{rate_rps:.4g} requests/s send, write and fetch {busiest:.3g} times what"
                    f" the NICs between the pools carry (KV that is handed over: {sent:.3g} nodes'"
                    f" worth; writes: {fetches.write_utilisation:.3g} of a prefill node's):"
                    " cluster.nics_per_node, cluster.nic_bytes_per_s or more instances help",
                    side,
                )
        return super()._check_links(rate_rps, fetches, mixed)

    def _waiting_tokens(self, own_rps: float) -> float:
        """KV of an instance that waits for room in the decode pool, or is on its way [tokens]."""
        return own_rps * self._handover_s * float(self.work.local.prompt.mean())

    def _next(
        self, loaded: LoadedInstance, routed: Stickiness, hits: LocalHits, own: float
    ) -> Guess:
        guess = super()._next(loaded, routed, hits, own)
        shared = self.work.local.mean_shared
        waiting = own * self._handover_s * max(float(self.work.local.prompt.mean()) - shared, 0.0)
        return guess._replace(pinned=min(guess.pinned + waiting, self.demand.pool_tokens))

    def _before_token_ratio(self, ttft_s: float, decode_s: float) -> float:
        # the mean field sees who waits for prefill or is in it: all of the prompt counts
        return 1.0

    def _instance(self, mixed: Mixed) -> ColocatedInstance:
        demand = self.demand
        return ColocatedInstance(
            self.model,
            self.engines.engine_mix(mixed, np.full(mixed.prompt.size, _NO_DECODE_TOKENS)),
            # what waits for the decode pool stays pinned
            max(
                demand.pool_tokens - self._waiting_tokens(self._own_rps),
                _LEAST_POOL * demand.pool_tokens,
            ),
            demand.instance.token_budget,
            demand.instance.max_running_requests,
            demand.fixed_state_tokens,
        )

    def _think_time(self) -> ThinkTime:
        think = self.work.think_time
        return replace(think, means_s=think.means_s + self._decode_s)

    def _after_first_token_s(self, loaded: LoadedInstance) -> float:
        return self._decode_s
