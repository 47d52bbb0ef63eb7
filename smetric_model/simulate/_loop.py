"""Compiled simulator: the rules of ``docs/simulate.md``, decode-only steps in closed form.

A step that only decodes leaves everything as it is but the sequences' lengths, so that steps until
the first of them is complete are one *run*.  Whatever wakes the instance meanwhile cuts the run
after the step in progress.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.routing.compiled import choose
from smetric_model.simulate._caches import (
    admit_path,
    all_hits,
    catch_up_index,
    insert_path,
    place_blindly,
    release_path,
    seen_hits,
)
from smetric_model.simulate._eviction import session_arrived, session_over, use_is_over
from smetric_model.simulate._heaps import KIND, pop_event, push_event, set_timer
from smetric_model.simulate._jit import part, tables
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
from smetric_model.simulate._runs import runs_hit, runs_touch, runs_write_path
from smetric_model.simulate._state import (
    ARRIVED,
    EVENTS,
    LOAD_END,
    LOAD_NEXT,
    PENDING,
    QUEUE,
    RUNS,
    STEPS,
)
from smetric_model.simulate._store import global_hit, global_touch, global_write
from smetric_model.simulate.inputs import BLIND, CLAIRVOYANT, DEAD_FIRST, EXACT
from smetric_model.simulate.steps import prefill_ticks, run_ticks, step_ticks

__all__ = ["loop"]

_FETCHED, _ARRIVAL, _READY = 2 << KIND, 3 << KIND, 4 << KIND
_NUMBER = (1 << KIND) - 1


@part
def loop(p, first, skip):
    """Run until the window's requests are done; ``first`` are the fixed arrivals in order."""
    s, w = tables(p)
    now = 0
    at = 0
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
            other, name = w.requests[first[at]].arrival_tick, _ARRIVAL + first[at]
            if source < 0 or other < tick or (other == tick and name < code):
                tick, code, source = other, name, 2
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
        wake = -1  # an instance that runs no step and may now
        if kind == 0:
            _stop(p, index)
            end_step(p, index, now)
            wake = index
        elif kind == 1:
            _on_link(p, index, now)
        elif kind == 2:
            s.out[index].fetch_done = now
            s.request[index].fetching = False
            wake = _wake(p, s.out[index].instance, now, True)
        elif kind == 3:
            _on_arrival(p, index, now)
        else:
            s.out[index].ready = now
            if w.signals.scraped:
                _change_load(p, index, now, 1.0, float(s.out[index].charge))
            instance = s.out[index].instance
            alone = s.instance[instance].waiting < 0
            if alone:
                s.instance[instance].waiting = index
            else:
                s.request[s.instance[instance].last_waiting].next_waiting = index
            s.instance[instance].last_waiting = index
            wake = _wake(p, instance, now, alone)
        if wake >= 0:
            begin_step(p, wake, now, skip)
    if w.fabric.nodes > 1:
        advance_nics(p, now)
    for instance in range(w.fabric.instances):
        _add_held(p, instance, now)
        advance_pcie(p, instance, now)
        if s.instance[instance].step_start >= 0:
            s.instance[instance].busy_ticks += overlap(p, s.instance[instance].step_start, now)
            if s.instance[instance].step_is_run:
                done = _steps_by(p, instance, now + 1) - 1
                s.count[STEPS] += done
                start, batch = s.instance[instance].step_start, s.instance[instance].decoding_count
                _credit(p, s.generated_tokens, instance, start, batch * done)
    return now


