"""Compiled fetches from the GPU memory of other instances, where what is read is pinned meanwhile.

The rules are those of :mod:`smetric_model.simulate.reference_peers`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from smetric_model.simulate._caches import account, all_hits, pin_nodes, unpin_nodes
from smetric_model.simulate._heaps import KIND, push_event
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import start_pcie, start_transfer, transfer_rate
from smetric_model.simulate._pools import computing
from smetric_model.simulate.steps import prefill_ticks

__all__ = ["release_peer", "start_peer_fetch"]

_FETCHED = 2 << KIND


@part
def _best(p, request, instance):
    """Other instance with the longest hit (in ``s.hits``); of equals the same node's, the next."""
    s, w = tables(p)
    count, per_node = w.fabric.prefill_instances, w.fabric.instances_per_node
    all_hits(p, request, count)
    best, near = -1, False
    for k in range(1, count):
        other = (instance + k) % count
        here = other // per_node == instance // per_node
        if (
            best < 0
            or s.hits[other] > s.hits[best]
            or (s.hits[other] == s.hits[best] and here and not near)
        ):
            best, near = other, here
    return best


@part
def start_peer_fetch(p, instance, request, known, local, most, now):
    """Fetch from another instance what goes beyond ``known`` blocks; returns tokens, or 0.

    ``most`` are the tokens of the prompt that any hit can save.
    """
    s, w = tables(p)
    source = _best(p, request, instance)
    if source < 0:
        return 0
    hit = s.hits[source]
    if hit <= known:
        return 0
    saved = min(hit * w.engine.cache_block_tokens, most)
    fetched = saved // w.engine.block_tokens * w.engine.block_tokens - local
    if fetched <= 0 or not _start(p, instance, source, request, local, fetched, now):
        return 0
    s.reading[request].source = source
    s.reading[request].pinned = hit
    pin_nodes(p, request, source, w.fabric.prefill_instances, hit, w.engine.cache_block_tokens)
    account(p, source, now)
    return fetched


@part
def _start(p, instance, source, request, local, fetched, now):
    """Start a fetch, unless computing is faster."""
    s, w = tables(p)
    size = fetched / w.engine.block_tokens * w.fabric.block_bytes
    here, there = instance // w.fabric.instances_per_node, source // w.fabric.instances_per_node
    direct = here == there and w.tiers.peer_bytes_per_s > 0.0
    work = 0.0
    if direct:
        seconds = size / w.tiers.peer_bytes_per_s
    else:
        flows = s.link[2 * w.fabric.nodes + instance].flows
        seconds = size / (w.fabric.pcie_bytes_per_s / (flows + 1))
        if here != there:
            blocks = (fetched + w.engine.block_tokens - 1) // w.engine.block_tokens
            work = w.fabric.transfer_work_idle[blocks]
            if computing(p, instance):
                work = w.fabric.transfer_work_busy[blocks]
            seconds = max(seconds, work / transfer_rate(p, there, here))
    if w.fabric.recompute_if_faster:
        recompute = prefill_ticks(w.model, fetched, local, w.engine.token_budget)
        if seconds * 1e12 + w.fabric.fixed_fetch_ticks > recompute:
            return False
    if s.out[request].first_token < 0:
        s.out[request].fetch_start = now
    if direct:
        s.request[request].legs = 0
        due = now + math.ceil(seconds * 1e12) + w.fabric.fixed_fetch_ticks
        s.request[request].due = due
        push_event(p, due, _FETCHED + request)
        return True
    s.request[request].legs = 1
    start_pcie(p, instance, size, request, now)
    if here != there:
        s.request[request].legs = 2
        start_transfer(p, request, there, here, work, now)
    return True


@part
def release_peer(p, request, now):
    """Let go of what a fetch has read, or will not read; returns the source, −1 if none."""
    s, w = tables(p)
    if not w.tiers.peer_fetch:
        return -1
    source, reach = s.reading[request].source, s.reading[request].pinned
    if source < 0:
        return -1
    s.reading[request].source = -1
    unpin_nodes(p, request, source, w.fabric.prefill_instances, reach, w.engine.cache_block_tokens)
    account(p, source, now)
    return source
