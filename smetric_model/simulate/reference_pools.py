"""Disaggregated serving in plain Python: from the prefill pool to the decode pool.

A prompt whose prefill is complete waits, with its KV pinned where it was computed, until an
instance of the decode pool has room for prompt and output; first come, first served by the whole
pool.  Then its KV is sent over, and when it is there the request decodes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smetric_model.simulate.reference import Cluster

__all__ = ["DecodePool", "Transfer"]


@dataclass
class Transfer:
    """KV on its way from a node to another."""

    request: int
    source: int
    target: int
    left: float  # bytes of line capacity
    rate: float = 0.0

    def ticks_left(self) -> int:
        """Ticks until it is done, if the rate stays."""
        return max(0, math.ceil(self.left / self.rate * 1e12))


class DecodePool:
    """The instances that only decode, and the requests that wait for room there."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        fabric = cluster.inputs.fabric
        self.first = fabric.prefill_instances
        self.size = fabric.instances - self.first
        self.exists = self.size > 0
        self.waiting: deque[int] = deque()  # prefilled, in the order in which they were
        self.coming: Counter[int] = Counter()  # requests on their way, by instance
        self.next = 0  # where the search for the most free KV begins

    def holds(self, index: int) -> bool:
        """Whether an instance belongs to this pool."""
        return index >= self.first

    def need(self, request: int, index: int) -> int:
        """Tokens of KV that a request takes on an instance: prompt and output, whole blocks."""
        engine = self.cluster.instances[index].kind.engine
        data = self.cluster.inputs.requests
        total = int(data.prompt_tokens[request] + data.output_tokens[request])
        return -(-total // engine.block_tokens) * engine.block_tokens + engine.fixed_state_tokens

    def choose(self) -> int | None:
        """Instance with the most free KV, of those with a place in the batch."""
        best = None
        for k in range(self.size):
            index = self.first + (self.next + k) % self.size
            instance = self.cluster.instances[index]
            taken = len(instance.decoding) + len(instance.waiting) + self.coming[index]
            if taken < instance.kind.engine.max_running_requests and (
                best is None or instance.cache.free > self.cluster.instances[best].cache.free
            ):
                best = index
        return best

    def start_transfers(self, now: int) -> None:
        """Reserve KV for the requests that wait, in their order, as far as there is room."""
        while self.waiting:
            request = self.waiting[0]
            chosen = self.choose()
            if chosen is None:
                return
            cache = self.cluster.instances[chosen].cache
            need = self.need(request, chosen)
            if need > cache.free:
                return
            self.waiting.popleft()
            self.next = (chosen - self.first + 1) % self.size
            cache.free -= need
            self.coming[chosen] += 1
            self.cluster.account(chosen, now)
            self.start(request, chosen, now)

    def start(self, request: int, chosen: int, now: int) -> None:
        """Send a request's KV: over PCIe into the instance, between nodes over their NICs."""
        cluster, out = self.cluster, self.cluster.out
        kind = cluster.instances[chosen].kind
        fabric, engine = kind.fabric, kind.engine
        prefilled = int(out.instance[request])
        out.transfer_start[request] = now
        out.decode_instance[request] = chosen
        tokens = int(cluster.inputs.requests.prompt_tokens[request]) + engine.fixed_state_tokens
        blocks = -(-tokens // engine.block_tokens)
        cluster.transfers.legs[request] = 1
        cluster.transfers.start_pcie(chosen, blocks * fabric.block_bytes, request, now)
        source, target = cluster.node(prefilled), cluster.node(chosen)
        if source != target:
            cluster.transfers.legs[request] = 2
            computing = (cluster.instances[k].computing() for k in (prefilled, chosen))
            table = fabric.transfer_work_busy if any(computing) else fabric.transfer_work_idle
            cluster.transfers.send(Transfer(request, source, target, float(table[blocks])), now)

    def arrive(self, request: int, now: int) -> None:
        """Take in a request whose KV is complete; its prefill instance keeps the prefix only."""
        cluster, out = self.cluster, self.cluster.out
        prefilled, chosen = int(out.instance[request]), int(out.decode_instance[request])
        out.transfer_done[request] = now
        self.coming[chosen] -= 1
        cluster.instances[chosen].waiting.append(request)
        cluster.leave(prefilled, request, now)
        cluster.account(prefilled, now)
        for index in (prefilled, chosen):
            if cluster.instances[index].step_start < 0:
                cluster.begin_step(index, now)

    def join(self, index: int, now: int) -> None:
        """Let the requests that have arrived at an instance take part in its next step."""
        if not self.holds(index):
            return
        instance = self.cluster.instances[index]
        for request in instance.waiting:
            self.cluster.out.decode_start[request] = now
            instance.decoding.append(request)
        instance.waiting.clear()

    def drop(self, request: int, now: int) -> tuple[int, int, int]:
        """Take out a prefilled request whose client has given up.

        Returns the instance that it leaves, the end of the step under way for it, and the output
        tokens made.
        """
        cluster, out = self.cluster, self.cluster.out
        prefilled, chosen = int(out.instance[request]), int(out.decode_instance[request])
        sent = out.transfer_done[request] >= 0
        made, until = 1, now
        if chosen < 0:
            self.waiting.remove(request)
        else:
            instance = cluster.instances[chosen]
            if request in instance.decoding:
                instance.decoding.remove(request)
                made = cluster.made[request]
                if instance.step_start >= 0:
                    made, until = made + 1, instance.step_end
                    cluster.credit(out.generated_tokens, chosen, now, 1)
            elif sent:
                instance.waiting.remove(request)
            else:
                self.coming[chosen] -= 1
                self.stop_sending(request, prefilled, chosen, now)
            self.release(chosen, request)
            cluster.account(chosen, now)
        if not sent:
            cache = cluster.instances[prefilled].cache
            cache.release(cluster.path(request), cluster.private[request])
            cluster.account(prefilled, now)
        return (chosen if sent else prefilled), until, made

    def stop_sending(self, request: int, prefilled: int, chosen: int, now: int) -> None:
        """Cut off the transfer of a request's KV."""
        cluster = self.cluster
        cluster.transfers.legs[request] = 0
        cluster.transfers.advance_pcie(chosen, now)
        cluster.instances[chosen].pcie.cancel(request)
        cluster.transfers.schedule_pcie(chosen, now)
        if cluster.node(prefilled) != cluster.node(chosen):
            cluster.transfers.end_transfer(request, now)

    def release(self, index: int, request: int) -> None:
        """Free the KV of a complete request."""
        self.cluster.instances[index].cache.free += self.need(request, index)
