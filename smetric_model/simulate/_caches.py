"""Compiled KV caches: per instance and global, as lists of radix nodes in order of use.

What an instance holds of a node (a number of blocks, from the node's beginning), who pins it and its
place in the list of unused nodes stands in a *slot*; ``slot[node · instances + instance]`` says
which, so that the instances' slots of one node lie side by side for the router.  A path leaves the
list as a whole and returns leaf first, so the list's order is tail first among equals, and what is
held of a path is always a prefix of it.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._jit import jit
from smetric_model.simulate._state import (
    EVICTED,
    FREE_SLOT,
    GLOBAL_HEAD,
    GLOBAL_TAIL,
    GLOBAL_USED,
)

__all__ = [
    "admit_path",
    "all_hits",
    "global_hit",
    "global_touch",
    "global_write",
    "insert_path",
    "release_path",
]


@jit
def all_hits(s, nodes, request, instances):
    """Blocks of the request's path that each instance holds, into ``s.hits``."""
    s.hits[:] = 0
    depth = 0
    node = nodes.leaf[request]
    while node >= 0:
        s.path[depth] = node
        depth += 1
        node = nodes.parent[node]
    active = instances
    reach = nodes.blocks[request]
    for level in range(depth - 1, -1, -1):
        node = s.path[level]
        cover = min(nodes.end[node], reach) - nodes.start[node]
        base = node * instances
        kept = 0
        for k in range(active):
            instance = k if level == depth - 1 else s.active[k]
            slot = s.slot[base + instance]
            if slot >= 0:
                held = min(s.slot_held[slot], cover)
                s.hits[instance] += held
                if held == cover:
                    s.active[kept] = instance
                    kept += 1
        active = kept
        if active == 0:
            break


@jit
def _unlink(s, instance, slot):
    older, newer = s.slot_older[slot], s.slot_newer[slot]
    if older >= 0:
        s.slot_newer[older] = newer
    else:
        s.oldest[instance] = newer
    if newer >= 0:
        s.slot_older[newer] = older
    else:
        s.newest[instance] = older


@jit
def _free_slot(s, instances, instance, slot):
    s.slot[s.slot_node[slot] * instances + instance] = -1
    s.slot_newer[slot] = s.count[FREE_SLOT]
    s.count[FREE_SLOT] = slot


@jit
def admit_path(s, nodes, request, instance, instances, block_tokens, total):
    """Pin the path and reserve KV for the rest of ``total`` tokens.

    Returns the blocks held of the path, or −1 (and changes nothing) where it does not fit.
    """
    held = unused = 0
    node = nodes.leaf[request]
    while node >= 0:
        slot = s.slot[node * instances + instance]
        if slot >= 0:
            held += s.slot_held[slot]
            if s.slot_pins[slot] == 0:
                unused += s.slot_held[slot]
        node = nodes.parent[node]
    need = total - held * block_tokens
    if need > s.free[instance] + s.evictable[instance] - unused * block_tokens:
        return -1
    node = nodes.leaf[request]
    while node >= 0:
        slot = s.slot[node * instances + instance]
        if slot < 0:
            slot = s.count[FREE_SLOT]
            s.count[FREE_SLOT] = s.slot_newer[slot]
            s.slot[node * instances + instance] = slot
            s.slot_node[slot] = node
            s.slot_held[slot] = 0
            s.slot_pins[slot] = 1
        else:
            if s.slot_pins[slot] == 0:
                _unlink(s, instance, slot)
            s.slot_pins[slot] += 1
        node = nodes.parent[node]
    s.evictable[instance] -= unused * block_tokens
    while s.free[instance] < need:
        slot = s.oldest[instance]
        blocks = (need - s.free[instance] + block_tokens - 1) // block_tokens
        blocks = min(blocks, s.slot_held[slot])
        s.slot_held[slot] -= blocks
        s.free[instance] += blocks * block_tokens
        s.evictable[instance] -= blocks * block_tokens
        s.count[EVICTED] += blocks
        if s.slot_held[slot] == 0:
            _unlink(s, instance, slot)
            _free_slot(s, instances, instance, slot)
    s.free[instance] -= need
    s.private[request] = need
    return held


