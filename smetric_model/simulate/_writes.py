"""Compiled writes to the global tier, as far as the links see them."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import advance_nics, cancel_flow, start_nic
from smetric_model.simulate._pieces import pieces_write_victims
from smetric_model.simulate._pools import computing
from smetric_model.simulate._state import GLOBAL_CAPACITY, VICTIMS
from smetric_model.simulate._world import BUSY, IDLE

__all__ = ["nic_work", "start_write", "write_back"]


@part
def nic_work(p, instance, tokens, busy):
    """Line capacity that the remote share of a transfer of an instance takes [bytes]."""
    _, w = tables(p)
    size = (tokens + w.engine.block_tokens - 1) // w.engine.block_tokens
    return w.nic_work[w.instance[instance].kind, BUSY if busy else IDLE, size]


@part
def start_write(p, instance, work, request, now):
    """Start a write; one of the same request that is still under way joins it."""
    s, w = tables(p)
    link = 2 * w.instance[instance].node + 1
    if s.request[request].writing >= 0:
        advance_nics(p, now)
        work += cancel_flow(p, s.request[request].writing, request)
    s.request[request].writing = link
    start_nic(p, link, work, request, now)


@part
def write_back(p, instance, request, now):
    """Write what an instance has just evicted to the global tier."""
    s, w = tables(p)
    if w.fabric.global_blocks == 0 or s.count[VICTIMS] == 0:
        return
    written = pieces_write_victims(p, s.count[VICTIMS], s.count[GLOBAL_CAPACITY])
    if written > 0 and w.fabric.nodes > 1:
        tokens = written * w.engine.cache_block_tokens
        work = nic_work(p, instance, tokens, computing(p, instance))
        start_write(p, instance, work, request, now)
