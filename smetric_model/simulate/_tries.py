"""Compiled tries: how one comes to nothing, and whether another follows."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._arrivals import ARRIVAL, change_load, next_turn
from smetric_model.simulate._caches import account, insert_path, release_path
from smetric_model.simulate._eviction import session_over, use_is_over
from smetric_model.simulate._heaps import push_event
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import (
    advance_nics,
    advance_pcie,
    cancel_flow,
    end_transfer,
    schedule_nics,
    schedule_pcie,
)
from smetric_model.simulate._peers import release_peer
from smetric_model.simulate._pools import (
    leave_line,
    release_decoded,
    start_transfers,
    stop_sending,
)
from smetric_model.simulate._preemption import take_out
from smetric_model.simulate._runs import credit, settle_run
from smetric_model.simulate._state import (
    DECODE,
    EXPIRY_END,
    EXPIRY_NEXT,
    FAILED,
    HOST,
    NOWHERE,
    PENDING,
    PREFILL,
    RELEASED,
    STALE,
    UNSENT,
    WAITING,
)

__all__ = ["end_try", "next_expiry", "note_expiry"]


@part
def note_expiry(p, request, now):
    """Note when a try that begins now expires."""
    s, w = tables(p)
    entry = s.count[EXPIRY_END]
    s.count[EXPIRY_END] += 1
    s.expiry[entry].tick = now + w.clients.timeout_ticks
    s.expiry[entry].request = request
    s.request[request].expiry = entry


@part
def next_expiry(p):
    """Entry of the try that expires next, −1 if none is under way."""
    s, _ = tables(p)
    entry = s.count[EXPIRY_NEXT]
    while entry < s.count[EXPIRY_END]:
        request = s.expiry[entry].request
        if s.request[request].expiry == entry and s.out[request].done < 0:
            break
        entry += 1
    s.count[EXPIRY_NEXT] = entry
    return entry if entry < s.count[EXPIRY_END] else -1


@part
def end_try(p, request, cause, now):
    """Take a request out of wherever it is; its client tries again, or goes on without it.

    Returns the instance that it leaves, −1 if it never came to its engine.
    """
    s, w = tables(p)
    instance = s.out[request].instance
    stage = s.request[request].stage
    s.count[RELEASED] = -1
    handed_over = stage == DECODE and w.fabric.prefill_instances < w.fabric.instances
    sent = handed_over and s.handover[request].transfer_done >= 0
    reached = stage != HOST and stage != UNSENT
    if instance >= 0 and not sent and (not w.signals.scraped or reached):
        unprefilled = 0.0 if s.out[request].first_token >= 0 else float(s.out[request].charge)
        change_load(p, request, now, -1.0, -unprefilled)
    reused = s.out[request].local_tokens + s.out[request].fetched_tokens
    computed = 0
    until = now
    if sent:
        instance = s.handover[request].decode_instance
    if stage == HOST:
        s.count[STALE] += 1  # its event is still to come
    elif stage == UNSENT:
        pass
    elif stage == WAITING:
        _leave_queue(p, instance, request)
    elif handed_over and s.handover[request].decode_start < 0:
        _leave_between(p, request, now)
    else:
        settle_run(p, instance, now)
        if s.instance[instance].step_start >= 0:
            until = s.timer[instance].tick
        computed = _leave_engine(p, instance, request, now)
    if s.out[request].first_token >= 0:
        computed = w.requests[request].prompt_tokens - reused
    elif computed > 0:
        credit(p, s.reused_tokens, instance, now, reused)
        credit(p, s.computed_tokens, instance, now, computed)
    else:
        reused = 0
    entry = s.count[FAILED]
    s.count[FAILED] += 1
    s.failed[entry].request = request
    s.failed[entry].instance = s.out[request].instance
    s.failed[entry].cause = cause
    s.failed[entry].placed = s.out[request].placed
    s.failed[entry].first_step = s.out[request].first_step
    s.failed[entry].first_token = s.out[request].first_token
    s.failed[entry].end = now
    s.failed[entry].until = until
    s.failed[entry].charge = s.out[request].charge
    s.failed[entry].reused_tokens = reused
    s.failed[entry].computed_tokens = computed
    s.failed[entry].generated_tokens = s.request[request].made
    s.failed[entry].transfer_done = -1
    s.failed[entry].decode_start = -1
    s.failed[entry].decode_instance = -1
    if handed_over:
        s.failed[entry].transfer_done = s.handover[request].transfer_done
        s.failed[entry].decode_start = s.handover[request].decode_start
        s.failed[entry].decode_instance = s.handover[request].decode_instance
        s.handover[request].transfer_start = -1
        s.handover[request].transfer_done = -1
        s.handover[request].decode_start = -1
        s.handover[request].decode_instance = -1
        start_transfers(p, now)
    s.out[request].placed = -1
    s.out[request].ready = -1
    s.out[request].admitted = -1
    s.out[request].fetch_start = -1
    s.out[request].fetch_done = -1
    s.out[request].first_step = -1
    s.out[request].first_token = -1
    if w.tiers.peer_fetch:
        s.reading[request].peer = -1
    s.out[request].local_tokens = 0
    s.out[request].fetched_tokens = 0
    s.out[request].failed_tries += 1
    s.request[request].made = 0
    s.request[request].private = 0
    s.request[request].stage = NOWHERE
    s.request[request].expiry = -1
    if s.out[request].failed_tries <= w.clients.retries:
        push_event(p, now + w.clients.backoff_ticks, ARRIVAL + request)
    else:
        s.out[request].gave_up = now
        if w.window.start <= s.out[request].arrival < w.window.end:
            s.count[PENDING] -= 1
        use_is_over(p, request, w.fabric.prefill_instances)
        session_over(p, request, w.fabric.prefill_instances)
        next_turn(p, request, now)
    return instance if reached else -1


@part
def _leave_queue(p, instance, request):
    s, _ = tables(p)
    before, here = -1, s.instance[instance].waiting
    while here != request:
        before, here = here, s.request[here].next_waiting
    after = s.request[request].next_waiting
    if before < 0:
        s.instance[instance].waiting = after
    else:
        s.request[before].next_waiting = after
    if s.instance[instance].last_waiting == request:
        s.instance[instance].last_waiting = before
    s.request[request].next_waiting = -1


@part
def _leave_between(p, request, now):
    """Take out a prefilled request that does not decode yet: it waits, is sent or has arrived."""
    s, w = tables(p)
    prefilled, chosen = s.out[request].instance, s.handover[request].decode_instance
    sent = s.handover[request].transfer_done >= 0
    s.request[request].made = 1
    if chosen < 0:
        leave_line(p, request)
    else:
        if sent:
            _leave_queue(p, chosen, request)
        else:
            stop_sending(p, request, now)
        s.instance[chosen].coming -= 1
        release_decoded(p, request, chosen)
        account(p, chosen, now)
    if not sent:
        instances = w.fabric.prefill_instances
        release_path(p, request, prefilled, instances, w.engine.cache_block_tokens)
        account(p, prefilled, now)


@part
def _leave_engine(p, instance, request, now):
    """Free a running request's KV; its whole computed blocks stay cached.

    Returns the prompt tokens computed for it.  The step under way goes on and counts as done, but
    what it computes is not kept.
    """
    s, w = tables(p)
    instances, block = w.fabric.prefill_instances, w.engine.cache_block_tokens
    computed = 0
    if s.request[request].stage == PREFILL:
        take_out(s.prefilling[instance], s.instance[instance].prefilling_count, request)
        s.instance[instance].prefilling_count -= 1
        whole = s.request[request].at
        if s.request[request].fetching:
            s.request[request].fetching = False
            _cancel_fetch(p, instance, request, now)
            s.count[RELEASED] = release_peer(p, request, now)
            whole = 0
        else:
            computed = whole - s.request[request].found
        reach = min(whole // block, w.requests[request].blocks)
        added = insert_path(p, request, instance, instances, reach, now)
        s.request[request].private -= added * block
        if s.instance[instance].step_start >= 0:
            computed += s.request[request].chunk
        s.request[request].chunk = 0
        if s.out[request].first_token >= 0:
            s.out[request].repeated_tokens += computed
    else:
        take_out(s.decoding[instance], s.instance[instance].decoding_count, request)
        s.instance[instance].decoding_count -= 1
        left = s.request[request].finish_at - s.instance[instance].decode_steps
        made = w.requests[request].output_tokens - left
        s.instance[instance].context -= w.requests[request].prompt_tokens + made
        if s.instance[instance].step_start >= 0:
            made += 1
            credit(p, s.generated_tokens, instance, now, 1)
        s.request[request].made = made
    if instance >= instances:
        release_decoded(p, request, instance)
    else:
        release_path(p, request, instance, instances, block)
    account(p, instance, now)
    return computed


@part
def _cancel_fetch(p, instance, request, now):
    """Cut off the transfers of a fetch that are still under way."""
    s, w = tables(p)
    if s.request[request].legs == 0:
        s.count[STALE] += 1  # they are done: its event is still to come
        return
    s.request[request].legs = 0
    end_transfer(p, request, now)
    advance_pcie(p, instance, now)
    cancel_flow(p, 2 * w.fabric.nodes + instance, request)
    schedule_pcie(p, instance, now)
    if w.fabric.nodes > 1:
        advance_nics(p, now)
        cancel_flow(p, 2 * w.instance[instance].node, request)
        schedule_nics(p, now)
