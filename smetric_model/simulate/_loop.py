"""Compiled simulator: the rules of ``docs/simulate.md``, decode-only steps in closed form.

A step that only decodes leaves everything as it is but the sequences' lengths, so that steps until
the first of them is complete are one *run*.  Whatever wakes the instance meanwhile cuts the run
after the step in progress.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.routing.compiled import choose
from smetric_model.simulate._arrivals import ARRIVAL, catch_up_loads, change_load, next_turn
from smetric_model.simulate._caches import (
    account,
    add_held,
    admit_path,
    all_hits,
    catch_up_index,
    insert_path,
    place_blindly,
    release_path,
    seen_hits,
)
from smetric_model.simulate._eviction import session_arrived, session_over, use_is_over
from smetric_model.simulate._faults import on_fault
from smetric_model.simulate._heaps import KIND, pop_event, push_event, set_timer
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import (
    advance_nics,
    advance_pcie,
    end_transfer,
    nic_rate,
    overlap,
    pop_flow,
    schedule_nics,
    schedule_pcie,
    start_nic,
    start_pcie,
)
from smetric_model.simulate._peers import release_peer, start_peer_fetch
from smetric_model.simulate._pieces import (
    pieces_hit,
    pieces_touch,
    pieces_write_path,
)
from smetric_model.simulate._pools import (
    arrive,
    computing,
    join_batch,
    release_decoded,
    start_transfers,
    wait_for_room,
)
from smetric_model.simulate._preemption import make_room, set_growth, steps_to_growth
from smetric_model.simulate._runs import (
    credit,
    cut_run,
    next_edge,
    steps_by,
    ticks_of,
    wait_ticks,
)
from smetric_model.simulate._state import (
    ADMITTED,
    ARRIVED,
    AVAILABLE,
    DECODE,
    EVENTS,
    EXPIRY_END,
    EXPIRY_NEXT,
    FAILED,
    FAULT_NEXT,
    FIXED_NEXT,
    FULL,
    GLOBAL_CAPACITY,
    HOST,
    INDEX_END,
    LOAD_END,
    NOW,
    PENDING,
    PREFILL,
    QUEUE,
    RELEASED,
    ROOM_EXPIRY,
    ROOM_FAILED,
    ROOM_INDEX,
    ROOM_LOAD,
    ROOM_STALE,
    RUNS,
    STALE,
    STEPS,
    TRIES,
    UNSENT,
    WAITING,
)
from smetric_model.simulate._store import global_hit, global_touch, global_write
from smetric_model.simulate._tries import end_try, next_expiry, note_expiry
from smetric_model.simulate._writes import nic_work, start_write, write_back
from smetric_model.simulate.inputs import BLIND, EXACT, TIMED_OUT
from smetric_model.simulate.inputs import FAILED as BROKEN
from smetric_model.simulate.steps import prefill_ticks, step_ticks

__all__ = ["loop"]

_FETCHED, _READY, _EXPIRY, _FAULT = 2 << KIND, 4 << KIND, 5 << KIND, 6 << KIND
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
            _on_link(p, index, now)
        elif kind == 2 and _is_sent(p, index):
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
def _is_sent(p, request):
    """Whether KV that is coming goes to the decode pool."""
    s, w = tables(p)
    pools = w.fabric.prefill_instances < w.fabric.instances
    return pools and s.out[request].first_token >= 0


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


# --- steps --------------------------------------------------------------------------------------


@part
def begin_step(p, instance, now, skip):
    """Schedule a step on an instance that runs none."""
    s, w = tables(p)
    if instance >= w.fabric.prefill_instances:
        join_batch(p, instance, now)
    preempted = w.engine.preempt and make_room(p, instance, now)
    batch = s.instance[instance].decoding_count
    here = w.instance[instance]
    budget = here.token_budget - batch
    chunks = 0
    fetching = False
    starved = False
    for place in range(s.instance[instance].prefilling_count):
        request = s.prefilling[instance, place]
        s.request[request].chunk = 0
        if s.request[request].fetching:
            fetching = True
        elif budget > 0:
            s.request[request].chunk = min(s.request[request].todo, budget)
            budget -= s.request[request].chunk
            chunks += 1
        else:
            starved = True
    while (
        budget > 0
        and not preempted
        and s.instance[instance].waiting >= 0
        and s.instance[instance].prefilling_count + batch < here.max_running_requests
    ):
        request = s.instance[instance].waiting
        if not _admit(p, instance, request, now):
            break
        s.instance[instance].waiting = s.request[request].next_waiting
        s.request[request].next_waiting = -1
        s.request[request].stage = PREFILL
        s.prefilling[instance, s.instance[instance].prefilling_count] = request
        s.instance[instance].prefilling_count += 1
        s.request[request].chunk = 0
        if s.request[request].fetching:
            fetching = True
        else:
            s.request[request].chunk = min(s.request[request].todo, budget)
            budget -= s.request[request].chunk
            chunks += 1
    account(p, instance, now)
    if (w.fabric.stall and fetching) or (chunks == 0 and batch == 0):
        return
    s.instance[instance].step_start = now
    if chunks > 0:
        s.instance[instance].step_is_run = False
        tokens = pairs = keys = 0.0
        sampled = float(batch)
        for place in range(s.instance[instance].prefilling_count):
            request = s.prefilling[instance, place]
            if s.request[request].chunk > 0:
                if s.out[request].first_step < 0:
                    s.out[request].first_step = now
                chunk, cached = float(s.request[request].chunk), float(s.request[request].at)
                tokens += chunk
                pairs += chunk * (cached + 0.5 * chunk)
                keys += cached + chunk
                if s.request[request].chunk == s.request[request].todo:
                    sampled += 1.0
        model = w.model[here.kind]
        ticks = step_ticks(
            model, tokens, pairs, keys, float(batch), float(s.instance[instance].context), sampled
        )
    else:
        s.instance[instance].step_is_run = True
        steps = 1
        if skip and not starved and not preempted:
            done = s.instance[instance].decode_steps
            steps = s.request[s.decoding[instance, 0]].finish_at - done
            for place in range(1, batch):
                steps = min(steps, s.request[s.decoding[instance, place]].finish_at - done)
            if w.engine.preempt:
                steps = steps_to_growth(p, instance, steps)
        s.instance[instance].run_steps = steps
        ticks = ticks_of(p, instance, steps)
        edge = next_edge(p, now)
        if steps > 1 and edge > now and now + ticks > edge:
            s.instance[instance].run_steps = steps_by(p, instance, edge)
            ticks = ticks_of(p, instance, s.instance[instance].run_steps)
    set_timer(p, instance, now + ticks, instance)


@part
def end_step(p, instance, now):
    """Take in what a step, or a run of steps, has done."""
    s, w = tables(p)
    start = s.instance[instance].step_start
    s.instance[instance].busy_ticks += overlap(p, start, now)
    s.instance[instance].step_start = -1
    steps = s.instance[instance].run_steps if s.instance[instance].step_is_run else 1
    s.count[STEPS] += steps
    s.count[RUNS] += 1
    batch = s.instance[instance].decoding_count
    if batch > 0:
        s.instance[instance].decode_steps += steps
        s.instance[instance].context += batch * steps
        # all steps of a run but the last end in the bin in which it began
        credit(p, s.generated_tokens, instance, start, batch * (steps - 1))
        credit(p, s.generated_tokens, instance, now, batch)
        done = s.instance[instance].decode_steps
        kept = 0
        for place in range(batch):
            request = s.decoding[instance, place]
            if s.request[request].finish_at == done:
                length = w.requests[request].prompt_tokens + w.requests[request].output_tokens
                s.instance[instance].context -= length
                _complete(p, instance, request, now)
            else:
                s.decoding[instance, kept] = request
                kept += 1
        s.instance[instance].decoding_count = kept
    if s.instance[instance].step_is_run:
        return
    count = s.instance[instance].prefilling_count
    kept = 0
    going_on = 0  # prompts that go on being computed
    for place in range(count):
        request = s.prefilling[instance, place]
        if not s.request[request].fetching and s.request[request].chunk < s.request[request].todo:
            going_on += 1
    for place in range(count):
        request = s.prefilling[instance, place]
        chunk = s.request[request].chunk
        if chunk > 0:
            s.request[request].chunk = 0
            s.request[request].todo -= chunk
            s.request[request].at += chunk
            if s.request[request].todo == 0:
                # those behind it in this step still count as computing
                behind = going_on + _completing(p, instance, place + 1, count)
                _prefilled(
                    p,
                    instance,
                    request,
                    behind,
                    now,
                )
                continue
        s.prefilling[instance, kept] = request
        kept += 1
    s.instance[instance].prefilling_count = kept


@part
def _completing(p, instance, first, count):
    s, _ = tables(p)
    found = 0
    for place in range(first, count):
        request = s.prefilling[instance, place]
        if s.request[request].chunk > 0 and s.request[request].chunk == s.request[request].todo:
            found += 1
    return found


@part
def _prefilled(p, instance, request, behind, now):
    """Sample the first token, make the prompt's blocks reusable."""
    s, w = tables(p)
    if s.out[request].first_token < 0:
        s.out[request].first_token = now
        reused = s.out[request].local_tokens + s.out[request].fetched_tokens
        credit(p, s.reused_tokens, instance, now, reused)
        computed = w.requests[request].prompt_tokens - reused
        credit(p, s.computed_tokens, instance, now, computed)
        change_load(p, request, now, 0.0, -float(s.out[request].charge))
    else:  # it had been preempted
        s.out[request].repeated_tokens += s.request[request].at - s.request[request].found
    credit(p, s.generated_tokens, instance, now, 1)
    s.request[request].made += 1
    made = s.request[request].made
    reach = w.requests[request].blocks
    added = insert_path(p, request, instance, w.fabric.prefill_instances, reach, now)
    s.request[request].private -= added * w.engine.cache_block_tokens
    single = w.requests[request].output_tokens == made
    s.request[request].stage = DECODE
    if not single and w.fabric.prefill_instances < w.fabric.instances:
        wait_for_room(p, request)
    elif not single:
        s.decoding[instance, s.instance[instance].decoding_count] = request
        s.instance[instance].decoding_count += 1
        s.request[request].finish_at = (
            s.instance[instance].decode_steps + w.requests[request].output_tokens - made
        )
        s.instance[instance].context += w.requests[request].prompt_tokens + made
        if w.engine.preempt:
            set_growth(p, instance, request)
    if s.count[GLOBAL_CAPACITY] > 0 and not w.tiers.write_back:
        if w.tiers.pieces:
            written = pieces_write_path(p, request, s.count[GLOBAL_CAPACITY])
        else:
            written = global_write(p, request, s.count[GLOBAL_CAPACITY])
        if written > 0 and w.fabric.nodes > 1:
            busy = s.instance[instance].decoding_count + behind > 0
            work = nic_work(p, instance, written * w.engine.cache_block_tokens, busy)
            start_write(p, instance, work, request, now)
    if single:
        _complete(p, instance, request, now)


