"""A cluster with a prefill and a decode pool, under its router's policy, in closed form.

The router chooses the prefill instance; that pool is a cluster of its own whose requests end with
their first token (:mod:`smetric_model.analytic.cluster`).  Their KV then moves to the decode pool
(:mod:`smetric_model.analytic.decode_pool`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.analytic.batching import ColocatedInstance, LoadedInstance, RequestMix
from smetric_model.analytic.cluster import ClusterState, ColocatedCluster, Mixed
from smetric_model.analytic.cluster_links import transfers_on_link
from smetric_model.analytic.decode_pool import DecodePool
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.errors import UnstableError

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario

__all__ = ["DisaggregatedCluster"]

#: output of a request on its prefill instance: the first token comes with the prompt
_NO_DECODE_TOKENS = 1e-6
_FLOWS = 64


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
        self._rate_rps = rate_rps
        self._transfer_s = 0.0
        prompt = self.work.local.prompt
        output = self.work.output_tokens
        several = np.flatnonzero(output > 1)
        self.decode = None
        if several.size:
            # as many as the engine's laws are made of
            order = several[np.argsort(output[several], kind="stable")]
            at = order[((np.arange(512) + 0.5) * (order.size / 512)).astype(int)]
            scale = float(output[several].mean()) / float(output[at].mean())
            share = several.size / output.size
            transfer = self._transfers(rate_rps * share, prompt[at])
            self._transfer_s = float(transfer.mean()) * share
            self.decode = DecodePool(
                self.model,
                self.decode_instances,
                rate_rps * share,
                prompt[at],
                output[at] * scale,
                self.demand.pool_tokens,
                self.demand.fixed_state_tokens,
                self.demand.instance.max_running_requests,
                transfer,
            )
            self._decode_s = self.decode.mean_after_first_token_s() * share
        try:
            return super().at(rate_rps)
        except UnstableError as error:
            if error.resource in ("compute", "kv"):
                raise UnstableError(f"prefill pool: {error}", f"prefill_{error.resource}") from None
            raise

    def _transfers(self, rate_rps: float, tokens: np.ndarray) -> np.ndarray:
        """How long the KV of each request takes to the decode pool [s]."""
        links = self.links
        pcie = tokens * links.bytes_per_token / links.pcie
        if self.cluster.nodes == 1:
            return np.asarray(pcie)
        remote = self.transfer_remote_ratio
        alone = links.nic_s(tokens, 1.0) / max(links.remote, 1e-12)
        load = rate_rps * remote * float(alone.mean()) / links.streams
        # the node that holds most of a pool carries most of its transfers
        per_node = self.cluster.instances_per_node
        leaving = min(per_node / self.instances, 1.0)
        coming = min(per_node / self.decode_instances, 1.0)
        busiest = load * max(leaving, coming)
        self.transfer_nic_utilisation = load / self.cluster.nodes
        if busiest >= 1:
            side = "decode_nic_in" if coming >= leaving else "prefill_nic_out"
            raise UnstableError(
                f"{rate_rps:.4g} requests/s send {busiest:.3g} times what the NICs between the"
                " pools carry",
                side,
            )
        law = transfers_on_link(np.full(_FLOWS, busiest), links.streams)
        stretch = float(law @ np.maximum(1.0, (np.arange(_FLOWS) + 1) / links.streams))
        return np.asarray(np.maximum(remote * alone * stretch, pcie))

    def _instance(self, mixed: Mixed) -> ColocatedInstance:
        demand = self.demand
        return ColocatedInstance(
            self.model,
            RequestMix(
                mixed.prompt,
                np.full(mixed.prompt.size, _NO_DECODE_TOKENS),
                mixed.local + mixed.fetched,
                self._host_s(mixed.prompt) + mixed.fetch_s,
            ),
            demand.pool_tokens,
            demand.instance.token_budget,
            demand.instance.max_running_requests,
            demand.fixed_state_tokens,
        )

    def _think_time(self) -> ThinkTime:
        think = self.work.think_time
        return replace(think, means_s=think.means_s + self._decode_s)

    def _after_first_token_s(self, loaded: LoadedInstance) -> float:
        return self._decode_s
