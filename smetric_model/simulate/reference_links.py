"""Links of the readable simulator: transfers that share a rate, and the nodes' interfaces."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smetric_model.simulate.inputs import Inputs, Window
    from smetric_model.simulate.reference_pools import Transfer

__all__ = ["Nics", "Sharing", "overlap"]


class Sharing:
    """Transfers that share one rate equally: each has had ``served`` bytes since this began."""

    def __init__(self) -> None:
        self.served = 0.0
        self.rate = 0.0
        self.flows: list[tuple[float, int]] = []  # (served when done, request), a heap

    def add(self, work: float, request: int) -> None:
        """Begin a transfer of ``work`` bytes."""
        if not self.flows:
            self.served = 0.0
        heapq.heappush(self.flows, (self.served + work, request))

    def pop(self) -> int:
        """End the transfer that is done first; returns its request."""
        finish, request = heapq.heappop(self.flows)
        self.served = max(self.served, finish)
        return request

    def cancel(self, request: int) -> float:
        """Take a transfer out before it is done; returns what was left of it."""
        left = [finish - self.served for finish, other in self.flows if other == request]
        self.flows = [flow for flow in self.flows if flow[1] != request]
        heapq.heapify(self.flows)
        return max(0.0, left[0]) if left else 0.0

    def ticks_left(self) -> int:
        """Ticks until the first transfer is done, at the present rate."""
        left = (self.flows[0][0] - self.served) / self.rate
        return max(0, math.ceil(left * 1e12))


class Nics:
    """All nodes' network interfaces: reads of and writes by each node's instances."""

    def __init__(self, inputs: Inputs):
        self.fabric, self.window = inputs.fabric, inputs.window
        fabric = inputs.fabric
        # of each node: what one transfer may take, and how many times slower than node 0 it is
        self.flow = inputs.of_nodes("fabric.flow_nic_bytes_per_s").tolist()
        rate = inputs.of_nodes("fabric.node_nic_bytes_per_s")
        self.slowness = (fabric.node_nic_bytes_per_s / rate).tolist()
        self.reads = [Sharing() for _ in range(fabric.nodes)]
        self.writes = [Sharing() for _ in range(fabric.nodes)]
        self.transfers: list[Transfer] = []  # from prefill to decode, in order of their start
        self.now = 0
        self.work = np.zeros((4, fabric.nodes))  # reads, writes, KV in, KV out

    @property
    def classes(self) -> list[Sharing]:
        """Reads and writes of node 0, of node 1, and so on."""
        return [
            kind[node] for node in range(self.fabric.nodes) for kind in (self.reads, self.writes)
        ]

    def advance(self, now: int) -> None:
        """Let time pass at the present rates."""
        seconds = (now - self.now) * 1e-12
        inside = overlap(self.window, self.now, now) * 1e-12
        for k, sharing in enumerate(self.classes):
            if sharing.flows:
                sharing.served += sharing.rate * seconds
                self.work[k % 2, k // 2] += len(sharing.flows) * sharing.rate * inside
        for transfer in self.transfers:
            transfer.left -= transfer.rate * seconds
            self.work[2, transfer.target] += transfer.rate * inside
            self.work[3, transfer.source] += transfer.rate * inside
        self.now = now

    def set_rates(self) -> None:
        """Work out every rate from what is under way."""
        loads = self.loads()
        inward, outward = self.slowed(loads[0]), self.slowed(loads[1])
        for node in range(self.fabric.nodes):
            self.reads[node].rate = self.slowest(node, inward[node], _others(outward, node))
            self.writes[node].rate = self.slowest(node, outward[node], _others(inward, node))
        for transfer in self.transfers:
            transfer.rate = self.between(transfer.source, transfer.target, *loads)

    def read_rate(self, node: int) -> float:
        """Rate of a read that started now on a node."""
        inward, outward = (self.slowed(load) for load in self.loads(node))
        return self.slowest(node, inward[node], _others(outward, node))

    def transfer_rate(self, source: int, target: int) -> float:
        """Rate of KV that started now from one node to another."""
        inward, outward = self.loads()
        return self.between(source, target, inward, outward, 1.0)

    def between(
        self, source: int, target: int, inward: list[float], outward: list[float], more: float = 0.0
    ) -> float:
        """Rate of KV between two nodes, with ``more`` of it beside the loads given."""
        out_of = (outward[source] + more) * self.slowness[source]
        into = (inward[target] + more) * self.slowness[target]
        return min(self.slowest(node, out_of, into) for node in (source, target))

    def slowed(self, loads: list[float]) -> list[float]:
        """Return loads in transfers at the speed of the first node's links."""
        return [load * slowness for load, slowness in zip(loads, self.slowness, strict=True)]

    def loads(self, reader: int = -1) -> tuple[list[float], list[float]]:
        """Transfers on each node's links, in and out; with one more read of node ``reader``."""
        nodes = range(self.fabric.nodes)
        reads = [float(len(sharing.flows)) + (m == reader) for m, sharing in enumerate(self.reads)]
        writes = [float(len(sharing.flows)) for sharing in self.writes]
        into = Counter(transfer.target for transfer in self.transfers)
        out_of = Counter(transfer.source for transfer in self.transfers)
        others = self.fabric.nodes - 1
        # a read or write uses its own node's link whole, and an equal part of each other node's
        inward = [reads[m] + (sum(writes) - writes[m]) / others + into[m] for m in nodes]
        outward = [writes[m] + (sum(reads) - reads[m]) / others + out_of[m] for m in nodes]
        return inward, outward

    def slowest(self, node: int, one: float, other: float) -> float:
        """Rate of a node's transfer between two links with so many transfers on each."""
        busiest, flow = max(one, other), float(self.flow[node])
        if busiest == 0.0:
            return flow
        return min(flow, self.fabric.node_nic_bytes_per_s / busiest)

    def next_event(self) -> tuple[int, int] | None:
        """Ticks until the next transfer is done, and its number among the links."""
        left = [
            (sharing.ticks_left(), k) for k, sharing in enumerate(self.classes) if sharing.flows
        ]
        first = 2 * self.fabric.nodes + self.fabric.instances
        left += [(transfer.ticks_left(), first + transfer.request) for transfer in self.transfers]
        return min(left, default=None)


def _others(values: list[float], node: int) -> float:
    """Largest value of the other nodes."""
    return max((value for m, value in enumerate(values) if m != node), default=0.0)


def overlap(window: Window, start: int, end: int) -> int:
    """Return the ticks of a stretch of time that lie in the window."""
    return max(0, min(end, window.end) - max(start, window.start))
