"""Compiled global tier: a list of radix nodes, each stored from its beginning on.

That is all there is while computed prompts are written through and the oldest goes first: whole
prefixes are stored.  ``_pieces.py`` has the tier for what else there is.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._state import (
    GLOBAL_DEAD,
    GLOBAL_EVICTED,
    GLOBAL_HEAD,
    GLOBAL_TAIL,
    GLOBAL_USED,
    GLOBAL_WRITTEN,
)
from smetric_model.simulate.inputs import DEAD_FIRST

__all__ = ["global_demote", "global_hit", "global_touch", "global_write", "shrink_stored"]


@part
def global_hit(p, request):
    """Blocks of the path that the global tier holds."""
    s, w = tables(p)
    held = 0
    reach = w.requests[request].blocks
    node = w.requests[request].leaf
    while node >= 0:
        held += min(s.store[node].stored, min(w.nodes[node].end, reach) - w.nodes[node].start)
        node = w.nodes[node].parent
    return held


@part
def _global_unlink(p, node):
    s, w = tables(p)
    older, newer = s.store[node].older, s.store[node].newer
    if w.tiers.global_eviction == DEAD_FIRST:
        s.store_dead[node] = False
        if node == s.count[GLOBAL_DEAD]:
            s.count[GLOBAL_DEAD] = older
    if older >= 0:
        s.store[older].newer = newer
    else:
        s.count[GLOBAL_HEAD] = newer
    if newer >= 0:
        s.store[newer].older = older
    else:
        s.count[GLOBAL_TAIL] = older


@part
def _global_append(p, node):
    s, _ = tables(p)
    newest = s.count[GLOBAL_TAIL]
    s.store[node].older = newest
    s.store[node].newer = -1
    if newest >= 0:
        s.store[newest].newer = node
    else:
        s.count[GLOBAL_HEAD] = node
    s.count[GLOBAL_TAIL] = node


@part
def global_demote(p, node):
    """Put a node behind those demoted before, ahead of all others; a demoted one stays."""
    s, _ = tables(p)
    if s.store[node].stored == 0 or s.store_dead[node]:
        return
    _global_unlink(p, node)
    older = s.count[GLOBAL_DEAD]
    newer = s.store[older].newer if older >= 0 else s.count[GLOBAL_HEAD]
    s.store[node].older = older
    s.store[node].newer = newer
    if older >= 0:
        s.store[older].newer = node
    else:
        s.count[GLOBAL_HEAD] = node
    if newer >= 0:
        s.store[newer].older = node
    else:
        s.count[GLOBAL_TAIL] = node
    s.count[GLOBAL_DEAD] = node
    s.store_dead[node] = True


@part
def shrink_stored(p, node, kept):
    """Leave only the first blocks of a node in the global tier."""
    s, _ = tables(p)
    s.count[GLOBAL_USED] -= s.store[node].stored - kept
    s.store[node].stored = kept
    if kept == 0:
        _global_unlink(p, node)


@part
def global_touch(p, request):
    """Move what is stored of a path to the end of the list."""
    s, w = tables(p)
    node = w.requests[request].leaf
    while node >= 0:
        if s.store[node].stored > 0:
            _global_unlink(p, node)
            _global_append(p, node)
        node = w.nodes[node].parent


@part
def global_write(p, request, capacity):
    """Store a path and touch it; returns the blocks that were missing."""
    s, w = tables(p)
    written = 0
    reach = w.requests[request].blocks
    node = w.requests[request].leaf
    while node >= 0:
        cover = min(w.nodes[node].end, reach) - w.nodes[node].start
        if s.store[node].stored > 0:
            _global_unlink(p, node)
        if s.store[node].stored < cover:
            written += cover - s.store[node].stored
            s.store[node].stored = cover
        _global_append(p, node)
        node = w.nodes[node].parent
    s.count[GLOBAL_USED] += written
    s.count[GLOBAL_WRITTEN] += written
    while s.count[GLOBAL_USED] > capacity:
        node = s.count[GLOBAL_HEAD]
        blocks = min(s.store[node].stored, s.count[GLOBAL_USED] - capacity)
        s.store[node].stored -= blocks
        s.count[GLOBAL_USED] -= blocks
        s.count[GLOBAL_EVICTED] += blocks
        if s.store[node].stored == 0:
            _global_unlink(p, node)
    return written
