"""Compiled failures: an instance loses its requests and its cache, a node its share of the store.

The rules are those of :mod:`smetric_model.simulate.reference_faults`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._caches import account, drop_cache
from smetric_model.simulate._heaps import stop_timer
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import overlap
from smetric_model.simulate._runs import settle_run
from smetric_model.simulate._state import AVAILABLE, GLOBAL_CAPACITY, NODES_UP, NOWHERE
from smetric_model.simulate._store import shrink_stored
from smetric_model.simulate._tries import end_try
from smetric_model.simulate.faults import DOWN, HIDDEN, NODE_BACK, NODE_LOST, SEEN, UP, lies_on
from smetric_model.simulate.inputs import BLIND, FAILED

__all__ = ["on_fault"]


@part
def on_fault(p, entry, now):
    """Let happen what fails, or is back."""
    s, w = tables(p)
    what, where = w.faults[entry].what, w.faults[entry].where
    if what == DOWN:
        _fail(p, where, now)
    elif what == UP:
        s.instance[where].down = 0
    elif what == HIDDEN:
        s.available[where] = False
        s.count[AVAILABLE] -= 1
        if w.signals.hit_index == BLIND:
            for row in range(w.signals.replicas * w.nodes.size):
                s.seen[row * w.fabric.prefill_instances + where] = 0
    elif what == SEEN:
        s.available[where] = True
        s.count[AVAILABLE] += 1
    else:
        s.count[NODES_UP] += 1 if what == NODE_BACK else -1
        s.count[GLOBAL_CAPACITY] = w.fabric.global_blocks * s.count[NODES_UP] // w.fabric.nodes
        if what == NODE_LOST:
            _lose_share(p, where)


@part
def _fail(p, instance, now):
    s, w = tables(p)
    settle_run(p, instance, now)
    if s.instance[instance].step_start >= 0:
        s.instance[instance].busy_ticks += overlap(p, s.instance[instance].step_start, now)
        s.instance[instance].step_start = -1
        stop_timer(p, instance)
    s.instance[instance].down = 1
    for request in range(w.requests.size):
        if (
            s.out[request].instance == instance
            and s.request[request].stage != NOWHERE
            and s.out[request].done < 0
        ):
            end_try(p, request, FAILED, now)
    drop_cache(p, instance, now)
    account(p, instance, now)


@part
def _lose_share(p, failed):
    """Take a node's blocks out of the global tier, and what lies behind them in their paths."""
    s, w = tables(p)
    first = 0  # number of the node's first block
    for node in range(w.nodes.size):
        size = w.nodes[node].end - w.nodes[node].start
        above = w.nodes[node].parent
        kept = 0
        if above < 0 or s.intact[above]:
            while kept < s.store[node].stored and lies_on(first + kept, w.fabric.nodes) != failed:
                kept += 1
        s.intact[node] = kept == size
        if kept < s.store[node].stored:
            shrink_stored(p, node, kept)
        first += size
