"""Compiled disaggregated serving: from the prefill pool to the decode pool.

The rules are those of :mod:`smetric_model.simulate.reference_pools`.  Requests that wait for room
in the decode pool, and those that have arrived at an instance and join its next step, are lists
through ``next_waiting``.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._arrivals import change_load
from smetric_model.simulate._caches import account, release_path
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import (
    advance_pcie,
    cancel_flow,
    end_transfer,
    schedule_pcie,
    start_pcie,
    start_transfer,
)
from smetric_model.simulate._state import POOL_FIRST, POOL_LAST, POOL_NEXT
from smetric_model.simulate._world import BUSY, IDLE

__all__ = [
    "arrive",
    "computing",
    "join_batch",
    "leave_line",
    "release_decoded",
    "start_transfers",
    "stop_sending",
    "wait_for_room",
]


@part
def computing(p, instance):
    """Whether an instance has a request to compute for."""
    s, _ = tables(p)
    if s.instance[instance].decoding_count > 0:
        return True
    for place in range(s.instance[instance].prefilling_count):
        if not s.request[s.prefilling[instance, place]].fetching:
            return True
    return False


@part
def _need(p, request, instance):
    """Tokens of KV that a request takes on an instance of the decode pool."""
    _, w = tables(p)
    total = w.requests[request].prompt_tokens + w.requests[request].output_tokens
    blocks = (total + w.engine.block_tokens - 1) // w.engine.block_tokens
    return blocks * w.engine.block_tokens + w.instance[instance].fixed_state_tokens


@part
def wait_for_room(p, request):
    """Add a prefilled request to those that wait for the decode pool."""
    s, _ = tables(p)
    s.request[request].next_waiting = -1
    if s.count[POOL_FIRST] < 0:
        s.count[POOL_FIRST] = request
    else:
        s.request[s.count[POOL_LAST]].next_waiting = request
    s.count[POOL_LAST] = request


@part
def _most_free(p):
    """Instance with the most free KV, of those with a place in the batch; −1 for none."""
    s, w = tables(p)
    first = w.fabric.prefill_instances
    size = w.fabric.instances - first
    best = -1
    for k in range(size):
        instance = first + (s.count[POOL_NEXT] + k) % size
        taken = s.instance[instance].decoding_count + s.instance[instance].coming
        if taken < w.instance[instance].max_running_requests and (
            best < 0 or s.instance[instance].free > s.instance[best].free
        ):
            best = instance
    return best


@part
def start_transfers(p, now):
    """Reserve KV for the requests that wait, in their order, as far as there is room."""
    s, w = tables(p)
    while s.count[POOL_FIRST] >= 0:
        request = s.count[POOL_FIRST]
        chosen = _most_free(p)
        if chosen < 0:
            return
        need = _need(p, request, chosen)
        if need > s.instance[chosen].free:
            return
        s.count[POOL_FIRST] = s.request[request].next_waiting
        s.request[request].next_waiting = -1
        first = w.fabric.prefill_instances
        s.count[POOL_NEXT] = (chosen - first + 1) % (w.fabric.instances - first)
        s.instance[chosen].free -= need
        s.instance[chosen].coming += 1
        account(p, chosen, now)
        _start(p, request, chosen, now)


@part
def _start(p, request, chosen, now):
    s, w = tables(p)
    s.handover[request].transfer_start = now
    s.handover[request].decode_instance = chosen
    tokens = w.requests[request].prompt_tokens + w.instance[chosen].fixed_state_tokens
    blocks = (tokens + w.engine.block_tokens - 1) // w.engine.block_tokens
    s.request[request].legs = 1
    start_pcie(p, chosen, blocks * w.instance[chosen].block_bytes, request, now)
    prefilled = s.out[request].instance
    source, target = w.instance[prefilled].node, w.instance[chosen].node
    if source != target:
        s.request[request].legs = 2
        busy = computing(p, prefilled) or computing(p, chosen)
        work = w.transfer_work[w.instance[chosen].kind, BUSY if busy else IDLE, blocks]
        start_transfer(p, request, source, target, work, now)


@part
def arrive(p, request, now):
    """Take in a request whose KV is complete; its prefill instance keeps the prefix only."""
    s, w = tables(p)
    s.handover[request].transfer_done = now
    chosen = s.handover[request].decode_instance
    s.request[request].next_waiting = -1
    if s.instance[chosen].waiting < 0:
        s.instance[chosen].waiting = request
    else:
        s.request[s.instance[chosen].last_waiting].next_waiting = request
    s.instance[chosen].last_waiting = request
    prefilled = s.out[request].instance
    release_path(p, request, prefilled, w.fabric.prefill_instances, w.engine.cache_block_tokens)
    change_load(p, request, now, -1.0, 0.0)
    account(p, prefilled, now)


@part
def leave_line(p, request):
    """Take a request out of those that wait for room."""
    s, _ = tables(p)
    before, here = -1, s.count[POOL_FIRST]
    while here != request:
        before, here = here, s.request[here].next_waiting
    after = s.request[request].next_waiting
    if before < 0:
        s.count[POOL_FIRST] = after
    else:
        s.request[before].next_waiting = after
    if s.count[POOL_LAST] == request:
        s.count[POOL_LAST] = before
    s.request[request].next_waiting = -1


@part
def stop_sending(p, request, now):
    """Cut off the transfer of a request's KV."""
    s, w = tables(p)
    chosen = s.handover[request].decode_instance
    s.request[request].legs = 0
    advance_pcie(p, chosen, now)
    cancel_flow(p, 2 * w.fabric.nodes + chosen, request)
    schedule_pcie(p, chosen, now)
    if w.instance[s.out[request].instance].node != w.instance[chosen].node:
        end_transfer(p, request, now)


@part
def join_batch(p, instance, now):
    """Let the requests that have arrived at an instance take part in the step that begins."""
    s, w = tables(p)
    request = s.instance[instance].waiting
    while request >= 0:
        s.handover[request].decode_start = now
        s.decoding[instance, s.instance[instance].decoding_count] = request
        s.instance[instance].decoding_count += 1
        s.instance[instance].coming -= 1
        s.request[request].finish_at = (
            s.instance[instance].decode_steps + w.requests[request].output_tokens - 1
        )
        s.instance[instance].context += w.requests[request].prompt_tokens + 1
        following = s.request[request].next_waiting
        s.request[request].next_waiting = -1
        request = following
    s.instance[instance].waiting = -1


@part
def release_decoded(p, request, instance):
    """Free the KV of a complete request of the decode pool."""
    s, _ = tables(p)
    s.instance[instance].free += _need(p, request, instance)
