"""Results of the readable simulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from smetric_model.simulate.inputs import Replay
from smetric_model.simulate.reference_links import overlap

if TYPE_CHECKING:
    from smetric_model.simulate.reference import Cluster

__all__ = ["replay_of"]


def replay_of(cluster: Cluster, now: int) -> Replay:
    """Return what has happened by the end of the run."""
    out, nodes = cluster.out, cluster.inputs.nodes
    if cluster.inputs.fabric.nodes > 1:
        cluster.transfers.nics.advance(now)
    out.nic_work_bytes = cluster.transfers.nics.work
    for index, instance in enumerate(cluster.instances):
        cluster.add_held(index, now)
        cluster.transfers.advance_pcie(index, now)
        if instance.step_start >= 0:
            out.busy_ticks[index] += overlap(cluster.inputs.window, instance.step_start, now)
    out.failed = cluster.tries.table()
    cluster.routers.catch_up(now + max(cluster.inputs.signals.load_age_ticks, 0))
    for router in cluster.routers.each:
        out.loads_end += np.array(router.loads)
        out.unprefilled_end += np.array(router.unprefilled)
    out.order = np.array(cluster.order, dtype=np.int64)
    starts, size = cluster.first_block, nodes.parent.size

    def per_node(blocks: Iterable[int]) -> np.ndarray:
        at = np.searchsorted(starts, np.array(sorted(blocks), dtype=np.int64), "right") - 1
        return np.bincount(at, minlength=size).astype(np.int64)

    prefilling = cluster.instances[: cluster.inputs.fabric.prefill_instances]
    out.held_blocks = np.stack([per_node(i.cache.cached) for i in prefilling], axis=1)
    out.global_held_blocks = per_node(cluster.global_tier.blocks)
    cluster.counts["inserted_blocks"] = sum(i.cache.inserted for i in cluster.instances)
    cluster.counts["evicted_blocks"] = sum(i.cache.evicted for i in cluster.instances)
    cluster.counts["global_written_blocks"] = cluster.global_tier.written
    cluster.counts["global_evicted_blocks"] = cluster.global_tier.evicted
    out.counts = {"steps": 0, **cluster.counts}
    out.end_tick = now
    return out
