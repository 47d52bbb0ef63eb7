"""Compiled order of eviction of the local tiers: lists in order of use and of death, or heaps.

A list begins with the demoted slots (of finished sessions, the last of them is ``last_dead``), then
come the others in order of use.  A clairvoyant tier keeps a heap an instance: the node whose next
use is latest comes first, of several the one with the largest number, which is the deepest where
they lie on one path.  Next uses only move away, so that a slot only moves towards the top.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from smetric_model.simulate._jit import part, tables
from smetric_model.simulate._pieces import pieces_demote, pieces_later
from smetric_model.simulate._store import global_demote
from smetric_model.simulate.inputs import CLAIRVOYANT, DEAD_FIRST

__all__ = ["evicted_first", "link", "session_arrived", "session_over", "unlink", "use_is_over"]


@part
def link(p, instance, slot):
    """Put a slot in line for eviction, behind all others in use order."""
    s, w = tables(p)
    if w.tiers.local_eviction == CLAIRVOYANT:
        place = s.instance[instance].unused
        s.instance[instance].unused += 1
        _rise(p, instance, slot, place)
        return
    newest = s.instance[instance].newest
    s.slots[slot].older = newest
    s.slots[slot].newer = -1
    if newest >= 0:
        s.slots[newest].newer = slot
    else:
        s.instance[instance].oldest = slot
    s.instance[instance].newest = slot


@part
def unlink(p, instance, slot):
    """Take a slot out of the line."""
    s, w = tables(p)
    if w.tiers.local_eviction == CLAIRVOYANT:
        _take_out(p, instance, slot)
        return
    older, newer = s.slots[slot].older, s.slots[slot].newer
    if w.tiers.local_eviction == DEAD_FIRST:
        s.dead[slot] = False
        if slot == s.instance[instance].last_dead:
            s.instance[instance].last_dead = older
    if older >= 0:
        s.slots[older].newer = newer
    else:
        s.instance[instance].oldest = newer
    if newer >= 0:
        s.slots[newer].older = older
    else:
        s.instance[instance].newest = older


@part
def evicted_first(p, instance):
    """Slot that is evicted next."""
    s, w = tables(p)
    if w.tiers.local_eviction == CLAIRVOYANT:
        return s.unused_heap[instance, 0]
    return s.instance[instance].oldest


# --- sessions that are over -----------------------------------------------------------------------


@part
def session_arrived(p, request):
    """Note that a session under way uses the request's path."""
    s, w = tables(p)
    if w.root.size == 0:
        return
    node = w.requests[request].leaf
    while node >= 0:
        s.users[node] += 1
        node = w.nodes[node].parent


@part
def session_over(p, request, instances):
    """After a session's last request, demote what only it has used."""
    s, w = tables(p)
    if w.root.size == 0:
        return
    root = w.root[request]
    s.left[root] -= 1
    if s.left[root] > 0:
        return
    turn = root
    while turn >= 0:
        node = w.requests[turn].leaf
        while node >= 0:
            s.users[node] -= 1
            if s.users[node] == 0:
                if w.tiers.local_eviction == DEAD_FIRST:
                    for instance in range(instances):
                        slot = s.slot[node * instances + instance]
                        if slot >= 0 and s.slots[slot].pins == 0:
                            _demote(p, instance, slot)
                if w.tiers.global_eviction == DEAD_FIRST:
                    if w.tiers.pieces:
                        pieces_demote(p, node)
                    else:
                        global_demote(p, node)
            node = w.nodes[node].parent
        turn = w.requests[turn].following


@part
def _demote(p, instance, slot):
    """Put a slot behind those demoted before, ahead of all others; a demoted one stays."""
    s, _ = tables(p)
    if s.dead[slot]:
        return
    unlink(p, instance, slot)
    older = s.instance[instance].last_dead
    newer = s.slots[older].newer if older >= 0 else s.instance[instance].oldest
    s.slots[slot].older = older
    s.slots[slot].newer = newer
    if older >= 0:
        s.slots[older].newer = slot
    else:
        s.instance[instance].oldest = slot
    if newer >= 0:
        s.slots[newer].older = slot
    else:
        s.instance[instance].newest = slot
    s.instance[instance].last_dead = slot
    s.dead[slot] = True


# --- next uses ------------------------------------------------------------------------------------


@part
def use_is_over(p, request, instances):
    """Note that a request uses its blocks now, or never: a later one needs them, or none."""
    s, w = tables(p)
    if w.use_first.size == 0:
        return
    s.passed[request] = True
    node = w.requests[request].leaf
    while node >= 0:
        if s.next_use[node] == request:
            at, end = s.use_at[node] + 1, w.use_first[node + 1]
            while at < end and s.passed[w.uses[at]]:
                at += 1
            s.use_at[node] = at
            s.next_use[node] = w.uses[at] if at < end else w.requests.size
            if w.tiers.local_eviction == CLAIRVOYANT:
                for instance in range(instances):
                    slot = s.slot[node * instances + instance]
                    if slot >= 0 and s.slots[slot].pins == 0:
                        _rise(p, instance, slot, s.place[slot])
            if w.tiers.global_eviction == CLAIRVOYANT:
                pieces_later(p, node)
        node = w.nodes[node].parent


@part
def _sooner(p, one, two):
    """Whether a slot is evicted before another one."""
    s, _ = tables(p)
    a, b = s.slots[one].node, s.slots[two].node
    return s.next_use[a] > s.next_use[b] or (s.next_use[a] == s.next_use[b] and a > b)


@part
def _rise(p, instance, slot, place):
    s, _ = tables(p)
    while place > 0:
        above = (place - 1) >> 1
        other = s.unused_heap[instance, above]
        if not _sooner(p, slot, other):
            break
        s.unused_heap[instance, place] = other
        s.place[other] = place
        place = above
    s.unused_heap[instance, place] = slot
    s.place[slot] = place


@part
def _take_out(p, instance, slot):
    s, _ = tables(p)
    place = s.place[slot]
    s.instance[instance].unused -= 1
    size = s.instance[instance].unused
    last = s.unused_heap[instance, size]
    if last == slot:
        return
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _sooner(
            p, s.unused_heap[instance, below + 1], s.unused_heap[instance, below]
        ):
            below += 1
        other = s.unused_heap[instance, below]
        if _sooner(p, last, other):
            break
        s.unused_heap[instance, place] = other
        s.place[other] = place
        place = below
    _rise(p, instance, last, place)
