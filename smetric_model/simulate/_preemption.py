"""Compiled preemption: KV grows with the output, and the latest admitted gives way.

The rules are those of :mod:`smetric_model.simulate.reference_preemption`.
"""
# In a request that decodes, ``due`` is the decode step at which it needs its next block.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._caches import insert_path, release_path, take
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._state import PREFILL, WAITING
from smetric_model.simulate._writes import write_back

__all__ = ["make_room", "set_growth", "steps_to_growth", "take_out"]


@part
def make_room(p, instance, now):
    """Give every decoding sequence KV for its next token; whether others had to give way."""
    s, w = tables(p)
    preempted = False
    while True:
        growing = 0
        steps = s.instance[instance].decode_steps
        for place in range(s.instance[instance].decoding_count):
            if s.request[s.decoding[instance, place]].due <= steps:
                growing += 1
        if growing == 0:
            return preempted
        if take(p, instance, growing * w.engine.block_tokens, now):
            break
        _preempt(p, instance, _latest(p, instance), now)
        preempted = True
    if w.tiers.write_back:
        for place in range(s.instance[instance].decoding_count):
            request = s.decoding[instance, place]
            if s.request[request].due <= steps:
                write_back(p, instance, request, now)
                break
    for place in range(s.instance[instance].decoding_count):
        request = s.decoding[instance, place]
        if s.request[request].due <= steps:
            s.request[request].due += w.engine.block_tokens
            s.request[request].private += w.engine.block_tokens
    return preempted


@part
def set_growth(p, instance, request):
    """Note when a sequence that begins to decode needs its next block of KV."""
    s, w = tables(p)
    # it has KV for what was prefilled; each step adds the token that the one before it made
    length = w.requests[request].prompt_tokens + s.request[request].made - 1
    block = w.engine.block_tokens
    room = (length + block - 1) // block * block - length
    s.request[request].due = s.instance[instance].decode_steps + room


@part
def steps_to_growth(p, instance, steps):
    """Count the steps until a sequence needs its next block, at most ``steps``."""
    s, _ = tables(p)
    done = s.instance[instance].decode_steps
    for place in range(s.instance[instance].decoding_count):
        steps = min(steps, s.request[s.decoding[instance, place]].due - done)
    return steps


@part
def _latest(p, instance):
    """Request admitted last, of those that are not fetching."""
    s, _ = tables(p)
    found = -1
    for place in range(s.instance[instance].decoding_count):
        request = s.decoding[instance, place]
        if found < 0 or s.request[request].rank > s.request[found].rank:
            found = request
    for place in range(s.instance[instance].prefilling_count):
        request = s.prefilling[instance, place]
        if not s.request[request].fetching and s.request[request].rank > s.request[found].rank:
            found = request
    return found


@part
def _preempt(p, instance, request, now):
    """Take a request's KV and put it at the head of the queue."""
    s, w = tables(p)
    instances, block = w.fabric.prefill_instances, w.engine.cache_block_tokens
    if s.request[request].stage == PREFILL:
        take_out(s.prefilling[instance], s.instance[instance].prefilling_count, request)
        s.instance[instance].prefilling_count -= 1
        whole = s.request[request].at
        reach = min(whole // block, w.requests[request].blocks)
        added = insert_path(p, request, instance, instances, reach, now)
        s.request[request].private -= added * block
        s.request[request].chunk = 0
        s.out[request].repeated_tokens += whole - s.request[request].found
        if s.out[request].first_token < 0:
            s.out[request].admitted = -1
            s.out[request].fetch_start = -1
            s.out[request].fetch_done = -1
            s.out[request].first_step = -1
            if w.tiers.peer_fetch:
                s.reading[request].peer = -1
            s.out[request].local_tokens = 0
            s.out[request].fetched_tokens = 0
    else:
        take_out(s.decoding[instance], s.instance[instance].decoding_count, request)
        s.instance[instance].decoding_count -= 1
        left = s.request[request].finish_at - s.instance[instance].decode_steps
        made = w.requests[request].output_tokens - left
        s.instance[instance].context -= w.requests[request].prompt_tokens + made
        s.request[request].made = made
    release_path(p, request, instance, instances, block)
    s.request[request].private = 0
    s.request[request].stage = WAITING
    s.out[request].preemptions += 1
    first = s.instance[instance].waiting
    s.request[request].next_waiting = first
    s.instance[instance].waiting = request
    if first < 0:
        s.instance[instance].last_waiting = request


@part
def take_out(row, count, request):
    """Take a request out of a row that keeps its order."""
    kept = 0
    for place in range(count):
        if row[place] != request:
            row[kept] = row[place]
            kept += 1
