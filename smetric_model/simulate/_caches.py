"""Compiled KV caches of the instances, as radix nodes.

What an instance holds of a node (a number of blocks, from the node's beginning), who pins it and
its place in the list of unused nodes stands in a *slot*; ``slot[node · instances + instance]`` says
which, so that the instances' slots of one node lie side by side for the router.  A path leaves the
line for eviction as a whole and returns leaf first, so that it is tail first among equals, and what
is held of a path is always a prefix of it.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._eviction import evicted_first, link, unlink
from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._links import overlap
from smetric_model.simulate._state import (
    EVICTED,
    FREE_SLOT,
    INDEX_END,
    INDEX_NEXT,
    INSERTED,
    VICTIMS,
)
from smetric_model.simulate.inputs import BLIND, DEAD_FIRST, DELAYED

__all__ = [
    "account",
    "add_held",
    "admit_path",
    "all_hits",
    "catch_up_index",
    "drop_cache",
    "insert_path",
    "pin_nodes",
    "place_blindly",
    "release_path",
    "seen_hits",
    "take",
    "unpin_nodes",
]


@part
def all_hits(p, request, instances):
    """Blocks of the request's path that each instance holds, into ``s.hits``."""
    s, w = tables(p)
    s.hits[:] = 0
    depth = 0
    node = w.requests[request].leaf
    while node >= 0:
        s.path[depth] = node
        depth += 1
        node = w.nodes[node].parent
    active = instances
    reach = w.requests[request].blocks
    for level in range(depth - 1, -1, -1):
        node = s.path[level]
        cover = min(w.nodes[node].end, reach) - w.nodes[node].start
        base = node * instances
        kept = 0
        for k in range(active):
            instance = k if level == depth - 1 else s.active[k]
            slot = s.slot[base + instance]
            if slot >= 0:
                held = min(s.slots[slot].held, cover)
                s.hits[instance] += held
                if held == cover:
                    s.active[kept] = instance
                    kept += 1
        active = kept
        if active == 0:
            break


@part
def seen_hits(p, request, replica, instances):
    """Blocks of the path that a router believes each instance to hold, into ``s.hits``."""
    s, w = tables(p)
    base = replica * w.nodes.size * instances if w.signals.hit_index == BLIND else 0
    for instance in range(instances):
        hit = 0
        # what is believed of a path is a prefix of it, so the sum over its nodes is the hit
        reach = w.requests[request].blocks
        node = w.requests[request].leaf
        while node >= 0:
            cover = min(w.nodes[node].end, reach) - w.nodes[node].start
            hit += min(s.seen[base + node * instances + instance], cover)
            node = w.nodes[node].parent
        s.hits[instance] = hit


@part
def place_blindly(p, request, replica, instance, instances):
    """Note what a router placed where; it never learns of evictions."""
    s, w = tables(p)
    base = replica * w.nodes.size * instances
    reach = w.requests[request].blocks
    node = w.requests[request].leaf
    while node >= 0:
        key = base + node * instances + instance
        cover = min(w.nodes[node].end, reach) - w.nodes[node].start
        s.seen[key] = max(s.seen[key], cover)
        node = w.nodes[node].parent


@part
def _log_index(p, now, key, held):
    s, _ = tables(p)
    entry = s.count[INDEX_END]
    s.count[INDEX_END] += 1
    s.index_log[entry].tick = now
    s.index_log[entry].key = key
    s.index_log[entry].held = held


@part
def catch_up_index(p, tick):
    """Let the routers see what the caches held at ``tick``."""
    s, _ = tables(p)
    entry = s.count[INDEX_NEXT]
    while entry < s.count[INDEX_END] and s.index_log[entry].tick <= tick:
        s.seen[s.index_log[entry].key] = s.index_log[entry].held
        entry += 1
    s.count[INDEX_NEXT] = entry


@part
def _free_slot(p, instances, instance, slot):
    s, _ = tables(p)
    s.slot[s.slots[slot].node * instances + instance] = -1
    s.slots[slot].newer = s.count[FREE_SLOT]
    s.count[FREE_SLOT] = slot


@part
def admit_path(p, request, instance, instances, block_tokens, total, now):
    """Pin the path and reserve KV for the rest of ``total`` tokens.

    Returns the blocks held of the path, or −1 (and changes nothing) where it does not fit.
    """
    s, w = tables(p)
    held = unused = 0
    node = w.requests[request].leaf
    while node >= 0:
        slot = s.slot[node * instances + instance]
        if slot >= 0:
            held += s.slots[slot].held
            if s.slots[slot].pins == 0:
                unused += s.slots[slot].held
        node = w.nodes[node].parent
    need = total - held * block_tokens
    if need > s.instance[instance].free + s.instance[instance].evictable - unused * block_tokens:
        return -1
    node = w.requests[request].leaf
    while node >= 0:
        slot = s.slot[node * instances + instance]
        if slot < 0:
            slot = s.count[FREE_SLOT]
            s.count[FREE_SLOT] = s.slots[slot].newer
            s.slot[node * instances + instance] = slot
            s.slots[slot].node = node
            s.slots[slot].held = 0
            s.slots[slot].pins = 1
        else:
            if s.slots[slot].pins == 0:
                unlink(p, instance, slot)
            s.slots[slot].pins += 1
        node = w.nodes[node].parent
    s.instance[instance].evictable -= unused * block_tokens
    _evict(p, instance, instances, need, block_tokens, now)
    s.instance[instance].free -= need
    s.request[request].private = need
    return held


