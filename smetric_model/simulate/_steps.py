"""Compiled engine steps: what one computes, how long it takes, and what its end brings."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._admission import admit
from smetric_model.simulate._arrivals import change_load, next_turn
from smetric_model.simulate._caches import account, insert_path, release_path
from smetric_model.simulate._eviction import session_over
from smetric_model.simulate._heaps import set_timer
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import overlap
from smetric_model.simulate._pieces import pieces_write_path
from smetric_model.simulate._pools import join_batch, release_decoded, wait_for_room
from smetric_model.simulate._preemption import make_room, set_growth, steps_to_growth
from smetric_model.simulate._runs import credit, next_edge, steps_by, ticks_of
from smetric_model.simulate._state import DECODE, GLOBAL_CAPACITY, PENDING, PREFILL, RUNS, STEPS
from smetric_model.simulate._store import global_write
from smetric_model.simulate._writes import nic_work, start_write
from smetric_model.simulate.steps import step_ticks

__all__ = ["begin_step", "end_step"]


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
        if not admit(p, instance, request, now):
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