@part
def _complete(p, instance, request, now):
    s, w = tables(p)
    s.out[request].done = now
    if instance >= w.fabric.prefill_instances:
        release_decoded(p, request, instance)
    else:
        release_path(p, request, instance, w.fabric.prefill_instances, w.engine.cache_block_tokens)
        change_load(p, request, now, -1.0, 0.0)
    if w.window.start <= s.out[request].arrival < w.window.end:
        s.count[PENDING] -= 1
    session_over(p, request, w.fabric.prefill_instances)
    next_turn(p, request, now)


# --- KV and links -------------------------------------------------------------------------------


@part
def _usable(p, blocks, prompt):
    _, w = tables(p)
    tokens = min(blocks * w.engine.cache_block_tokens, prompt - 1)
    return tokens // w.engine.block_tokens * w.engine.block_tokens


@part
def _admit(p, instance, request, now):
    s, w = tables(p)
    # what it had made when it was preempted is computed again with the prompt
    prompt = w.requests[request].prompt_tokens + s.request[request].made
    total = prompt
    if w.fabric.prefill_instances == w.fabric.instances and not w.engine.preempt:
        total += w.requests[request].output_tokens
    total = (total + w.engine.block_tokens - 1) // w.engine.block_tokens * w.engine.block_tokens
    held = admit_path(
        p,
        request,
        instance,
        w.fabric.prefill_instances,
        w.engine.cache_block_tokens,
        total + w.instance[instance].fixed_state_tokens,
        now,
    )
    if held < 0:
        return False
    s.count[ADMITTED] += 1
    s.request[request].rank = s.count[ADMITTED]
    first = s.out[request].first_token < 0
    local = _usable(p, held, prompt)
    fetched = stored = 0
    if w.fabric.global_blocks > 0:
        stored = pieces_hit(p, request, held) if w.tiers.pieces else global_hit(p, request)
    if w.tiers.peer_fetch:
        fetched = start_peer_fetch(p, instance, request, max(held, stored), local, prompt - 1, now)
    if fetched == 0 and stored > held:
        fetched = _usable(p, stored, prompt) - local
        if fetched > 0 and _start_fetch(p, instance, request, local, fetched, now):
            if w.tiers.pieces:
                pieces_touch(p, request, stored)
            else:
                global_touch(p, request)
        else:
            fetched = 0
    if fetched > 0:
        s.request[request].fetching = True
    if first:
        s.out[request].admitted = now
        s.out[request].local_tokens = local
        s.out[request].fetched_tokens = fetched
        if w.tiers.peer_fetch:
            s.reading[request].peer = s.reading[request].source
    s.request[request].found = local + fetched
    s.request[request].at = local + fetched
    s.request[request].todo = prompt - local - fetched
    use_is_over(p, request, w.fabric.prefill_instances)
    if w.tiers.write_back:
        write_back(p, instance, request, now)
    return True


