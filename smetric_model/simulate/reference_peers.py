"""Fetches of the readable simulator from the GPU memory of other instances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smetric_model.simulate.reference_pools import Transfer
from smetric_model.simulate.steps import TICKS_PER_S, prefill_ticks

if TYPE_CHECKING:
    from smetric_model.simulate.reference import Cluster

__all__ = ["Peers"]


class Peers:
    """What is read from other instances; there it is pinned meanwhile."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.pinned: dict[int, tuple[int, list[int]]] = {}  # by request: source, blocks

    def best(self, index: int, request: int) -> tuple[int, int]:
        """Other instance with the longest hit (blocks); of equals the same node's, the next."""
        cluster, path = self.cluster, self.cluster.path(request)
        count = cluster.inputs.fabric.prefill_instances
        others = [other for other in range(count) if other != index]
        if not others:
            return -1, 0
        hits = {other: cluster.instances[other].cache.hit(path) for other in others}
        node = cluster.node(index)
        source = min(others, key=lambda o: (-hits[o], cluster.node(o) != node, (o - index) % count))
        return source, hits[source]

    def start_fetch(self, index: int, request: int, known: int, local: int, now: int) -> int:
        """Fetch from another instance what goes beyond ``known`` blocks; returns tokens, or 0."""
        cluster = self.cluster
        if not cluster.inputs.tiers.peer_fetch:
            return 0
        source, hit = self.best(index, request)
        if hit <= known:
            return 0
        prompt = int(cluster.inputs.requests.prompt_tokens[request]) + cluster.made[request]
        fetched = cluster.usable(hit, prompt) - local
        if fetched <= 0 or not self.start(index, source, request, local, fetched, now):
            return 0
        blocks = self.whole_nodes(request, hit)
        self.pinned[request] = source, blocks
        cluster.instances[source].cache.pin(blocks)
        cluster.account(source, now)
        return fetched

    def whole_nodes(self, request: int, hit: int) -> list[int]:
        """Blocks of the path down to the end of the radix node in which the hit ends."""
        nodes = self.cluster.inputs.nodes
        ends = (int(nodes.end[node]) for node in nodes.path(request))
        return self.cluster.path(request)[: next(end for end in ends if end >= hit)]

    def start(
        self, index: int, source: int, request: int, local: int, fetched: int, now: int
    ) -> bool:
        """Start a fetch, unless computing is faster."""
        cluster, instance = self.cluster, self.cluster.instances[index]
        kind = instance.kind
        fabric, engine, nvlink = kind.fabric, kind.engine, kind.peer_bytes_per_s
        size = fetched / engine.block_tokens * fabric.block_bytes
        here, there = cluster.node(index), cluster.node(source)
        direct = here == there and nvlink > 0.0
        work = 0.0
        if direct:
            seconds = size / nvlink
        else:
            seconds = size / (fabric.pcie_bytes_per_s / (len(instance.pcie.flows) + 1))
            if here != there:
                blocks = -(-fetched // engine.block_tokens)
                busy = instance.computing()
                table = fabric.transfer_work_busy if busy else fabric.transfer_work_idle
                work = float(table[blocks])
                seconds = max(seconds, work / cluster.transfers.nics.transfer_rate(there, here))
        if fabric.recompute_if_faster:
            recompute = prefill_ticks(kind.model, fetched, local, engine.token_budget)
            if seconds * TICKS_PER_S + fabric.fixed_fetch_ticks > recompute:
                return False
        if cluster.out.first_token[request] < 0:
            cluster.out.fetch_start[request] = now
        if direct:
            cluster.transfers.legs[request] = 0
            cluster.due[request] = now + math.ceil(seconds * TICKS_PER_S) + fabric.fixed_fetch_ticks
            cluster.push_fetched(request)
            return True
        cluster.transfers.legs[request] = 1
        cluster.transfers.start_pcie(index, size, request, now)
        if here != there:
            cluster.transfers.legs[request] = 2
            cluster.transfers.send(Transfer(request, there, here, work), now)
        return True

    def source(self, request: int) -> int:
        """Return the instance that a request is fetching from, −1 for none."""
        return self.pinned[request][0] if request in self.pinned else -1

    def release(self, request: int, now: int) -> int:
        """Let go of what a fetch has read, or will not read; returns the source, −1 if none."""
        source = self.source(request)
        if source >= 0:
            _, blocks = self.pinned.pop(request)
            self.cluster.instances[source].cache.release(blocks, 0)
            self.cluster.account(source, now)
        return source

    def wake(self, source: int, now: int) -> None:
        """Let a source that is idle look for room again."""
        if source >= 0 and self.cluster.instances[source].step_start < 0:
            self.cluster.begin_step(source, now)