@jit
def insert_path(s, nodes, request, instance, instances):
    """Make the computed blocks of a (pinned) path reusable; returns how many are new."""
    added = 0
    reach = nodes.blocks[request]
    node = nodes.leaf[request]
    while node >= 0:
        slot = s.slot[node * instances + instance]
        cover = min(nodes.end[node], reach) - nodes.start[node]
        if s.slot_held[slot] < cover:
            added += cover - s.slot_held[slot]
            s.slot_held[slot] = cover
        node = nodes.parent[node]
    return added


@jit
def release_path(s, nodes, request, instance, instances, block_tokens):
    """Give back the KV of a completed request; its blocks stay, the last one the oldest."""
    s.free[instance] += s.private[request]
    node = nodes.leaf[request]
    while node >= 0:
        slot = s.slot[node * instances + instance]
        s.slot_pins[slot] -= 1
        if s.slot_pins[slot] == 0:
            if s.slot_held[slot] == 0:
                _free_slot(s, instances, instance, slot)
            else:
                newest = s.newest[instance]
                s.slot_older[slot] = newest
                s.slot_newer[slot] = -1
                if newest >= 0:
                    s.slot_newer[newest] = slot
                else:
                    s.oldest[instance] = slot
                s.newest[instance] = slot
                s.evictable[instance] += s.slot_held[slot] * block_tokens
        node = nodes.parent[node]


@jit
def global_hit(s, nodes, request):
    """Blocks of the path that the global tier holds."""
    held = 0
    reach = nodes.blocks[request]
    node = nodes.leaf[request]
    while node >= 0:
        held += min(s.stored[node], min(nodes.end[node], reach) - nodes.start[node])
        node = nodes.parent[node]
    return held


@jit
def _global_unlink(s, node):
    older, newer = s.older[node], s.newer[node]
    if older >= 0:
        s.newer[older] = newer
    else:
        s.count[GLOBAL_HEAD] = newer
    if newer >= 0:
        s.older[newer] = older
    else:
        s.count[GLOBAL_TAIL] = older


@jit
def _global_append(s, node):
    newest = s.count[GLOBAL_TAIL]
    s.older[node] = newest
    s.newer[node] = -1
    if newest >= 0:
        s.newer[newest] = node
    else:
        s.count[GLOBAL_HEAD] = node
    s.count[GLOBAL_TAIL] = node


@jit
def global_touch(s, nodes, request):
    """Move what is stored of a path to the end of the list."""
    node = nodes.leaf[request]
    while node >= 0:
        if s.stored[node] > 0:
            _global_unlink(s, node)
            _global_append(s, node)
        node = nodes.parent[node]


@jit
def global_write(s, nodes, request, capacity):
    """Store a path and touch it; returns the blocks that were missing."""
    written = 0
    reach = nodes.blocks[request]
    node = nodes.leaf[request]
    while node >= 0:
        cover = min(nodes.end[node], reach) - nodes.start[node]
        if s.stored[node] > 0:
            _global_unlink(s, node)
        if s.stored[node] < cover:
            written += cover - s.stored[node]
            s.stored[node] = cover
        _global_append(s, node)
        node = nodes.parent[node]
    s.count[GLOBAL_USED] += written
    while s.count[GLOBAL_USED] > capacity:
        node = s.count[GLOBAL_HEAD]
        blocks = min(s.stored[node], s.count[GLOBAL_USED] - capacity)
        s.stored[node] -= blocks
        s.count[GLOBAL_USED] -= blocks
        if s.stored[node] == 0:
            _global_unlink(s, node)
    return written
