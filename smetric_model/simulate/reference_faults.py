"""Failures in plain Python: an instance loses its requests and its cache, a node its share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smetric_model.simulate.faults import DOWN, HIDDEN, NODE_BACK, NODE_LOST, SEEN, UP, lies_on
from smetric_model.simulate.inputs import BLIND, FAILED
from smetric_model.simulate.reference_tries import end_try

if TYPE_CHECKING:
    from smetric_model.simulate.reference import Cluster

__all__ = ["on_fault"]


def on_fault(cluster: Cluster, entry: int, now: int) -> None:
    """Let happen what fails, or is back."""
    faults, fabric = cluster.inputs.faults, cluster.inputs.fabric
    what, where = int(faults.what[entry]), int(faults.where[entry])
    if what == DOWN:
        fail(cluster, where, now)
    elif what == UP:
        cluster.instances[where].down = False
    elif what == HIDDEN:
        cluster.routers.available[where] = False
        if cluster.inputs.signals.hit_index == BLIND:
            for router in cluster.routers.each:
                router.blocks[where] = set()
    elif what == SEEN:
        cluster.routers.available[where] = True
    else:
        cluster.nodes_up += 1 if what == NODE_BACK else -1
        cluster.global_tier.capacity = fabric.global_blocks * cluster.nodes_up // fabric.nodes
        if what == NODE_LOST:
            lose_share(cluster, where)


def fail(cluster: Cluster, index: int, now: int) -> None:
    """Fail all requests of an instance, in the order of their numbers, and empty its cache."""
    instance, out = cluster.instances[index], cluster.out
    if instance.step_start >= 0:
        cluster.stop_step(index, now)
    instance.down = True
    for request in range(out.arrival.size):
        here = out.instance[request] == index and out.placed[request] >= 0
        if here and out.done[request] < 0:
            end_try(cluster, request, FAILED, now)
    instance.cache.drop()
    cluster.note_changes(index, now)


def lose_share(cluster: Cluster, failed: int) -> None:
    """Take a node's blocks out of the global tier, and what lies behind them in their paths."""
    nodes, stored = cluster.inputs.nodes, cluster.global_tier.blocks
    spread = cluster.inputs.fabric.nodes
    intact: list[bool] = []
    for node in range(nodes.parent.size):
        above = int(nodes.parent[node])
        whole = above < 0 or intact[above]
        first, after = int(cluster.first_block[node]), int(cluster.first_block[node + 1])
        for block in range(first, after):
            whole = whole and block in stored and lies_on(block, spread) != failed
            if not whole:
                stored.remove(block)
        intact.append(whole)
