"""Routers of the readable simulator: what each sees, and where it places a request."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.routing.policy import Loads, RoutingRequest, TieState
from smetric_model.simulate.inputs import BLIND, DELAYED
from smetric_model.simulate.reference_caches import leading

if TYPE_CHECKING:
    from smetric_model.simulate.reference import Cluster

__all__ = ["Routers"]


class _Router:
    """What one router replica sees: loads, and (where the index is not exact) cached blocks."""

    def __init__(self, instances: int, seed: int):
        self.loads = [0] * instances
        self.unprefilled = [0] * instances
        self.blocks: list[set[int]] = [set() for _ in range(instances)]
        self.ties = TieState(random_state=seed)


class Routers:
    """All router replicas, and the changes that they have not seen yet."""

    def __init__(self, cluster: Cluster):
        inputs = cluster.inputs
        instances = inputs.fabric.prefill_instances
        self.cluster = cluster
        self.each = [_Router(instances, inputs.seed + k) for k in range(inputs.signals.replicas)]
        self.available = np.ones(instances, np.bool_)  # as the routers see it
        self.keys = np.arange(instances, dtype=np.uint64)
        self.replica = [0] * inputs.requests.turn.size  # that counts each request
        self.load_log: deque[tuple[int, int, int, int, int]] = deque()
        self.index_log: deque[tuple[int, int, int, bool]] = deque()

    def place(self, request: int, replica: int, now: int) -> None:
        """Choose an instance for a request."""
        data, out = self.cluster.inputs.requests, self.cluster.out
        signals, router = self.cluster.inputs.signals, self.each[replica]
        prompt = int(data.prompt_tokens[request])
        path = self.cluster.path(request)
        block = self.cluster.inputs.engine.cache_block_tokens
        self.catch_up(now)
        seen = [
            i.cache.cached
            for i in self.cluster.instances[: self.cluster.inputs.fabric.prefill_instances]
        ]
        if signals.hit_index == DELAYED:
            seen = self.each[0].blocks
        elif signals.hit_index == BLIND:
            seen = router.blocks
        hits = np.array([leading(path, blocks) * block for blocks in seen], dtype=np.int64)
        counters = self.each[0] if signals.scraped else router
        loads = Loads.requests(counters.loads, unprefilled_tokens=counters.unprefilled)
        if signals.token_load:
            loads = Loads.tokens(counters.unprefilled)
        decision = self.cluster.inputs.policy.choose(
            RoutingRequest(
                prompt,
                int(data.turn[request]),
                int(data.est_hit_tokens[request]),
                int(data.session_key[request]),
            ),
            hits,
            loads,
            router.ties,
            available=self.available,
            instance_keys=self.keys,
        )
        router.ties = decision.ties
        out.instance[request] = decision.instance
        out.reason[request] = int(decision.reason)
        out.charge[request] = prompt - hits[decision.instance]
        self.replica[request] = 0 if signals.scraped else replica
        if not signals.scraped:
            self.change_load(request, now, 1, int(out.charge[request]))
        if signals.hit_index == BLIND:
            router.blocks[decision.instance].update(path)

    def change_load(self, request: int, now: int, requests: int, tokens: int) -> None:
        """Note that what counts of a request has changed; the routers see it later."""
        instance = int(self.cluster.out.instance[request])
        self.load_log.append((now, self.replica[request], instance, requests, tokens))

    def catch_up(self, now: int) -> None:
        """Let the routers see what was ``load_age_ticks`` and ``index_age_ticks`` ago."""
        signals = self.cluster.inputs.signals
        while self.load_log and self.load_log[0][0] <= now - signals.load_age_ticks:
            _, replica, instance, requests, tokens = self.load_log.popleft()
            self.each[replica].loads[instance] += requests
            self.each[replica].unprefilled[instance] += tokens
        while self.index_log and self.index_log[0][0] <= now - signals.index_age_ticks:
            _, instance, block, present = self.index_log.popleft()
            if signals.hit_index == DELAYED:
                known = self.each[0].blocks[instance]
                (known.add if present else known.discard)(block)
