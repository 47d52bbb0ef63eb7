"""Compiled simulator: the rules of ``docs/simulate.md``, decode-only steps in closed form.

A step that only decodes leaves everything as it is but the sequences' lengths, so that steps until
the first of them is complete are one *run*.  Whatever wakes the instance meanwhile cuts the run after
the step in progress.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from smetric_model.routing.compiled import choose
from smetric_model.simulate._caches import (
    admit_path,
    all_hits,
    global_hit,
    global_touch,
    global_write,
    insert_path,
    release_path,
)
from smetric_model.simulate._heaps import KIND, pop_event, push_event, set_timer
from smetric_model.simulate._jit import jit
from smetric_model.simulate._links import (
    advance_nics,
    advance_pcie,
    nic_rate,
    overlap,
    pop_flow,
    schedule_nics,
    schedule_pcie,
    start_nic,
    start_pcie,
)
from smetric_model.simulate._state import (
    ARRIVED,
    EVENTS,
    NEXT_INSTANCE,
    PENDING,
    QUEUE,
    RUNS,
    STEPS,
)
from smetric_model.simulate.steps import prefill_ticks, run_ticks, step_ticks

__all__ = ["loop"]

_FETCHED, _ARRIVAL, _READY = 2 << KIND, 3 << KIND, 4 << KIND
_NUMBER = (1 << KIND) - 1


@jit
def loop(s, out, requests, nodes, engine, fabric, window, model, decode, policy, first, skip):
    """Run until the window's requests are done; ``first`` are the fixed arrivals in order."""
    now = 0
    at = 0
    while True:
        if now >= window.end and s.count[PENDING] == 0:
            break
        # the earliest of timers, requests' events and fixed arrivals
        tick, code, source = -1, 0, -1
        if s.timer_size[0] > 0:
            timer = s.timer_heap[0]
            tick, code, source = s.timer_tick[timer], s.timer_code[timer], 0
        if s.count[QUEUE] > 0:
            other, name = s.event_tick[0], s.event_code[0]
            if source < 0 or other < tick or (other == tick and name < code):
                tick, code, source = other, name, 1
        if at < first.size:
            other, name = requests.arrival_tick[first[at]], _ARRIVAL + first[at]
            if source < 0 or other < tick or (other == tick and name < code):
                tick, code, source = other, name, 2
        if source < 0:
            break
        if tick > window.drain_end:
            now = window.drain_end
            break
        now = tick
        s.count[EVENTS] += 1
        kind, index = code >> KIND, code & _NUMBER
        if source == 1:
            pop_event(s)
        elif source == 2:
            at += 1
        if kind == 0:
            _stop(s, index)
            end_step(s, out, requests, nodes, engine, fabric, window, index, now)
            begin_step(
                s, out, requests, nodes, engine, fabric, window, model, decode, index, now, skip
            )
        elif kind == 1:
            _on_link(s, out, fabric, window, index, now)
        elif kind == 2:
            out.fetch_done[index] = now
            s.fetching[index] = False
            instance = out.instance[index]
            if s.step_start[instance] < 0:
                begin_step(
                    s,
                    out,
                    requests,
                    nodes,
                    engine,
                    fabric,
                    window,
                    model,
                    decode,
                    instance,
                    now,
                    skip,
                )
            else:
                _cut(s, decode, instance, now)
        elif kind == 3:
            _on_arrival(s, out, requests, nodes, engine, fabric, window, policy, index, now)
        else:
            out.ready[index] = now
            instance = out.instance[index]
            alone = s.waiting[instance] < 0
            if alone:
                s.waiting[instance] = index
            else:
                s.next_waiting[s.last_waiting[instance]] = index
            s.last_waiting[instance] = index
            if s.step_start[instance] < 0:
                begin_step(
                    s,
                    out,
                    requests,
                    nodes,
                    engine,
                    fabric,
                    window,
                    model,
                    decode,
                    instance,
                    now,
                    skip,
                )
            elif alone:
                _cut(s, decode, instance, now)
    if fabric.nodes > 1:
        advance_nics(s, fabric, window, now)
    for instance in range(fabric.instances):
        _add_held(s, out, window, instance, now)
        advance_pcie(s, fabric, window, out.pcie_bytes, instance, now)
        if s.step_start[instance] >= 0:
            out.busy_ticks[instance] += overlap(window, s.step_start[instance], now)
            if s.step_is_run[instance]:
                s.count[STEPS] += _steps_by(s, decode, instance, now + 1) - 1
    return now


@jit
def _stop(s, timer):
    """Remove the first timer of all (cheaper than any)."""
    s.timer_place[timer] = -1
    s.timer_size[0] -= 1
    size = s.timer_size[0]
    if size > 0:
        last = s.timer_heap[size]
        s.timer_place[last] = 0
        s.timer_heap[0] = last
        set_timer(s, last, s.timer_tick[last], s.timer_code[last])


