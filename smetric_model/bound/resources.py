"""Capacities of the cluster, and the least link capacity that requests take of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.inputs import Inputs

__all__ = ["Capacities", "Layout", "capacities_of", "handover_work", "nic_work"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Where the global tier may put KV: spread over the nodes, or wherever it is needed next.
Layout = Literal["spread", "free"]


@dataclass(frozen=True)
class Capacities:
    """Capacities of the cluster; ``inf`` where a resource is not there or does not limit.

    Attributes
    ----------
    compute : float
        Instances that prefill (colocated: all) [engine seconds per second].
    decode_compute : float
        Instances that only decode; 0 when colocated.
    local_tokens, decode_local_tokens : float
        KV pools [tokens].
    global_tokens : float
        Global tier [tokens].
    nic_bytes_per_s, pcie_bytes_per_s : float
        One direction of all nodes' NICs; all instances' PCIe [bytes/s].
    """

    compute: float
    decode_compute: float
    local_tokens: float
    decode_local_tokens: float
    global_tokens: float
    nic_bytes_per_s: float
    pcie_bytes_per_s: float


def nic_work(inputs: Inputs, usable: IntArray, layout: Layout) -> FloatArray:
    """Least line capacity per fetched token, over all sizes up to the request's longest hit."""
    fabric, engine = inputs.fabric, inputs.engine
    if fabric.nodes == 1 or layout == "free":
        return np.zeros(usable.size)
    size = np.arange(1, fabric.nic_work_idle.size)
    work = np.minimum(fabric.nic_work_idle, fabric.nic_work_busy)[1:]
    least = np.minimum.accumulate(work / (size * engine.block_tokens))
    longest = np.clip(-(-usable // engine.block_tokens), 1, size.size)
    return np.asarray(least[longest - 1])


def handover_work(
    inputs: Inputs, prompt: FloatArray, output: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Least link capacity that handing a prompt's KV to the decode pool takes."""
    fabric, engine = inputs.fabric, inputs.engine
    blocks = np.floor(prompt / engine.block_tokens).astype(np.int64)
    moved = np.where(output > 1, blocks, 0)
    pcie = moved * fabric.block_bytes
    work = fabric.transfer_work_idle
    shares_a_node = fabric.prefill_instances % fabric.instances_per_node != 0
    if shares_a_node or work.size == 0 or fabric.nodes == 1:
        return np.zeros(prompt.size), pcie  # it may stay within the node
    least = np.minimum(work, fabric.transfer_work_busy)
    # capacity taken by a size or any larger one
    least = np.minimum.accumulate(least[::-1])[::-1]
    return least[np.clip(moved, 0, least.size - 1)], pcie


def capacities_of(scenario: Scenario, inputs: Inputs, layout: Layout) -> Capacities:
    """Capacities of a scenario's cluster."""
    fabric, engine, cluster = inputs.fabric, inputs.engine, scenario.cluster
    split = cluster.serving == "disaggregated"
    prefill = cluster.prefill_instances if split else fabric.instances
    decode = cluster.decode_instances if split else 0
    one_node = fabric.nodes == 1 or (layout == "free" and not split)
    return Capacities(
        compute=float(prefill or 0),
        decode_compute=float(decode or 0),
        local_tokens=float((prefill or 0) * engine.pool_tokens),
        decode_local_tokens=float((decode or 0) * engine.pool_tokens),
        global_tokens=float(fabric.global_blocks * engine.cache_block_tokens),
        nic_bytes_per_s=np.inf if one_node else fabric.nodes * fabric.node_nic_bytes_per_s,
        pcie_bytes_per_s=float(fabric.instances * fabric.pcie_bytes_per_s),
    )