@part
def _wake(p, instance, now, cut):
    """Instance if it is idle; else −1, and its run of steps is cut short (where ``cut``)."""
    s, _ = tables(p)
    if s.instance[instance].step_start < 0:
        return instance
    if cut:
        _cut(p, instance, now)
    return -1


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
    s.out[request].arrival = now
    s.order[s.count[ARRIVED]] = request
    replica = s.count[ARRIVED] % w.signals.replicas
    s.count[ARRIVED] += 1
    sessions = _has(p, DEAD_FIRST)
    if w.requests[request].unservable:
        if sessions:
            session_over(p, request, w.fabric.instances)
        _next_turn(p, request, now)
        return
    if sessions:
        session_arrived(p, request)
    if w.window.start <= now < w.window.end:
        s.count[PENDING] += 1
    prompt = w.requests[request].prompt_tokens
    _catch_up_loads(p, now - w.signals.load_age_ticks)
    if w.signals.hit_index == EXACT:
        all_hits(p, request, w.fabric.instances)
    else:
        catch_up_index(p, now - w.signals.index_age_ticks)
        seen_hits(p, request, replica, w.fabric.instances)
    for instance in range(w.fabric.instances):
        s.hits[instance] *= w.engine.cache_block_tokens
    chosen, reason, following, random = choose(
        w.policy,
        prompt,
        w.requests[request].turn,
        w.requests[request].est_hit_tokens,
        w.requests[request].session_key,
        s.hits,
        s.loads[0 if w.signals.scraped else replica],
        s.unprefilled[0 if w.signals.scraped else replica],
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
    s.request[request].replica = 0 if w.signals.scraped else replica
    if not w.signals.scraped:
        _change_load(p, request, now, 1.0, float(charge))
    if w.signals.hit_index == BLIND:
        place_blindly(p, request, replica, chosen, w.fabric.instances)
    push_event(p, now + w.requests[request].host_ticks, _READY + request)


@part
def _has(p, eviction):
    _, w = tables(p)
    return w.tiers.local_eviction == eviction or w.tiers.global_eviction == eviction


@part
def _change_load(p, request, now, requests, tokens):
    """Change the load that routers see of an instance, at once or when it is old enough."""
    s, w = tables(p)
    replica, instance = s.request[request].replica, s.out[request].instance
    if w.signals.load_age_ticks == 0:
        s.loads[replica, instance] += requests
        s.unprefilled[replica, instance] += tokens
        return
    entry = s.count[LOAD_END]
    s.count[LOAD_END] += 1
    s.load_log[entry].tick = now
    s.load_log[entry].replica = replica
    s.load_log[entry].instance = instance
    s.load_log[entry].requests = requests
    s.load_log[entry].tokens = tokens


@part
def _catch_up_loads(p, tick):
    s, _ = tables(p)
    entry = s.count[LOAD_NEXT]
    while entry < s.count[LOAD_END] and s.load_log[entry].tick <= tick:
        replica, instance = s.load_log[entry].replica, s.load_log[entry].instance
        s.loads[replica, instance] += s.load_log[entry].requests
        s.unprefilled[replica, instance] += s.load_log[entry].tokens
        entry += 1
    s.count[LOAD_NEXT] = entry


@part
def _next_turn(p, request, now):
    _, w = tables(p)
    following = w.requests[request].following
    if following >= 0 and w.requests[following].arrival_tick < 0:
        push_event(p, now + w.requests[following].think_ticks, _ARRIVAL + following)


# --- steps --------------------------------------------------------------------------------------


@part
def begin_step(p, instance, now, skip):
    """Schedule a step on an instance that runs none."""
    s, w = tables(p)
    batch = s.instance[instance].decoding_count
    budget = w.engine.token_budget - batch
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
        and s.instance[instance].waiting >= 0
        and s.instance[instance].prefilling_count + batch < w.engine.max_running_requests
    ):
        request = s.instance[instance].waiting
        if not _admit(p, instance, request, now):
            break
        s.instance[instance].waiting = s.request[request].next_waiting
        s.prefilling[instance, s.instance[instance].prefilling_count] = request
        s.instance[instance].prefilling_count += 1
        s.request[request].chunk = 0
        if s.request[request].fetching:
            fetching = True
        else:
            s.request[request].chunk = min(s.request[request].todo, budget)
            budget -= s.request[request].chunk
            chunks += 1
    held = w.engine.pool_tokens - s.instance[instance].free - s.instance[instance].evictable
    if held != s.instance[instance].held:
        _add_held(p, instance, now)
        s.instance[instance].held = held
        s.instance[instance].held_since = now
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
        ticks = step_ticks(
            w.model, tokens, pairs, keys, float(batch), float(s.instance[instance].context), sampled
        )
    else:
        s.instance[instance].step_is_run = True
        steps = 1
        if skip and not starved:
            done = s.instance[instance].decode_steps
            steps = s.request[s.decoding[instance, 0]].finish_at - done
            for place in range(1, batch):
                steps = min(steps, s.request[s.decoding[instance, place]].finish_at - done)
        s.instance[instance].run_steps = steps
        ticks = _ticks(p, instance, steps)
        edge = _next_edge(p, now)
        if steps > 1 and edge > now and now + ticks > edge:
            s.instance[instance].run_steps = _steps_by(p, instance, edge)
            ticks = _ticks(p, instance, s.instance[instance].run_steps)
    set_timer(p, instance, now + ticks, instance)