@part
def _start_fetch(p, instance, request, local, fetched, now):
    s, w = tables(p)
    here = w.instance[instance]
    work = 0.0
    if w.fabric.nodes > 1:
        work = nic_work(p, instance, fetched, computing(p, instance))
    size = fetched / w.engine.block_tokens * here.block_bytes
    if w.fabric.recompute_if_faster:
        flows = s.link[2 * w.fabric.nodes + instance].flows
        share = here.pcie_bytes_per_s / (flows + 1)
        seconds = size / share
        if work > 0.0:
            seconds = max(seconds, work / nic_rate(p, here.node))
        recompute = prefill_ticks(w.model[here.kind], fetched, local, here.token_budget)
        if seconds * 1e12 + here.fixed_fetch_ticks > recompute:
            return False
    if s.out[request].first_token < 0:
        s.out[request].fetch_start = now
    s.request[request].legs = 1
    start_pcie(p, instance, size, request, now)
    if work > 0.0:
        s.request[request].legs = 2
        start_nic(p, 2 * here.node, work, request, now)
    return True


@part
def _on_link(p, link, now):
    s, w = tables(p)
    if link < 2 * w.fabric.nodes:
        advance_nics(p, now)
        request = pop_flow(p, link)
        schedule_nics(p, now)
        if link % 2 == 1:
            s.request[request].writing = -1
            return  # a write: nobody waits for it
    elif link >= 2 * w.fabric.nodes + w.fabric.instances:
        request = link - 2 * w.fabric.nodes - w.fabric.instances
        end_transfer(p, request, now)
    else:
        instance = link - 2 * w.fabric.nodes
        advance_pcie(p, instance, now)
        request = pop_flow(p, link)
        schedule_pcie(p, instance, now)
    s.request[request].legs -= 1
    if s.request[request].legs == 0:
        # KV on its way to the decode pool has no fixed time: docs/simulate.md
        due = now
        if not _is_sent(p, request):
            due += w.instance[s.out[request].instance].fixed_fetch_ticks
        s.request[request].due = due
        push_event(p, due, _FETCHED + request)
