"""Tries of the readable simulator: how one comes to nothing, and whether another follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smetric_model.simulate.inputs import HANDOVER, FailedTries

if TYPE_CHECKING:
    from smetric_model.simulate.reference import Cluster

__all__ = ["TryLog", "end_try"]

#: what a try that came to nothing tells of the decode pool
_SENT = ("transfer_done", "decode_start", "decode_instance")


class TryLog:
    """When tries expire, and what is known of those that came to nothing."""

    def __init__(self, requests: int):
        self.arrivals = 0  # of tries, and of what cannot be served
        self.expiring: list[int] = []  # requests, one entry a try
        self.current = [-1] * requests  # place in ``expiring`` of the try under way
        self.failed: list[tuple[int, ...]] = []

    def expires(self, entry: int) -> int:
        """Request whose try expires, −1 if that try has ended."""
        request = self.expiring[entry]
        return request if self.current[request] == entry else -1

    def table(self) -> FailedTries:
        """All tries that came to nothing."""
        rows = np.array(self.failed, dtype=np.int64).reshape(-1, len(FailedTries._fields))
        return FailedTries(*(np.ascontiguousarray(column) for column in rows.T))


def end_try(cluster: Cluster, request: int, cause: int, now: int) -> int:
    """Take a request out of wherever it is; its client tries again, or goes on without it.

    Returns the instance that it leaves, −1 if it never came to its engine.
    """
    out, clients = cluster.out, cluster.inputs.clients
    cluster.released = -1  # from which instance it was fetching
    index = int(out.instance[request])
    first_token = int(out.first_token[request])
    handed_over = cluster.pool.exists and first_token >= 0
    sent = handed_over and out.transfer_done[request] >= 0  # then the router has released it
    reached = out.ready[request] >= 0
    if index >= 0 and not sent and (not cluster.inputs.signals.scraped or reached):
        unprefilled = int(out.charge[request]) if first_token < 0 else 0
        cluster.routers.change_load(request, now, -1, -unprefilled)
    where = index
    in_queue = index >= 0 and request in cluster.instances[index].waiting
    in_engine = out.admitted[request] >= 0 and not in_queue
    reused = int(out.local_tokens[request] + out.fetched_tokens[request])
    computed, generated = 0, cluster.made[request]  # a preempted one waits with what it has made
    until = now
    if in_queue:
        cluster.instances[index].waiting.remove(request)
    elif handed_over:
        where, until, generated = cluster.pool.drop(request, now)
    elif in_engine:
        instance = cluster.instances[index]
        until = instance.step_end if instance.step_start >= 0 else now
        computed, generated = leave_engine(cluster, request, now)
    if first_token >= 0:
        computed = int(cluster.inputs.requests.prompt_tokens[request]) - reused
    elif computed:
        cluster.credit(out.reused_tokens, index, now, reused)
        cluster.credit(out.computed_tokens, index, now, computed)
    else:
        reused = 0
    log = cluster.tries
    log.failed.append(
        (
            request,
            index,
            cause,
            int(out.placed[request]),
            int(out.first_step[request]),
            first_token,
            now,
            until,
            int(out.charge[request]),
            reused,
            computed,
            generated,
            *(int(getattr(out, name)[request]) if handed_over else -1 for name in _SENT),
        )
    )
    if handed_over:
        for name in HANDOVER:
            getattr(out, name)[request] = -1
        cluster.pool.start_transfers(now)
    log.current[request] = -1
    for name in ("placed", "ready", "admitted", "fetch_start", "fetch_done"):
        getattr(out, name)[request] = -1
    out.first_step[request] = out.first_token[request] = -1
    out.local_tokens[request] = out.fetched_tokens[request] = 0
    out.peer[request] = -1
    cluster.made[request] = cluster.private[request] = 0
    cluster.due[request] = -1
    out.failed_tries[request] += 1
    if out.failed_tries[request] <= clients.retries:
        cluster.push_arrival(request, now + clients.backoff_ticks)
    else:
        out.gave_up[request] = now
        cluster.pending -= cluster.in_window(request)
        cluster.future.passed.add(request)
        cluster.session_over(request)
        cluster.next_turn(request, now)
    return where if in_queue or in_engine else -1


def leave_engine(cluster: Cluster, request: int, now: int) -> tuple[int, int]:
    """Free a running request's KV; its whole computed blocks stay cached.

    Returns the prompt tokens computed and the output tokens made for it.  The step under way
    goes on and counts as done, but what it computes is not kept.
    """
    out = cluster.out
    index = int(out.instance[request])
    instance = cluster.instances[index]
    computed = 0
    if request in instance.decoding:
        instance.decoding.remove(request)
        if instance.step_start >= 0:
            cluster.made[request] += 1
            cluster.credit(out.generated_tokens, index, now, 1)
    else:
        instance.prefilling.remove(request)
        whole = cluster.at[request]
        if request in instance.fetching:
            instance.fetching.remove(request)
            cluster.transfers.cancel_fetch(index, request, now)
            cluster.released = cluster.peers.release(request, now)
            whole = 0
        else:
            computed = whole - cluster.found[request]
        path = cluster.path(request)[: whole // cluster.inputs.engine.cache_block_tokens]
        added = instance.cache.insert(path)
        cluster.private[request] -= added * cluster.inputs.engine.cache_block_tokens
        computed += sum(chunk for other, chunk in instance.chunks if other == request)
        instance.chunks = [entry for entry in instance.chunks if entry[0] != request]
        if out.first_token[request] >= 0:  # it had been preempted
            out.repeated_tokens[request] += computed
    instance.cache.release(cluster.path(request), cluster.private[request])
    cluster.note_changes(index, now)
    return computed, cluster.made[request]
