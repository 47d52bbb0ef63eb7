"""Compiled admission: what of a prompt is cached, fetched or computed; and ends of transfers."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._caches import admit_path
from smetric_model.simulate._eviction import use_is_over
from smetric_model.simulate._heaps import KIND, push_event
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import (
    advance_nics,
    advance_pcie,
    end_transfer,
    nic_rate,
    pop_flow,
    schedule_nics,
    schedule_pcie,
    start_nic,
    start_pcie,
)
from smetric_model.simulate._peers import start_peer_fetch
from smetric_model.simulate._pieces import pieces_hit, pieces_touch
from smetric_model.simulate._pools import computing
from smetric_model.simulate._state import ADMITTED
from smetric_model.simulate._store import global_hit, global_touch
from smetric_model.simulate._writes import nic_work, write_back
from smetric_model.simulate.steps import prefill_ticks

__all__ = ["admit", "is_sent", "on_link"]

_FETCHED = 2 << KIND


@part
def is_sent(p, request):
    """Whether KV that is coming goes to the decode pool."""
    s, w = tables(p)
    pools = w.fabric.prefill_instances < w.fabric.instances
    return pools and s.out[request].first_token >= 0


@part
def _usable(p, blocks, prompt):
    _, w = tables(p)
    tokens = min(blocks * w.engine.cache_block_tokens, prompt - 1)
    return tokens // w.engine.block_tokens * w.engine.block_tokens


@part
def admit(p, instance, request, now):
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
def on_link(p, link, now):
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
        if not is_sent(p, request):
            due += w.instance[s.out[request].instance].fixed_fetch_ticks
        s.request[request].due = due
        push_event(p, due, _FETCHED + request)
