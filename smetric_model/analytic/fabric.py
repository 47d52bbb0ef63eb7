r"""Links between the KV tiers: transfer times and what a cluster's fabric can carry.

A hit in the global tier moves ``hit_tokens · kv_bytes_per_token`` through PCIe and, for the share
that lies on other nodes, through two NICs (DESIGN §5).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.datafiles import load_toml

if TYPE_CHECKING:
    from smetric_model.catalog.cluster import Cluster
    from smetric_model.catalog.gpu import Gpu

__all__ = [
    "FetchPath",
    "NicCurve",
    "fetch_bytes_per_s",
    "global_tier_rate_cap_rps",
    "nic_bytes_per_s",
    "nic_curve",
    "node_nic_utilisation",
    "pcie_bytes_per_s",
]


class NicCurve(NamedTuple):
    """Efficiency of one NIC by the size of a transfer, and by how much busy GPUs lower it.

    Attributes
    ----------
    log_bytes, efficiency : ndarray of float
        Logarithms of sizes, and the share of the line rate that transfers of that size get: linear
        in between, constant outside.
    busy_ratio : float
        Of that, while GPUs compute.
    """

    log_bytes: NDArray[np.float64]
    efficiency: NDArray[np.float64]
    busy_ratio: float


@lru_cache(maxsize=1)
def _measured_curve() -> NicCurve:
    table = load_toml("fabric.toml")["nic"]["measured"]
    rates = np.array(table["bytes_per_s"], dtype=float)
    return NicCurve(
        np.log(table["transfer_bytes"]),
        rates / table["line_rate_bytes_per_s"],
        float(table["busy_ratio"]),
    )


def nic_curve(cluster: Cluster) -> NicCurve:
    """Return how the efficiency of a NIC depends on the size of a transfer.

    Parameters
    ----------
    cluster : Cluster
        Its ``nic_efficiency``: a number is taken as it is, at any size and load.
    """
    if cluster.nic_efficiency == "measured":
        return _measured_curve()
    return NicCurve(np.zeros(1), np.full(1, float(cluster.nic_efficiency)), 1.0)


def nic_bytes_per_s(cluster: Cluster, transfer_bytes: ArrayLike, busy: bool) -> Any:
    """Return the rate of one NIC for transfers of a given size.

    Parameters
    ----------
    cluster : Cluster
        Its ``nic_bytes_per_s`` and ``nic_efficiency``: a number, or ``"measured"`` for the
        size-dependent curve of ``data/fabric.toml`` (between its ends linear in the logarithm of
        the size, constant outside).
    transfer_bytes : array_like of float
        Size of one transfer [bytes].
    busy : bool
        Whether the GPUs run prefill and decode meanwhile (halves the measured rate).  A stated
        number is taken as it is.

    Returns
    -------
    float or ndarray
        Rate of one NIC in one direction [bytes/s].
    """
    curve = nic_curve(cluster)
    size = np.maximum(np.asarray(transfer_bytes, dtype=float), 1.0)
    efficiency = np.interp(np.log(size), curve.log_bytes, curve.efficiency)
    rate = cluster.nic_bytes_per_s * efficiency * (curve.busy_ratio if busy else 1.0)
    return rate if np.ndim(rate) else float(rate)


def pcie_bytes_per_s(gpu: Gpu) -> float:
    """Return the host-to-device rate of one GPU [bytes/s]: PCIe times its measured efficiency.

    Parameters
    ----------
    gpu : Gpu
        Catalog entry.
    """
    return float(gpu.pcie_bytes_per_s * _pcie_efficiency())


@lru_cache(maxsize=1)
def _pcie_efficiency() -> float:
    return float(load_toml("fabric.toml")["pcie"]["measured"]["efficiency"])


FetchPath = Literal["dram", "rdma"]


def fetch_bytes_per_s(
    cluster: Cluster, gpu: Gpu, tp: int, path: FetchPath, transfer_bytes: ArrayLike, busy: bool
) -> Any:
    """Return the rate at which one instance fetches KV.

    Parameters
    ----------
    cluster : Cluster
        For its NICs.
    gpu : Gpu
        For its PCIe link; the ``tp`` GPUs of an instance fetch their shares side by side.
    tp : int
        GPUs of the instance.
    path : {"dram", "rdma"}
        The node's own memory over PCIe, or another node's through the NICs (and PCIe).
    transfer_bytes : array_like of float
        Bytes of the whole instance [bytes].
    busy : bool
        As in :func:`nic_bytes_per_s`.

    Returns
    -------
    float or ndarray
        Rate of the slowest link on the path [bytes/s].
    """
    pcie = tp * pcie_bytes_per_s(gpu)
    if path == "dram":
        return np.full(np.shape(transfer_bytes), pcie) if np.ndim(transfer_bytes) else pcie
    nics = min(cluster.nics_per_node, tp)  # one GPU drives one NIC
    # the instance's transfer is split over its NICs
    per_nic = np.asarray(transfer_bytes, dtype=float) / nics
    rate = np.minimum(nics * nic_bytes_per_s(cluster, per_nic, busy), pcie)
    return rate if np.ndim(rate) else float(rate)


def node_nic_utilisation(
    cluster: Cluster, rate_rps: float, bytes_per_request: float, transfer_bytes: float
) -> float:
    r"""Return the share of each node's NICs, per direction, that global-tier traffic takes.

    A node's egress carries others' reads and its own writes, its ingress the reverse, so that both
    carry

    .. math:: \frac{\lambda}{n}\,\frac{n-1}{n}\,(E[\mathrm{fetched}] + E[\mathrm{written}])

    bytes/s, against ``nics · η · line rate``.

    Parameters
    ----------
    cluster : Cluster
        Nodes and NICs.
    rate_rps : float
        Arrival rate of the cluster [requests/s].
    bytes_per_request : float
        Mean bytes fetched plus written per request [bytes].
    transfer_bytes : float
        Typical size of one transfer, for the efficiency [bytes].

    Returns
    -------
    float
        Utilisation; above 1 it cannot be carried.
    """
    per_node = rate_rps * cluster.remote_ratio * bytes_per_request / cluster.nodes
    capacity = cluster.nics_per_node * nic_bytes_per_s(cluster, transfer_bytes, busy=True)
    return float(per_node / capacity)


def global_tier_rate_cap_rps(
    cluster: Cluster,
    fetched_bytes_per_request: float,
    written_bytes_per_request: float,
    transfer_bytes: float,
) -> float:
    """Return the largest cluster arrival rate whose global-tier traffic the NICs carry.

    Parameters
    ----------
    cluster : Cluster
        Nodes and NICs.
    fetched_bytes_per_request, written_bytes_per_request : float
        Mean global-tier bytes read and written per request [bytes].
    transfer_bytes : float
        Typical size of one transfer, for the efficiency [bytes].

    Returns
    -------
    float
        Arrival rate of the cluster [requests/s]; ``inf`` without traffic between nodes.
    """
    traffic = fetched_bytes_per_request + written_bytes_per_request
    used = node_nic_utilisation(cluster, 1.0, traffic, transfer_bytes)
    return 1.0 / used if used > 0 else float("inf")