@part
def take(p, instance, need, now):
    """Reserve KV of an instance; False (and nothing changes) where there is not so much."""
    s, w = tables(p)
    if need > s.instance[instance].free + s.instance[instance].evictable:
        return False
    block_tokens = w.engine.cache_block_tokens
    _evict(p, instance, w.fabric.prefill_instances, need, block_tokens, now)
    s.instance[instance].free -= need
    return True


@part
def _evict(p, instance, instances, need, block_tokens, now):
    """Evict what nobody uses until ``need`` tokens are free."""
    s, w = tables(p)
    s.count[VICTIMS] = 0
    while s.instance[instance].free < need:
        slot = evicted_first(p, instance)
        blocks = (need - s.instance[instance].free + block_tokens - 1) // block_tokens
        blocks = min(blocks, s.slots[slot].held)
        s.slots[slot].held -= blocks
        s.instance[instance].free += blocks * block_tokens
        s.instance[instance].evictable -= blocks * block_tokens
        s.count[EVICTED] += blocks
        if w.signals.hit_index == DELAYED:
            _log_index(p, now, s.slots[slot].node * instances + instance, s.slots[slot].held)
        if w.tiers.write_back:
            _note_victims(p, s.slots[slot].node, s.slots[slot].held, blocks)
        if s.slots[slot].held == 0:
            unlink(p, instance, slot)
            _free_slot(p, instances, instance, slot)


@part
def _note_victims(p, node, kept, blocks):
    """Note what has been evicted, for the global tier."""
    s, w = tables(p)
    entry = s.count[VICTIMS]
    s.count[VICTIMS] += 1
    s.victim[entry].node = node
    s.victim[entry].low = w.nodes[node].start + kept
    s.victim[entry].high = w.nodes[node].start + kept + blocks


@part
def pin_nodes(p, request, instance, instances, reach, block_tokens):
    """Pin the nodes that hold the first ``reach`` blocks of a path."""
    s, w = tables(p)
    node = w.requests[request].leaf
    while node >= 0:
        if w.nodes[node].start < reach:
            slot = s.slot[node * instances + instance]
            if s.slots[slot].pins == 0:
                unlink(p, instance, slot)
                s.instance[instance].evictable -= s.slots[slot].held * block_tokens
            s.slots[slot].pins += 1
        node = w.nodes[node].parent


@part
def insert_path(p, request, instance, instances, reach, now):
    """Make the first ``reach`` blocks of a (pinned) path reusable; returns how many are new."""
    s, w = tables(p)
    added = 0
    node = w.requests[request].leaf
    while node >= 0:
        slot = s.slot[node * instances + instance]
        cover = min(w.nodes[node].end, reach) - w.nodes[node].start
        if s.slots[slot].held < cover:
            added += cover - s.slots[slot].held
            s.slots[slot].held = cover
            if w.signals.hit_index == DELAYED:
                _log_index(p, now, node * instances + instance, cover)
        node = w.nodes[node].parent
    s.count[INSERTED] += added
    return added


@part
def release_path(p, request, instance, instances, block_tokens):
    """Give back the KV of a completed request; its blocks stay, the last one the oldest."""
    s, w = tables(p)
    s.instance[instance].free += s.request[request].private
    node = w.requests[request].leaf
    while node >= 0:
        slot = s.slot[node * instances + instance]
        s.slots[slot].pins -= 1
        if s.slots[slot].pins == 0:
            if s.slots[slot].held == 0:
                _free_slot(p, instances, instance, slot)
            else:
                link(p, instance, slot)
                s.instance[instance].evictable += s.slots[slot].held * block_tokens
        node = w.nodes[node].parent


@part
def unpin_nodes(p, request, instance, instances, reach, block_tokens):
    """Undo :func:`pin_nodes`: a use has ended."""
    s, w = tables(p)
    node = w.requests[request].leaf
    while node >= 0:
        if w.nodes[node].start < reach:
            slot = s.slot[node * instances + instance]
            s.slots[slot].pins -= 1
            if s.slots[slot].pins == 0:
                link(p, instance, slot)
                s.instance[instance].evictable += s.slots[slot].held * block_tokens
        node = w.nodes[node].parent


@part
def drop_cache(p, instance, now):
    """Lose everything that an instance caches, when nothing is in use."""
    s, w = tables(p)
    instances = w.fabric.prefill_instances
    slot = s.instance[instance].oldest
    while slot >= 0:
        newer = s.slots[slot].newer
        if w.signals.hit_index == DELAYED:
            _log_index(p, now, s.slots[slot].node * instances + instance, 0)
        if w.tiers.local_eviction == DEAD_FIRST:
            s.dead[slot] = False
        _free_slot(p, instances, instance, slot)
        slot = newer
    s.instance[instance].last_dead = -1
    s.instance[instance].oldest = -1
    s.instance[instance].newest = -1
    s.instance[instance].free += s.instance[instance].evictable
    s.instance[instance].evictable = 0


@part
def account(p, instance, now):
    """Add up the KV of an instance's requests over time, when it has changed."""
    s, w = tables(p)
    pool_tokens = w.instance[instance].pool_tokens
    held = pool_tokens - s.instance[instance].free - s.instance[instance].evictable
    if held != s.instance[instance].held:
        add_held(p, instance, now)
        s.instance[instance].held = held
        s.instance[instance].held_since = now


@part
def add_held(p, instance, now):
    """Add up the KV of an instance's requests until now."""
    s, _ = tables(p)
    inside = overlap(p, s.instance[instance].held_since, now)
    s.instance[instance].held_token_ticks += float(s.instance[instance].held) * float(inside)
