"""Clusters: how many instances, on what nodes, behind what network cards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from smetric_model.catalog._lookup import find
from smetric_model.datafiles import load_toml
from smetric_model.errors import SpecError

__all__ = ["DEFAULT_CLUSTER", "Cluster", "cluster_names", "get_cluster"]

#: Name of the cluster that the defaults describe.
DEFAULT_CLUSTER = "paper-testbed"

_SERVINGS = ("colocated", "disaggregated")


@dataclass(frozen=True)
class Cluster:
    """A cluster of equal nodes.

    Parameters
    ----------
    instances : int
        Serving instances.
    gpus_per_instance : int
        GPUs of one instance, its tensor parallelism; they share a node.
    gpus_per_node : int
        GPUs of a node.
    nics_per_node : int
        Network cards of a node.
    nic_bytes_per_s : float
        Line rate of a card, one direction [bytes/s].
    nic_efficiency : float or str
        Share of the line rate that KV transfers reach, in (0, 1], or ``measured``: the size- and
        load-dependent curve of the fabric model.
    dram_bytes_per_node : float
        Host memory of a node that may hold KV; 0: none [bytes].
    serving : str
        ``colocated`` (each instance prefills and decodes) or ``disaggregated``.
    prefill_instances, decode_instances : int
        Their split where serving is disaggregated; 0 otherwise.

    Raises
    ------
    SpecError
        If a value is out of range, an instance does not fit into a node, or the split does not add
        up.
    """

    instances: int = 32
    gpus_per_instance: int = 1
    gpus_per_node: int = 8
    nics_per_node: int = 1
    nic_bytes_per_s: float = 25e9
    nic_efficiency: float | str = "measured"
    dram_bytes_per_node: float = 1280e9
    serving: str = "colocated"
    prefill_instances: int = 0
    decode_instances: int = 0

    def __post_init__(self) -> None:
        for name in ("instances", "gpus_per_instance", "gpus_per_node", "nics_per_node"):
            _check_count(name, getattr(self, name), 1)
        for name in ("prefill_instances", "decode_instances"):
            _check_count(name, getattr(self, name), 0)
        if not 0 < self.nic_bytes_per_s < float("inf"):
            raise SpecError(
                f"cluster: nic_bytes_per_s = {self.nic_bytes_per_s!r}, must be a finite number > 0"
            )
        if not 0 <= self.dram_bytes_per_node < float("inf"):
            raise SpecError(
                f"cluster: dram_bytes_per_node = {self.dram_bytes_per_node!r}, must be a finite"
                " number >= 0"
            )
        self._check_efficiency()
        if self.gpus_per_instance > self.gpus_per_node:
            raise SpecError(
                f"cluster: an instance of {self.gpus_per_instance} GPUs does not fit into a node "
                f"of {self.gpus_per_node}; instances across nodes are not modelled"
            )
        self._check_serving()

    def _check_efficiency(self) -> None:
        value = self.nic_efficiency
        if isinstance(value, str):
            if value != "measured":
                raise SpecError(
                    f"cluster: nic_efficiency = {value!r}, must be a number in (0, 1] or 'measured'"
                )
        elif isinstance(value, bool) or not 0 < value <= 1:
            raise SpecError(f"cluster: nic_efficiency = {value!r}, must be in (0, 1] or 'measured'")

    def _check_serving(self) -> None:
        if self.serving not in _SERVINGS:
            raise SpecError(
                f"cluster: serving {self.serving!r} is not known; one of {', '.join(_SERVINGS)}"
            )
        split = self.prefill_instances + self.decode_instances
        if self.serving == "colocated" and split:
            raise SpecError(
                f"cluster: prefill_instances = {self.prefill_instances}, decode_instances = "
                f"{self.decode_instances}: only for serving = 'disaggregated'"
            )
        if self.serving == "disaggregated" and (
            split != self.instances or not self.prefill_instances or not self.decode_instances
        ):
            raise SpecError(
                f"cluster: prefill_instances = {self.prefill_instances} and decode_instances = "
                f"{self.decode_instances} must both be >= 1 and add up to instances = "
                f"{self.instances}"
            )

    @property
    def instances_per_node(self) -> int:
        """Instances that fit into one node."""
        return self.gpus_per_node // self.gpus_per_instance

    @property
    def nodes(self) -> int:
        """Nodes that the instances occupy, each filled before the next."""
        return -(-self.instances // self.instances_per_node)

    @property
    def gpus(self) -> int:
        """GPUs that the instances use."""
        return self.instances * self.gpus_per_instance

    @property
    def idle_gpus(self) -> int:
        """GPUs of the occupied nodes that no instance uses."""
        return self.nodes * self.gpus_per_node - self.gpus

    @property
    def remote_ratio(self) -> float:
        """Share of global-tier bytes that lie on another node, spread evenly over the nodes."""
        return (self.nodes - 1) / self.nodes

    @property
    def nic_line_rate_per_node_bytes_per_s(self) -> float:
        """All network cards of a node, one direction, at line rate [bytes/s]."""
        return self.nics_per_node * self.nic_bytes_per_s

    @property
    def dram_bytes(self) -> float:
        """Host memory of all occupied nodes [bytes]."""
        return self.nodes * self.dram_bytes_per_node

    def node_of(self, instance: int) -> int:
        """Return the node, counted from 0, that holds an instance.

        Parameters
        ----------
        instance : int
            From 0 to ``instances`` − 1.

        Raises
        ------
        SpecError
            For any other number.
        """
        if not 0 <= instance < self.instances:
            raise SpecError(f"instance {instance} does not exist: 0 to {self.instances - 1}")
        return instance // self.instances_per_node


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"cluster: {name} = {value!r}, must be a whole number >= {least}")


@cache
def _catalog() -> dict[str, Cluster]:
    clusters = {}
    for name, facts in load_toml("clusters.toml").items():
        table = {key: value for key, value in facts.items() if key != "source"}
        try:
            clusters[name] = Cluster(**table)
        except TypeError as error:
            raise SpecError(f"data/clusters.toml, [{name}]: {error}") from None
    return clusters


def cluster_names() -> list[str]:
    """Names of the clusters in the catalog."""
    return list(_catalog())


def get_cluster(name: str = DEFAULT_CLUSTER) -> Cluster:
    """Return a cluster of the catalog.

    Parameters
    ----------
    name : str
        Such as ``"paper-testbed"``, the default.

    Raises
    ------
    SpecError
        For an unknown name; the message lists the known ones.
    """
    cluster: Cluster = find("cluster", name, _catalog(), " To add one: data/clusters.toml.")
    return cluster