@jit
def _on_arrival(s, out, requests, nodes, engine, fabric, window, policy, request, now):
    out.arrival[request] = now
    out.order[s.count[ARRIVED]] = request
    s.count[ARRIVED] += 1
    if requests.unservable[request]:
        _next_turn(s, requests, request, now)
        return
    if window.start <= now < window.end:
        s.count[PENDING] += 1
    prompt = requests.prompt_tokens[request]
    all_hits(s, nodes, request, fabric.instances)
    for instance in range(fabric.instances):
        s.hits[instance] *= engine.cache_block_tokens
    chosen, reason, following, random = choose(
        policy,
        prompt,
        requests.turn[request],
        requests.est_hit_tokens[request],
        requests.session_key[request],
        s.hits,
        s.loads,
        s.unprefilled,
        s.available,
        s.keys,
        s.count[NEXT_INSTANCE],
        s.random[0],
    )
    s.count[NEXT_INSTANCE] = following
    s.random[0] = random
    out.instance[request] = chosen
    out.reason[request] = reason
    charge = prompt - s.hits[chosen]
    out.charge[request] = charge
    s.loads[chosen] += 1.0
    s.unprefilled[chosen] += float(charge)
    push_event(s, now + requests.host_ticks[request], _READY + request)


@jit
def _next_turn(s, requests, request, now):
    following = requests.following[request]
    if following >= 0 and requests.arrival_tick[following] < 0:
        push_event(s, now + requests.think_ticks[following], _ARRIVAL + following)


# --- steps --------------------------------------------------------------------------------------


@jit
def begin_step(
    s, out, requests, nodes, engine, fabric, window, model, decode, instance, now, skip
):
    """Schedule a step on an instance that runs none."""
    batch = s.decoding_count[instance]
    budget = engine.token_budget - batch
    chunks = 0
    fetching = False
    starved = False
    for place in range(s.prefilling_count[instance]):
        request = s.prefilling[instance, place]
        s.chunk[request] = 0
        if s.fetching[request]:
            fetching = True
        elif budget > 0:
            s.chunk[request] = min(s.todo[request], budget)
            budget -= s.chunk[request]
            chunks += 1
        else:
            starved = True
    while (
        budget > 0
        and s.waiting[instance] >= 0
        and s.prefilling_count[instance] + batch < engine.max_running_requests
    ):
        request = s.waiting[instance]
        if not _admit(
            s, out, requests, nodes, engine, fabric, window, model, instance, request, now
        ):
            break
        s.waiting[instance] = s.next_waiting[request]
        s.prefilling[instance, s.prefilling_count[instance]] = request
        s.prefilling_count[instance] += 1
        s.chunk[request] = 0
        if s.fetching[request]:
            fetching = True
        else:
            s.chunk[request] = min(s.todo[request], budget)
            budget -= s.chunk[request]
            chunks += 1
    held = engine.pool_tokens - s.free[instance] - s.evictable[instance]
    if held != s.held[instance]:
        _add_held(s, out, window, instance, now)
        s.held[instance] = held
        s.held_since[instance] = now
    if (fabric.stall and fetching) or (chunks == 0 and batch == 0):
        return
    s.step_start[instance] = now
    if chunks > 0:
        s.step_is_run[instance] = False
        tokens = pairs = keys = 0.0
        sampled = float(batch)
        for place in range(s.prefilling_count[instance]):
            request = s.prefilling[instance, place]
            if s.chunk[request] > 0:
                if out.first_step[request] < 0:
                    out.first_step[request] = now
                chunk, cached = float(s.chunk[request]), float(s.at[request])
                tokens += chunk
                pairs += chunk * (cached + 0.5 * chunk)
                keys += cached + chunk
                if s.chunk[request] == s.todo[request]:
                    sampled += 1.0
        ticks = step_ticks(
            model, tokens, pairs, keys, float(batch), float(s.context[instance]), sampled
        )
    else:
        s.step_is_run[instance] = True
        steps = 1
        if skip and not starved:
            done = s.decode_steps[instance]
            steps = s.finish_at[s.decoding[instance, 0]] - done
            for place in range(1, batch):
                steps = min(steps, s.finish_at[s.decoding[instance, place]] - done)
        s.run_steps[instance] = steps
        ticks = _ticks(s, decode, instance, steps)
        edge = _next_edge(window, now)
        if steps > 1 and edge > now and now + ticks > edge:
            s.run_steps[instance] = _steps_by(s, decode, instance, edge)
            ticks = _ticks(s, decode, instance, s.run_steps[instance])
    set_timer(s, instance, now + ticks, instance)