@part
def _ticks(p, instance, steps):
    s, w = tables(p)
    batch = s.instance[instance].decoding_count
    return run_ticks(
        w.decode[batch].base,
        w.decode[batch].per_token,
        w.decode[batch].least,
        batch,
        s.instance[instance].context,
        steps,
    )


@part
def _steps_by(p, instance, tick):
    """First step of the run that ends at ``tick`` or later; the last one if none does."""
    s, _ = tables(p)
    low, high = 1, s.instance[instance].run_steps
    left = tick - s.instance[instance].step_start
    while low < high:
        middle = (low + high) >> 1
        if _ticks(p, instance, middle) >= left:
            high = middle
        else:
            low = middle + 1
    return low


@part
def _cut(p, instance, now):
    """End a run with the step in progress; one that ends right now has ended already."""
    s, _ = tables(p)
    if not s.instance[instance].step_is_run or s.instance[instance].run_steps == 1:
        return
    steps = _steps_by(p, instance, now + 1)
    if steps < s.instance[instance].run_steps:
        s.instance[instance].run_steps = steps
        tick = s.instance[instance].step_start + _ticks(p, instance, steps)
        set_timer(p, instance, tick, instance)


@part
def _next_edge(p, now):
    """Next moment at which a bin, or the window, begins or ends; −1 after the last."""
    _, w = tables(p)
    if now < w.window.start:
        return w.window.start
    if now >= w.window.end:
        return -1
    edge = w.window.start + ((now - w.window.start) // w.window.bin_ticks + 1) * w.window.bin_ticks
    return min(edge, w.window.end)


@part
def _credit(p, table, instance, now, tokens):
    _, w = tables(p)
    if w.window.start <= now < w.window.end:
        table[instance, (now - w.window.start) // w.window.bin_ticks] += tokens


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
        _credit(p, s.generated_tokens, instance, start, batch * (steps - 1))
        _credit(p, s.generated_tokens, instance, now, batch)
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
    computing = 0  # prompts that go on being computed
    for place in range(count):
        request = s.prefilling[instance, place]
        if not s.request[request].fetching and s.request[request].chunk < s.request[request].todo:
            computing += 1
    for place in range(count):
        request = s.prefilling[instance, place]
        chunk = s.request[request].chunk
        if chunk > 0:
            s.request[request].chunk = 0
            s.request[request].todo -= chunk
            s.request[request].at += chunk
            if s.request[request].todo == 0:
                # those behind it in this step still count as computing
                behind = computing + _completing(p, instance, place + 1, count)
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
def _prefilled(p, instance, request, computing, now):
    """Sample the first token, make the prompt's blocks reusable."""
    s, w = tables(p)
    s.out[request].first_token = now
    reused = s.out[request].local_tokens + s.out[request].fetched_tokens
    _credit(p, s.reused_tokens, instance, now, reused)
    computed = w.requests[request].prompt_tokens - reused
    _credit(p, s.computed_tokens, instance, now, computed)
    _credit(p, s.generated_tokens, instance, now, 1)
    _change_load(p, request, now, 0.0, -float(s.out[request].charge))
    added = insert_path(p, request, instance, w.fabric.instances, now)
    s.request[request].private -= added * w.engine.cache_block_tokens
    single = w.requests[request].output_tokens == 1
    if not single:
        s.decoding[instance, s.instance[instance].decoding_count] = request
        s.instance[instance].decoding_count += 1
        s.request[request].finish_at = (
            s.instance[instance].decode_steps + w.requests[request].output_tokens - 1
        )
        s.instance[instance].context += w.requests[request].prompt_tokens + 1
    if w.fabric.global_blocks > 0:
        if w.tiers.runs:
            written = runs_write_path(p, request, w.fabric.global_blocks)
        else:
            written = global_write(p, request, w.fabric.global_blocks)
        if written > 0 and w.fabric.nodes > 1:
            busy = s.instance[instance].decoding_count + computing > 0
            work = _nic_work(p, written * w.engine.cache_block_tokens, busy)
            link = 2 * (instance // w.fabric.instances_per_node) + 1
            start_nic(p, link, work, request, now)
    if single:
        _complete(p, instance, request, now)


@part
def _complete(p, instance, request, now):
    s, w = tables(p)
    s.out[request].done = now
    release_path(p, request, instance, w.fabric.instances, w.engine.cache_block_tokens)
    _change_load(p, request, now, -1.0, 0.0)
    if w.window.start <= s.out[request].arrival < w.window.end:
        s.count[PENDING] -= 1
    if _has(p, DEAD_FIRST):
        session_over(p, request, w.fabric.instances)
    _next_turn(p, request, now)


# --- KV and links -------------------------------------------------------------------------------


@part
def _usable(p, blocks, prompt):
    _, w = tables(p)
    tokens = min(blocks * w.engine.cache_block_tokens, prompt - 1)
    return tokens // w.engine.block_tokens * w.engine.block_tokens


@part
def _admit(p, instance, request, now):
    s, w = tables(p)
    prompt = w.requests[request].prompt_tokens
    total = prompt + w.requests[request].output_tokens
    total = (total + w.engine.block_tokens - 1) // w.engine.block_tokens * w.engine.block_tokens
    held = admit_path(
        p,
        request,
        instance,
        w.fabric.instances,
        w.engine.cache_block_tokens,
        total + w.engine.fixed_state_tokens,
        now,
    )
    if held < 0:
        return False
    s.out[request].admitted = now
    local = _usable(p, held, prompt)
    fetched = 0
    if w.fabric.global_blocks > 0:
        stored = runs_hit(p, request, held) if w.tiers.runs else global_hit(p, request)
        if stored > held:
            fetched = _usable(p, stored, prompt) - local
        if fetched > 0:
            if _start_fetch(p, instance, request, local, fetched, now):
                if w.tiers.runs:
                    runs_touch(p, request, stored)
                else:
                    global_touch(p, request)
                s.request[request].fetching = True
            else:
                fetched = 0
    s.out[request].local_tokens = local
    s.out[request].fetched_tokens = fetched
    s.request[request].at = local + fetched
    s.request[request].todo = prompt - local - fetched
    if _has(p, CLAIRVOYANT):
        use_is_over(p, request, w.fabric.instances)
    return True


@part
def _nic_work(p, tokens, busy):
    _, w = tables(p)
    size = (tokens + w.engine.block_tokens - 1) // w.engine.block_tokens
    return w.fabric.nic_work_busy[size] if busy else w.fabric.nic_work_idle[size]


@part
def _start_fetch(p, instance, request, local, fetched, now):
    s, w = tables(p)
    node = instance // w.fabric.instances_per_node
    work = 0.0
    if w.fabric.nodes > 1:
        busy = s.instance[instance].decoding_count > 0
        for place in range(s.instance[instance].prefilling_count):
            if not s.request[s.prefilling[instance, place]].fetching:
                busy = True
        work = _nic_work(p, fetched, busy)
    size = fetched / w.engine.block_tokens * w.fabric.block_bytes
    if w.fabric.recompute_if_faster:
        share = w.fabric.pcie_bytes_per_s / (s.link[2 * w.fabric.nodes + instance].flows + 1)
        seconds = size / share
        if work > 0.0:
            seconds = max(seconds, work / nic_rate(p, node))
        recompute = prefill_ticks(w.model, fetched, local, w.engine.token_budget)
        if seconds * 1e12 + w.fabric.fixed_fetch_ticks > recompute:
            return False
    s.out[request].fetch_start = now
    s.request[request].legs = 1
    start_pcie(p, instance, size, request, now)
    if work > 0.0:
        s.request[request].legs = 2
        start_nic(p, 2 * node, work, request, now)
    return True


@part
def _on_link(p, link, now):
    s, w = tables(p)
    if link < 2 * w.fabric.nodes:
        advance_nics(p, now)
        request = pop_flow(p, link)
        schedule_nics(p, now)
        if link % 2 == 1:
            return  # a write: nobody waits for it
    else:
        instance = link - 2 * w.fabric.nodes
        advance_pcie(p, instance, now)
        request = pop_flow(p, link)
        schedule_pcie(p, instance, now)
    s.request[request].legs -= 1
    if s.request[request].legs == 0:
        push_event(p, now + w.fabric.fixed_fetch_ticks, _FETCHED + request)


@part
def _add_held(p, instance, now):
    s, _ = tables(p)
    inside = overlap(p, s.instance[instance].held_since, now)
    s.instance[instance].held_token_ticks += float(s.instance[instance].held) * float(inside)
