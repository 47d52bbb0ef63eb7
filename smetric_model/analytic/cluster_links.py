r"""Links of a cluster under load: how long fetches take, and which of them are not made.

A fetch moves all its bytes over the PCIe of its instance and the share ``(n - 1)/n`` that lies on
other nodes into the NICs of its node, both at once; it is done when both are, plus the engine's
fixed time.  A node's NICs are a processor-sharing station: reads and writes of work ``b/η(b)``
arrive at random, each at most as fast as the NICs that one instance drives, so that ``c`` of them
run at full speed and more share what there is,

.. math:: P(n) \propto \prod_{j \le n} \frac{ρ_{j-1} c}{\min(j, c)}, \qquad
   \text{stretch}(n) = \max(1, (n + 1)/c)

(insensitive to the sizes).  An engine that may recompute does so where fetching would take longer
at what it finds on the link, so that the load ρ_n that arrives falls with the number n on it: a
busy link refuses fetches and cannot saturate by them.

Where KV is written through, a write begins as its request begins to decode, so that the GPUs
compute meanwhile, which slows it down (``data/fabric.toml``, ``busy_ratio``); in a pool that only
prefills they compute as at any time.

Writes hold no request up: where they alone are more than the NICs carry, they lag behind without
bound, and no fetch that could be recomputed is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _link_kernels as kernels
from smetric_model.analytic.efficiencies import Efficiencies
from smetric_model.analytic.fabric import nic_curve, pcie_bytes_per_s
from smetric_model.errors import UnstableError

if TYPE_CHECKING:
    from smetric_model.catalog.cluster import Cluster
    from smetric_model.catalog.instance import InstanceSpec

__all__ = ["Fetches", "Links", "stretch_of", "transfers_on_link"]

FloatArray = NDArray[np.float64]

_FLOWS = 64  # transfers told apart on one link
_NEVER = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Fetches:
    """Fetches at one load; arrays as those given to :meth:`Links.fetches`.

    Attributes
    ----------
    made_ratio : ndarray
        Probability that each is made and its tokens not recomputed.
    time_s : ndarray
        Mean time of one that is made [s].
    nic_utilisation, pcie_utilisation : float
        Of a node's NICs in each direction, and of an instance's PCIe.
    offered_nic_utilisation : float
        What the NICs would have to carry if every fetch were made.
    write_utilisation : float
        What writes alone ask of them; from 1 on they lag behind without bound.
    """

    made_ratio: FloatArray
    time_s: FloatArray
    nic_utilisation: float
    pcie_utilisation: float
    offered_nic_utilisation: float
    write_utilisation: float


class Links:
    """Links of a cluster and what a transfer takes on them.

    Parameters
    ----------
    cluster : Cluster
        Nodes and NICs.
    instance : InstanceSpec
        For its PCIe and how many NICs it drives.
    kv_bytes_per_token : float
        Of the whole instance [bytes].
    fitted : Efficiencies
        For the engine's fixed time of a fetch.
    fetching : int, optional
        Instances that fetch and write, from the first on; all by default.
    """

    def __init__(
        self,
        cluster: Cluster,
        instance: InstanceSpec,
        kv_bytes_per_token: float,
        fitted: Efficiencies,
        fetching: int | None = None,
    ):
        self.cluster = cluster
        self.instances = fetching or cluster.instances
        self.nodes = -(-self.instances // cluster.instances_per_node)
        self.bytes_per_token = kv_bytes_per_token
        self.driven = min(cluster.nics_per_node, instance.tp)
        self.streams = cluster.nics_per_node / self.driven
        self.pcie = float(instance.tp * pcie_bytes_per_s(instance.gpu))
        self.remote = cluster.remote_ratio
        self.fixed_s = float(fitted.rdma_fetch_s if cluster.nodes > 1 else fitted.dram_fetch_s)
        self._wire = (
            float(kv_bytes_per_token),
            float(self.remote),
            float(self.driven),
            float(cluster.nic_bytes_per_s),
            *nic_curve(cluster),
        )
        #: share of a node's NICs that other transfers take (KV that leaves a prefill pool)
        self.passing = 0.0

    def nic_s(self, tokens: FloatArray, computing: float) -> FloatArray:
        """Return how long transfers between nodes take alone [s].

        Parameters
        ----------
        tokens : ndarray
            Tokens of each; the share that lies on other nodes moves.
        computing : float
            Probability that the GPUs compute meanwhile, which slows transfers down.
        """
        given = np.ascontiguousarray(tokens, dtype=float)
        return np.asarray(kernels.nic_s(given, self._wire, float(computing), np.empty(given.size)))

    def fetches(
        self,
        rate_rps: float,
        fetched_tokens: FloatArray,
        weights: FloatArray,
        written_tokens: FloatArray,
        recompute_s: FloatArray | None,
        computing: float,
        computing_at_writes: float | None = None,
    ) -> Fetches:
        """Return which fetches are made, and how long they take.

        Parameters
        ----------
        rate_rps : float
            Requests of the cluster [requests/s].
        fetched_tokens : ndarray, shape (n,)
            What each kind of request could fetch [tokens].
        weights : ndarray, shape (n,)
            Share of the requests of each kind; sums to 1.
        written_tokens : ndarray, shape (n,)
            What each writes to the global tier [tokens].
        recompute_s : ndarray, shape (n,), or None
            How long computing the fetch instead would take [s]; None: fetches are always made.
        computing : float
            Probability that an instance computes.
        computing_at_writes : float, optional
            Probability that it does while it writes; by default as at any time.

        Returns
        -------
        Fetches
        """
        result = np.empty((2, fetched_tokens.size))
        load, used, offered, writing = kernels.fetches(
            fetched_tokens,
            weights,
            written_tokens,
            _NEVER if recompute_s is None else recompute_s,
            _FLOWS,
            self._wire,
            self.pcie,
            self.fixed_s,
            rate_rps / self.nodes / self.streams,
            rate_rps / self.instances,
            self.streams,
            float(self.passing),
            float(computing),
            float(computing if computing_at_writes is None else computing_at_writes),
            result,
        )
        return Fetches(result[0], result[1], load, used, offered, writing)

    def check(self, rate_rps: float, fetches: Fetches, blocks: bool) -> tuple[str, ...]:
        """Return what to say of links that lag behind.

        Parameters
        ----------
        rate_rps : float
            Requests of the cluster [requests/s].
        fetches : Fetches
            At this rate.
        blocks : bool
            Whether requests wait for fetches that nothing can replace.

        Returns
        -------
        tuple of str

        Raises
        ------
        UnstableError
            If requests wait for a link that carries less than is asked: ``nic_in`` or ``pcie``.
        """
        notes: tuple[str, ...] = ()
        if fetches.write_utilisation >= 1 and not blocks:
            # requests do not wait for writes, and fetch nothing behind them
            notes = (
                "writes to the global tier lag behind: they ask for"
                f" {fetches.write_utilisation:.3g} times what the NICs carry, and nothing is"
                " fetched between nodes; a store with a bounded buffer drops such writes",
            )
        elif fetches.nic_utilisation >= 1:
            raise UnstableError(
                f"{rate_rps:.4g} requests/s fetch and write {fetches.nic_utilisation:.3g} times"
                f" what the NICs of {self.cluster.nodes} nodes carry",
                "nic_in",
            )
        if fetches.pcie_utilisation >= 1:
            raise UnstableError(
                f"{rate_rps:.4g} requests/s fetch {fetches.pcie_utilisation:.3g} times what PCIe"
                " carries",
                "pcie",
            )
        return notes


def stretch_of(load: float, streams: float) -> float:
    """Return how much longer transfers take that share a link, on average.

    Parameters
    ----------
    load : float
        Share of the link that they take, below 1.
    streams : float
        Transfers that run at full speed side by side.
    """
    law = transfers_on_link(np.full(_FLOWS, load), streams)
    return float(law @ np.maximum(1.0, (np.arange(_FLOWS) + 1) / streams))


def transfers_on_link(work: FloatArray, streams: float) -> FloatArray:
    """Return the law of the transfers on a link that a new one finds, processor sharing.

    Parameters
    ----------
    work : ndarray, shape (m,)
        Work that arrives per second of the link's capacity while 0, 1, … are on it.
    streams : float
        Transfers that run at full speed side by side.

    Returns
    -------
    ndarray, shape (m,)
        P(0), …, P(m - 1).
    """
    return np.asarray(kernels.transfers_on_link(np.asarray(work, dtype=float), float(streams)))