@jit
def _ticks(s, decode, instance, steps):
    batch = s.decoding_count[instance]
    return run_ticks(
        decode.base[batch],
        decode.per_token[batch],
        decode.least[batch],
        batch,
        s.context[instance],
        steps,
    )


@jit
def _steps_by(s, decode, instance, tick):
    """First step of the run that ends at ``tick`` or later; the last one if none does."""
    low, high = 1, s.run_steps[instance]
    left = tick - s.step_start[instance]
    while low < high:
        middle = (low + high) >> 1
        if _ticks(s, decode, instance, middle) >= left:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def _cut(s, decode, instance, now):
    """End a run with the step in progress; one that ends right now has ended already."""
    if not s.step_is_run[instance] or s.run_steps[instance] == 1:
        return
    steps = _steps_by(s, decode, instance, now + 1)
    if steps < s.run_steps[instance]:
        s.run_steps[instance] = steps
        tick = s.step_start[instance] + _ticks(s, decode, instance, steps)
        set_timer(s, instance, tick, instance)


@jit
def _next_edge(window, now):
    """Next moment at which a bin, or the window, begins or ends; −1 after the last."""
    if now < window.start:
        return window.start
    if now >= window.end:
        return -1
    edge = window.start + ((now - window.start) // window.bin_ticks + 1) * window.bin_ticks
    return min(edge, window.end)


@jit
def _credit(table, window, instance, now, tokens):
    if window.start <= now < window.end:
        table[instance, (now - window.start) // window.bin_ticks] += tokens


@jit
def end_step(s, out, requests, nodes, engine, fabric, window, instance, now):
    """Take in what a step, or a run of steps, has done."""
    start = s.step_start[instance]
    out.busy_ticks[instance] += overlap(window, start, now)
    s.step_start[instance] = -1
    steps = s.run_steps[instance] if s.step_is_run[instance] else 1
    s.count[STEPS] += steps
    s.count[RUNS] += 1
    batch = s.decoding_count[instance]
    if batch > 0:
        s.decode_steps[instance] += steps
        s.context[instance] += batch * steps
        # all steps of a run but the last end in the bin in which it began
        _credit(out.generated_tokens, window, instance, start, batch * (steps - 1))
        _credit(out.generated_tokens, window, instance, now, batch)
        done = s.decode_steps[instance]
        kept = 0
        for place in range(batch):
            request = s.decoding[instance, place]
            if s.finish_at[request] == done:
                length = requests.prompt_tokens[request] + requests.output_tokens[request]
                s.context[instance] -= length
                _complete(s, out, requests, nodes, engine, fabric, window, instance, request, now)
            else:
                s.decoding[instance, kept] = request
                kept += 1
        s.decoding_count[instance] = kept
    if s.step_is_run[instance]:
        return
    count = s.prefilling_count[instance]
    kept = 0
    computing = 0  # prompts that go on being computed
    for place in range(count):
        request = s.prefilling[instance, place]
        if not s.fetching[request] and s.chunk[request] < s.todo[request]:
            computing += 1
    for place in range(count):
        request = s.prefilling[instance, place]
        chunk = s.chunk[request]
        if chunk > 0:
            s.chunk[request] = 0
            s.todo[request] -= chunk
            s.at[request] += chunk
            if s.todo[request] == 0:
                # those behind it in this step still count as computing
                behind = computing + _completing(s, instance, place + 1, count)
                _prefilled(
                    s,
                    out,
                    requests,
                    nodes,
                    engine,
                    fabric,
                    window,
                    instance,
                    request,
                    behind,
                    now,
                )
                continue
        s.prefilling[instance, kept] = request
        kept += 1
    s.prefilling_count[instance] = kept


@jit
def _completing(s, instance, first, count):
    found = 0
    for place in range(first, count):
        request = s.prefilling[instance, place]
        if s.chunk[request] > 0 and s.chunk[request] == s.todo[request]:
            found += 1
    return found


@jit
def _prefilled(
    s, out, requests, nodes, engine, fabric, window, instance, request, computing, now
):
    """Sample the first token, make the prompt's blocks reusable."""
    out.first_token[request] = now
    reused = out.local_tokens[request] + out.fetched_tokens[request]
    _credit(out.reused_tokens, window, instance, now, reused)
    computed = requests.prompt_tokens[request] - reused
    _credit(out.computed_tokens, window, instance, now, computed)
    _credit(out.generated_tokens, window, instance, now, 1)
    s.unprefilled[instance] -= float(out.charge[request])
    added = insert_path(s, nodes, request, instance, fabric.instances)
    s.private[request] -= added * engine.cache_block_tokens
    single = requests.output_tokens[request] == 1
    if not single:
        s.decoding[instance, s.decoding_count[instance]] = request
        s.decoding_count[instance] += 1
        s.finish_at[request] = s.decode_steps[instance] + requests.output_tokens[request] - 1
        s.context[instance] += requests.prompt_tokens[request] + 1
    if fabric.global_blocks > 0:
        written = global_write(s, nodes, request, fabric.global_blocks)
        if written > 0 and fabric.nodes > 1:
            busy = s.decoding_count[instance] + computing > 0
            work = _nic_work(engine, fabric, written * engine.cache_block_tokens, busy)
            link = 2 * (instance // fabric.instances_per_node) + 1
            start_nic(s, fabric, window, link, work, request, now)
    if single:
        _complete(s, out, requests, nodes, engine, fabric, window, instance, request, now)


@jit
def _complete(s, out, requests, nodes, engine, fabric, window, instance, request, now):
    out.done[request] = now
    release_path(
        s, nodes, request, instance, fabric.instances, engine.cache_block_tokens
    )
    s.loads[instance] -= 1.0
    if window.start <= out.arrival[request] < window.end:
        s.count[PENDING] -= 1
    _next_turn(s, requests, request, now)


# --- KV and links -------------------------------------------------------------------------------


@jit
def _usable(engine, blocks, prompt):
    tokens = min(blocks * engine.cache_block_tokens, prompt - 1)
    return tokens // engine.block_tokens * engine.block_tokens


@jit
def _admit(s, out, requests, nodes, engine, fabric, window, model, instance, request, now):
    prompt = requests.prompt_tokens[request]
    total = prompt + requests.output_tokens[request]
    total = (total + engine.block_tokens - 1) // engine.block_tokens * engine.block_tokens
    held = admit_path(
        s,
        nodes,
        request,
        instance,
        fabric.instances,
        engine.cache_block_tokens,
        total + engine.fixed_state_tokens,
    )
    if held < 0:
        return False
    out.admitted[request] = now
    local = _usable(engine, held, prompt)
    fetched = 0
    if fabric.global_blocks > 0:
        stored = global_hit(s, nodes, request)
        if stored > held:
            fetched = _usable(engine, stored, prompt) - local
        if fetched > 0:
            if _start_fetch(
                s, out, engine, fabric, window, model, instance, request, local, fetched, now
            ):
                global_touch(s, nodes, request)
                s.fetching[request] = True
            else:
                fetched = 0
    out.local_tokens[request] = local
    out.fetched_tokens[request] = fetched
    s.at[request] = local + fetched
    s.todo[request] = prompt - local - fetched
    return True


@jit
def _nic_work(engine, fabric, tokens, busy):
    size = (tokens + engine.block_tokens - 1) // engine.block_tokens
    return fabric.nic_work_busy[size] if busy else fabric.nic_work_idle[size]


@jit
def _start_fetch(
    s, out, engine, fabric, window, model, instance, request, local, fetched, now
):
    node = instance // fabric.instances_per_node
    work = 0.0
    if fabric.nodes > 1:
        busy = s.decoding_count[instance] > 0
        for place in range(s.prefilling_count[instance]):
            if not s.fetching[s.prefilling[instance, place]]:
                busy = True
        work = _nic_work(engine, fabric, fetched, busy)
    size = fetched / engine.block_tokens * fabric.block_bytes
    if fabric.recompute_if_faster:
        share = fabric.pcie_bytes_per_s / (s.flows[2 * fabric.nodes + instance] + 1)
        seconds = size / share
        if work > 0.0:
            seconds = max(seconds, work / nic_rate(s, fabric, node))
        recompute = prefill_ticks(model, fetched, local, engine.token_budget)
        if seconds * 1e12 + fabric.fixed_fetch_ticks > recompute:
            return False
    out.fetch_start[request] = now
    s.legs[request] = 1
    start_pcie(s, fabric, window, out.pcie_bytes, instance, size, request, now)
    if work > 0.0:
        s.legs[request] = 2
        start_nic(s, fabric, window, 2 * node, work, request, now)
    return True


@jit
def _on_link(s, out, fabric, window, link, now):
    if link < 2 * fabric.nodes:
        advance_nics(s, fabric, window, now)
        request = pop_flow(s, fabric, link)
        schedule_nics(s, fabric, now)
        if link % 2 == 1:
            return  # a write: nobody waits for it
    else:
        instance = link - 2 * fabric.nodes
        advance_pcie(s, fabric, window, out.pcie_bytes, instance, now)
        request = pop_flow(s, fabric, link)
        schedule_pcie(s, fabric, instance, now)
    s.legs[request] -= 1
    if s.legs[request] == 0:
        push_event(s, now + fabric.fixed_fetch_ticks, _FETCHED + request)


@jit
def _add_held(s, out, window, instance, now):
    inside = overlap(window, s.held_since[instance], now)
    out.held_token_ticks[instance] += float(s.held[instance]) * float(inside)
