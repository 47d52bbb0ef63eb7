"""Compiled simulator: the rules of ``docs/simulate.md``, decode-only steps in closed form.

A step that only decodes leaves everything as it is but the sequences' lengths, so that steps until
the first of them is complete are one *run*.  Whatever wakes the instance meanwhile cuts the run
after the step in progress.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.routing.compiled import choose
from smetric_model.simulate._admission import is_sent, on_link
from smetric_model.simulate._arrivals import ARRIVAL, catch_up_loads, change_load, next_turn
from smetric_model.simulate._caches import (
    add_held,
    all_hits,
    catch_up_index,
    place_blindly,
    seen_hits,
)
from smetric_model.simulate._eviction import session_arrived, session_over
from smetric_model.simulate._faults import on_fault
from smetric_model.simulate._heaps import KIND, pop_event, push_event, set_timer
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import advance_nics, advance_pcie, overlap
from smetric_model.simulate._peers import release_peer
from smetric_model.simulate._pools import arrive, start_transfers
from smetric_model.simulate._runs import credit, cut_run, steps_by, wait_ticks
from smetric_model.simulate._state import (
    ARRIVED,
    AVAILABLE,
    EVENTS,
    EXPIRY_END,
    EXPIRY_NEXT,
    FAILED,
    FAULT_NEXT,
    FIXED_NEXT,
    FULL,
    HOST,
    INDEX_END,
    LOAD_END,
    NOW,
    PENDING,
    QUEUE,
    RELEASED,
    ROOM_EXPIRY,
    ROOM_FAILED,
    ROOM_INDEX,
    ROOM_LOAD,
    ROOM_STALE,
    STALE,
    STEPS,
    TRIES,
    UNSENT,
    WAITING,
)
from smetric_model.simulate._steps import begin_step, end_step
from smetric_model.simulate._tries import end_try, next_expiry, note_expiry
from smetric_model.simulate.inputs import BLIND, EXACT, TIMED_OUT
from smetric_model.simulate.inputs import FAILED as BROKEN

__all__ = ["loop"]

_READY, _EXPIRY, _FAULT = 4 << KIND, 5 << KIND, 6 << KIND
_NUMBER = (1 << KIND) - 1


@part
def loop(p, first, skip):
    """Run until the window's requests are done; ``first`` are the fixed arrivals in order.

    Also returns where a table may become too small (``s.count[FULL]``): it goes on where it was
    when called again with larger ones.
    """
    s, w = tables(p)
    now = s.count[NOW]
    at = s.count[FIXED_NEXT]
    s.count[FULL] = 0
    active = w.clients.active > 0
    while True:
        # the earliest of timers, requests' events and fixed arrivals
        tick, code, source = -1, 0, -1
        if s.timer_size[0] > 0:
            timer = s.timer_heap[0]
            tick, code, source = s.timer[timer].tick, s.timer[timer].code, 0
        if s.count[QUEUE] > 0:
            other, name = s.event[0].tick, s.event[0].code
            if source < 0 or other < tick or (other == tick and name < code):
                tick, code, source = other, name, 1
        if at < first.size:
            other, name = w.requests[first[at]].arrival_tick, ARRIVAL + first[at]
            if source < 0 or other < tick or (other == tick and name < code):
                tick, code, source = other, name, 2
        if active and s.count[EXPIRY_NEXT] < s.count[EXPIRY_END]:
            entry = next_expiry(p)
            if entry >= 0:
                other, name = s.expiry[entry].tick, _EXPIRY + entry
                if source < 0 or other < tick or (other == tick and name < code):
                    tick, code, source = other, name, 3
        if active and s.count[FAULT_NEXT] < w.faults.size:
            entry = s.count[FAULT_NEXT]
            other, name = w.faults[entry].tick, _FAULT + entry
            if source < 0 or other < tick or (other == tick and name < code):
                tick, code, source = other, name, 4
        if source < 0:
            break
        if tick >= w.window.end and s.count[PENDING] == 0:
            now = max(now, w.window.end)
            break
        if tick > w.window.drain_end:
            now = w.window.drain_end
            break
        now = tick
        s.count[EVENTS] += 1
        kind, index = code >> KIND, code & _NUMBER
        if source == 1:
            pop_event(p)
        elif source == 2:
            at += 1
        wake = also = -1  # instances that run no step and may now
        if kind == 0:
            _stop(p, index)
            end_step(p, index, now)
            if w.fabric.prefill_instances < w.fabric.instances:
                start_transfers(p, now)
            wake = index
        elif kind == 1:
            on_link(p, index, now)
        elif kind == 2 and is_sent(p, index):
            arrive(p, index, now)
            wake = _wake(p, s.out[index].instance, now, False)
            also = _wake(p, s.handover[index].decode_instance, now, True)
        elif kind == 2:
            if s.request[index].due == now and s.request[index].fetching:
                if s.out[index].first_token < 0:
                    s.out[index].fetch_done = now
                s.request[index].fetching = False
                wake = _wake(p, s.out[index].instance, now, True)
                also = _wake_source(p, release_peer(p, index, now), now)
            else:
                s.count[STALE] -= 1  # of a try that has ended
        elif kind == 3:
            _on_arrival(p, index, now)
        elif kind == 5:
            s.count[EXPIRY_NEXT] += 1
            wake = end_try(p, s.expiry[index].request, TIMED_OUT, now)
            if wake >= 0:
                wake = _wake(p, wake, now, True)
            also = _wake_source(p, s.count[RELEASED], now)
        elif kind == 6:
            s.count[FAULT_NEXT] += 1
            on_fault(p, index, now)
        elif s.request[index].due != now or s.request[index].stage != HOST:
            s.count[STALE] -= 1  # of a try that has ended
        else:
            s.request[index].stage = WAITING
            s.out[index].ready = now
            if w.signals.scraped:
                change_load(p, index, now, 1.0, float(s.out[index].charge))
            instance = s.out[index].instance
            alone = s.instance[instance].waiting < 0
            if alone:
                s.instance[instance].waiting = index
            else:
                s.request[s.instance[instance].last_waiting].next_waiting = index
            s.instance[instance].last_waiting = index
            wake = _wake(p, instance, now, alone)
        if wake < 0:
            wake, also = also, -1
        while wake >= 0:
            begin_step(p, wake, now, skip)
            wake, also = also, -1
        if active and _is_full(p):
            s.count[FULL] = 1
            s.count[NOW] = now
            s.count[FIXED_NEXT] = at
            return now
    catch_up_loads(p, now)
    if w.fabric.nodes > 1:
        advance_nics(p, now)
    for instance in range(w.fabric.instances):
        add_held(p, instance, now)
        advance_pcie(p, instance, now)
        if s.instance[instance].step_start >= 0:
            s.instance[instance].busy_ticks += overlap(p, s.instance[instance].step_start, now)
            if s.instance[instance].step_is_run:
                done = steps_by(p, instance, now + 1) - 1
                s.count[STEPS] += done
                start, batch = s.instance[instance].step_start, s.instance[instance].decoding_count
                credit(p, s.generated_tokens, instance, start, batch * done)
    return now


@part
def _is_full(p):
    """Whether what the next event adds to a table may not fit (see ``_state.new_state``)."""
    s, _ = tables(p)
    return (
        s.count[STALE] > s.room[ROOM_STALE]
        or s.count[FAILED] > s.room[ROOM_FAILED]
        or s.count[EXPIRY_END] > s.room[ROOM_EXPIRY]
        or s.count[LOAD_END] > s.room[ROOM_LOAD]
        or s.count[INDEX_END] > s.room[ROOM_INDEX]
    )


@part
def _wake(p, instance, now, cut):
    """Instance if it is idle; else −1, and its run of steps is cut short (where ``cut``)."""
    s, _ = tables(p)
    if s.instance[instance].step_start < 0:
        return instance
    if cut:
        cut_run(p, instance, now)
    return -1


@part
def _wake_source(p, instance, now):
    """Return the instance from which KV has been read (−1: none), if it is idle.

    One that is not looks for room after the step in progress, where a request waits for it.
    """
    s, _ = tables(p)
    if instance < 0:
        return -1
    return _wake(p, instance, now, s.instance[instance].waiting >= 0)


@part
def _stop(p, timer):
    """Remove the first timer of all (cheaper than any)."""
    s, _ = tables(p)
    s.timer[timer].place = -1
    s.timer_size[0] -= 1
    size = s.timer_size[0]
    if size > 0:
        last = s.timer_heap[size]
        s.timer[last].place = 0
        s.timer_heap[0] = last
        set_timer(p, last, s.timer[last].tick, s.timer[last].code)


@part
def _on_arrival(p, request, now):
    s, w = tables(p)
    replica = s.count[TRIES] % w.signals.replicas
    s.count[TRIES] += 1
    if s.out[request].arrival < 0:  # its first try
        s.out[request].arrival = now
        s.order[s.count[ARRIVED]] = request
        s.count[ARRIVED] += 1
        if w.requests[request].unservable:
            session_over(p, request, w.fabric.prefill_instances)
            next_turn(p, request, now)
            return
        session_arrived(p, request)
        if w.window.start <= now < w.window.end:
            s.count[PENDING] += 1
    s.out[request].placed = now
    if w.clients.timeout_ticks >= 0:
        note_expiry(p, request, now)
    s.request[request].stage = UNSENT
    if s.count[AVAILABLE] == 0:
        s.out[request].instance = -1
        s.out[request].reason = -1
        s.out[request].charge = 0
        end_try(p, request, BROKEN, now)
        return
    prompt = w.requests[request].prompt_tokens
    catch_up_loads(p, now - w.signals.load_age_ticks)
    if w.signals.hit_index == EXACT:
        all_hits(p, request, w.fabric.prefill_instances)
    else:
        catch_up_index(p, now - w.signals.index_age_ticks)
        seen_hits(p, request, replica, w.fabric.prefill_instances)
    for instance in range(w.fabric.prefill_instances):
        s.hits[instance] *= w.engine.cache_block_tokens
    known = 0 if w.signals.scraped else replica
    chosen, reason, following, random = choose(
        w.policy,
        prompt,
        w.requests[request].turn,
        w.requests[request].est_hit_tokens,
        w.requests[request].session_key,
        s.hits,
        s.unprefilled[known] if w.signals.token_load else s.loads[known],
        s.unprefilled[known],
        s.available,
        s.keys,
        s.next_instance[replica],
        s.random[replica],
    )
    s.next_instance[replica] = following
    s.random[replica] = random
    s.out[request].instance = chosen
    s.out[request].reason = reason
    charge = prompt - s.hits[chosen]
    s.out[request].charge = charge
    s.request[request].replica = known
    if not w.signals.scraped:
        change_load(p, request, now, 1.0, float(charge))
    if w.signals.hit_index == BLIND:
        place_blindly(p, request, replica, chosen, w.fabric.prefill_instances)
    if w.clients.active and s.instance[chosen].down:
        end_try(p, request, BROKEN, now)
        return
    host_ticks = w.requests[request].host_ticks
    if w.host.size > 0:
        host_ticks = w.host[w.instance[chosen].kind, request]
    due = now + host_ticks + wait_ticks(p, chosen, now)
    s.request[request].due = due
    s.request[request].stage = HOST
    push_event(p, due, _READY + request)
