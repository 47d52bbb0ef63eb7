"""Transfers of the readable simulator: fetches, writes and KV between nodes, on the links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.simulate.reference_links import Nics, overlap
from smetric_model.simulate.steps import TICKS_PER_S, prefill_ticks

if TYPE_CHECKING:
    from smetric_model.simulate.reference import Cluster
    from smetric_model.simulate.reference_pools import Transfer

__all__ = ["Transfers"]


class Transfers:
    """What is under way on the nodes' interfaces and the instances' PCIe links."""

    def __init__(self, cluster: Cluster):
        requests = cluster.inputs.requests.turn.size
        self.cluster = cluster
        self.nics = Nics(cluster.inputs)
        self.nic_version = 0
        self.legs = [0] * requests  # of its fetch, or on its way to the decode pool
        self.writes = [-1] * requests  # class of the NICs on which a write of its KV is under way

    def nic_work(self, index: int, tokens: int, busy: bool) -> float:
        """Line capacity that the remote share of a transfer of an instance takes [bytes]."""
        fabric = self.cluster.instances[index].kind.fabric
        size = -(-tokens // self.cluster.inputs.engine.block_tokens)
        return float((fabric.nic_work_busy if busy else fabric.nic_work_idle)[size])

    def start_fetch(self, index: int, request: int, local: int, fetched: int, now: int) -> bool:
        """Start a fetch, unless computing is faster."""
        instance = self.cluster.instances[index]
        kind, fabric = instance.kind, instance.kind.fabric
        work = self.nic_work(index, fetched, instance.computing()) if fabric.nodes > 1 else 0.0
        size = fetched / self.cluster.inputs.engine.block_tokens * fabric.block_bytes
        if fabric.recompute_if_faster:
            share = fabric.pcie_bytes_per_s / (len(instance.pcie.flows) + 1)
            seconds = size / share
            if work > 0.0:
                seconds = max(seconds, work / self.nics.read_rate(self.cluster.node(index)))
            recompute = prefill_ticks(kind.model, fetched, local, kind.engine.token_budget)
            if seconds * TICKS_PER_S + fabric.fixed_fetch_ticks > recompute:
                return False
        if self.cluster.out.first_token[request] < 0:
            self.cluster.out.fetch_start[request] = now
        self.legs[request] = 1
        self.start_pcie(index, size, request, now)
        if work > 0.0:
            self.legs[request] = 2
            self.start_nic(2 * self.cluster.node(index), work, request, now)
        return True

    def start_write(self, index: int, work: float, request: int, now: int) -> None:
        """Start a write; one of the same request that is still under way joins it."""
        if self.writes[request] >= 0:
            self.nics.advance(now)
            work += self.nics.classes[self.writes[request]].cancel(request)
        self.writes[request] = 2 * self.cluster.node(index) + 1
        self.start_nic(self.writes[request], work, request, now)

    def cancel_fetch(self, index: int, request: int, now: int) -> None:
        """Cut off the transfers of a fetch that are still under way."""
        if not self.legs[request]:
            return
        self.legs[request] = 0
        self.end_transfer(request, now)
        self.advance_pcie(index, now)
        self.cluster.instances[index].pcie.cancel(request)
        self.schedule_pcie(index, now)
        if self.cluster.inputs.fabric.nodes > 1:
            self.nics.advance(now)
            self.nics.classes[2 * self.cluster.node(index)].cancel(request)
            self.schedule_nics(now)

    def start_pcie(self, index: int, size: float, request: int, now: int) -> None:
        """Start a transfer over an instance's PCIe link."""
        self.advance_pcie(index, now)
        self.cluster.instances[index].pcie.add(size, request)
        self.schedule_pcie(index, now)

    def start_nic(self, kind: int, work: float, request: int, now: int) -> None:
        """Start a transfer of one kind and node on the NICs."""
        self.nics.advance(now)
        self.nics.classes[kind].add(work, request)
        self.schedule_nics(now)

    def send(self, transfer: Transfer, now: int) -> None:
        """Start to send KV from one node to another."""
        self.nics.advance(now)
        self.nics.transfers.append(transfer)
        self.schedule_nics(now)

    def schedule_nics(self, now: int) -> None:
        """Set the rates, and let the transfer be done that is done next."""
        self.nics.set_rates()
        self.nic_version += 1
        following = self.nics.next_event()
        if following is not None:
            self.cluster.push_link(now + following[0], following[1], self.nic_version)

    def advance_pcie(self, index: int, now: int) -> None:
        """Bring an instance's PCIe link to the present."""
        instance = self.cluster.instances[index]
        if instance.pcie.flows:
            rate = instance.pcie.rate
            instance.pcie.served += rate * ((now - instance.pcie_now) * 1e-12)
            inside = overlap(self.cluster.inputs.window, instance.pcie_now, now) * 1e-12
            self.cluster.out.pcie_bytes[index] += len(instance.pcie.flows) * rate * inside
        instance.pcie_now = now

    def schedule_pcie(self, index: int, now: int) -> None:
        """Set the rate of an instance's PCIe link, and let its first transfer be done."""
        instance = self.cluster.instances[index]
        instance.pcie_version += 1
        if instance.pcie.flows:
            rate = instance.kind.fabric.pcie_bytes_per_s
            instance.pcie.rate = rate / len(instance.pcie.flows)
            tick = now + instance.pcie.ticks_left()
            self.cluster.push_link(
                tick, 2 * self.cluster.inputs.fabric.nodes + index, instance.pcie_version
            )

    def version(self, index: int) -> int:
        """Version of the rates of a link; an event of another one is void."""
        nics = 2 * self.cluster.inputs.fabric.nodes
        if nics <= index < nics + len(self.cluster.instances):
            return self.cluster.instances[index - nics].pcie_version
        return self.nic_version

    def on_event(self, index: int, now: int) -> None:
        """End the transfer of a link that is done first."""
        nics = 2 * self.cluster.inputs.fabric.nodes
        if index < nics:
            self.nics.advance(now)
            request = self.nics.classes[index].pop()
            self.schedule_nics(now)
            if index % 2:
                self.writes[request] = -1
                return  # a write: nobody waits for it
        elif index >= nics + len(self.cluster.instances):
            request = index - nics - len(self.cluster.instances)
            self.end_transfer(request, now)
        else:
            instance = self.cluster.instances[index - nics]
            self.advance_pcie(index - nics, now)
            request = instance.pcie.pop()
            self.schedule_pcie(index - nics, now)
        self.legs[request] -= 1
        if not self.legs[request]:
            # KV on its way to the decode pool has no fixed time: docs/simulate.md
            sent = self.cluster.pool.exists and self.cluster.out.first_token[request] >= 0
            reader = self.cluster.instances[self.cluster.out.instance[request]]
            self.cluster.due[request] = now + (0 if sent else reader.kind.fabric.fixed_fetch_ticks)
            self.cluster.push_fetched(request)

    def end_transfer(self, request: int, now: int) -> None:
        """Take KV off the NICs that was sent from one node to another, or is not wanted now."""
        left = [t for t in self.nics.transfers if t.request != request]
        if len(left) < len(self.nics.transfers):
            self.nics.advance(now)
            self.nics.transfers = left
            self.schedule_nics(now)
