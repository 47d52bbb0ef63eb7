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
from smetric_model.simulate._world import BUSY, IDLE
from smetric_model.simulate.steps import prefill_ticks

__all__ = ["release_peer", "start_peer_fetch"]

_FETCHED = 2 << KIND


@part
def _best(p, request, instance):
    """Other instance with the longest hit (in ``s.hits``); of equals the same node's, the next."""
    s, w = tables(p)
    count = w.fabric.prefill_instances
    all_hits(p, request, count)
    best, near = -1, False
    for k in range(1, count):
        other = (instance + k) % count
        here = w.instance[other].node == w.instance[instance].node
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
    size = fetched / w.engine.block_tokens * w.instance[instance].block_bytes
    here, there = w.instance[instance].node, w.instance[source].node
    peer_bytes_per_s = w.instance[instance].peer_bytes_per_s
    direct = here == there and peer_bytes_per_s > 0.0
    work = 0.0
    if direct:
        seconds = size / peer_bytes_per_s
    else:
        flows = s.link[2 * w.fabric.nodes + instance].flows
        seconds = size / (w.instance[instance].pcie_bytes_per_s / (flows + 1))
        if here != there:
            blocks = (fetched + w.engine.block_tokens - 1) // w.engine.block_tokens
            pace = BUSY if computing(p, instance) else IDLE
            work = w.transfer_work[w.instance[instance].kind, pace, blocks]
            seconds = max(seconds, work / transfer_rate(p, there, here))
    if w.fabric.recompute_if_faster:
        model, budget = w.model[w.instance[instance].kind], w.instance[instance].token_budget
        recompute = prefill_ticks(model, fetched, local, budget)
        if seconds * 1e12 + w.instance[instance].fixed_fetch_ticks > recompute:
            return False
    if s.out[request].first_token < 0:
        s.out[request].fetch_start = now
    if direct:
        s.request[request].legs = 0
        due = now + math.ceil(seconds * 1e12) + w.instance[instance].fixed_fetch_ticks
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
