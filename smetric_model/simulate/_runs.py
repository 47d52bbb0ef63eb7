"""Compiled global tier that may hold any part of a prefix: runs of blocks of radix nodes.

Write-back stores what the instances evict, which is tails first, so that a node's stored blocks
are runs between two depths, listed deepest first.  All runs stand in one list in order of use
(demoted ones first), and within a run the tail goes first; or, where the tier is clairvoyant, nodes
with runs stand in a heap by next use.  Answers are those of a store of single blocks.
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
    RUN_END,
    RUN_FREE,
    STORE_HEAP,
)
from smetric_model.simulate.inputs import CLAIRVOYANT

__all__ = [
    "runs_demote",
    "runs_hit",
    "runs_later",
    "runs_touch",
    "runs_write_path",
    "runs_write_victims",
]


@part
def runs_hit(p, request, held):
    """Blocks of the path that are stored from the ``held``-th on without a gap, and ``held``."""
    s, w = tables(p)
    levels = _path(p, request)
    reach = w.requests[request].blocks
    at = held
    for level in range(levels - 1, -1, -1):
        node = s.path[level]
        upto = min(w.nodes[node].end, reach)
        while at < upto:
            run = s.first_run[node]
            while run >= 0 and s.run[run].low > at:
                run = s.run[run].above
            if run < 0 or s.run[run].high <= at:
                return at
            at = min(s.run[run].high, upto)
    return at


@part
def _path(p, request):
    """Nodes of a request's path into ``s.path``, leaf first; returns how many."""
    s, w = tables(p)
    levels = 0
    node = w.requests[request].leaf
    while node >= 0:
        s.path[levels] = node
        levels += 1
        node = w.nodes[node].parent
    return levels


@part
def _new_run(p, node, low, high, deeper):
    """Make a run, below ``deeper`` in the node's list (−1: the deepest); in no line yet."""
    s, w = tables(p)
    run = s.count[RUN_FREE]
    if run >= 0:
        s.count[RUN_FREE] = s.run[run].above
    else:
        run = s.count[RUN_END]
        s.count[RUN_END] += 1
    s.run[run].node = node
    s.run[run].low = low
    s.run[run].high = high
    s.run[run].dead = 0
    if deeper >= 0:
        s.run[run].above = s.run[deeper].above
        s.run[deeper].above = run
    else:
        if w.tiers.global_eviction == CLAIRVOYANT and s.first_run[node] < 0:
            place = s.count[STORE_HEAP]
            s.count[STORE_HEAP] += 1
            _rise(p, node, place)
        s.run[run].above = s.first_run[node]
        s.first_run[node] = run
    return run


@part
def _drop_run(p, run, deeper):
    """Forget a run that is in no line; ``deeper`` is the one before it in the node's list."""
    s, w = tables(p)
    node, above = s.run[run].node, s.run[run].above
    if deeper >= 0:
        s.run[deeper].above = above
    else:
        s.first_run[node] = above
        if w.tiers.global_eviction == CLAIRVOYANT and above < 0:
            _take_out(p, node)
    s.run[run].above = s.count[RUN_FREE]
    s.count[RUN_FREE] = run


@part
def _insert_after(p, run, older):
    """Put a run into the line behind ``older`` (−1: at its beginning)."""
    s, _ = tables(p)
    newer = s.run[older].newer if older >= 0 else s.count[GLOBAL_HEAD]
    s.run[run].older = older
    s.run[run].newer = newer
    if older >= 0:
        s.run[older].newer = run
    else:
        s.count[GLOBAL_HEAD] = run
    if newer >= 0:
        s.run[newer].older = run
    else:
        s.count[GLOBAL_TAIL] = run


@part
def _unlink(p, run):
    s, _ = tables(p)
    older, newer = s.run[run].older, s.run[run].newer
    if run == s.count[GLOBAL_DEAD]:
        s.count[GLOBAL_DEAD] = older
    s.run[run].dead = 0
    if older >= 0:
        s.run[older].newer = newer
    else:
        s.count[GLOBAL_HEAD] = newer
    if newer >= 0:
        s.run[newer].older = older
    else:
        s.count[GLOBAL_TAIL] = older


@part
def _cut_off_tail(p, run, high, deeper):
    """Split off what a run has from depth ``high`` on: it stays in line just ahead of the rest."""
    s, _ = tables(p)
    tail = _new_run(p, s.run[run].node, high, s.run[run].high, deeper)
    s.run[tail].dead = s.run[run].dead
    _insert_after(p, tail, s.run[run].older)
    s.run[run].high = high
    return tail


@part
def _touch(p, node, low, high):
    """Move what is stored between two depths to the end of the line, tail first."""
    s, _ = tables(p)
    deeper, run = -1, s.first_run[node]
    while run >= 0 and s.run[run].high > low:
        if s.run[run].low < high:
            if s.run[run].high > high:
                deeper = _cut_off_tail(p, run, high, deeper)
            if s.run[run].low < low:
                touched = _new_run(p, node, low, s.run[run].high, deeper)
                s.run[run].high = low
                _insert_after(p, touched, s.count[GLOBAL_TAIL])
                return
            _unlink(p, run)
            _insert_after(p, run, s.count[GLOBAL_TAIL])
        deeper, run = run, s.run[run].above


@part
def runs_touch(p, request, blocks):
    """Use the first blocks of a path, those that are stored."""
    _, w = tables(p)
    if w.tiers.global_eviction == CLAIRVOYANT:
        return
    node = w.requests[request].leaf
    while node >= 0:
        if w.nodes[node].start < blocks:
            _touch(p, node, w.nodes[node].start, min(w.nodes[node].end, blocks))
        node = w.nodes[node].parent


@part
def _write(p, node, low, high):
    """Store the blocks between two depths as the newest; returns those that were missing."""
    s, _ = tables(p)
    missing = high - low
    before, deeper, run = -1, -1, s.first_run[node]
    while run >= 0 and s.run[run].high > low:
        above = s.run[run].above
        if s.run[run].low >= high:
            before = run
        else:
            if s.run[run].high > high:
                before = deeper = _cut_off_tail(p, run, high, deeper)
            missing -= s.run[run].high - max(s.run[run].low, low)
            if s.run[run].low < low:
                s.run[run].high = low
                break
            _unlink(p, run)
            _drop_run(p, run, deeper)
            run = above
            continue
        deeper, run = run, above
    new = _new_run(p, node, low, high, before)
    _insert_after(p, new, s.count[GLOBAL_TAIL])
    s.count[GLOBAL_USED] += missing
    s.count[GLOBAL_WRITTEN] += missing
    return missing


@part
def _shrink(p, capacity):
    """Evict from the beginning of the line, the tail of each run first."""
    s, _ = tables(p)
    while s.count[GLOBAL_USED] > capacity:
        run = s.count[GLOBAL_HEAD]
        blocks = min(s.run[run].high - s.run[run].low, s.count[GLOBAL_USED] - capacity)
        s.run[run].high -= blocks
        s.count[GLOBAL_USED] -= blocks
        s.count[GLOBAL_EVICTED] += blocks
        if s.run[run].high == s.run[run].low:
            _unlink(p, run)
            deeper, other = -1, s.first_run[s.run[run].node]
            while other != run:
                deeper, other = other, s.run[other].above
            _drop_run(p, run, deeper)


@part
def runs_write_victims(p, victims, capacity):
    """Store what an instance has evicted (``s.victim``, in that order); returns what was missing.

    Where the tier is clairvoyant, not what would be the first to go.
    """
    s, w = tables(p)
    written = 0
    if w.tiers.global_eviction == CLAIRVOYANT:
        for entry in range(victims - 1, -1, -1):
            written += _put(
                p, s.victim[entry].node, s.victim[entry].low, s.victim[entry].high, capacity
            )
        return written
    for entry in range(victims):
        written += _write(p, s.victim[entry].node, s.victim[entry].low, s.victim[entry].high)
    _shrink(p, capacity)
    return written


@part
def runs_write_path(p, request, capacity):
    """Store a computed path in a clairvoyant tier, less what would be the first to go."""
    s, w = tables(p)
    written = 0
    reach = w.requests[request].blocks
    for level in range(_path(p, request) - 1, -1, -1):
        node = s.path[level]
        written += _put(p, node, w.nodes[node].start, min(w.nodes[node].end, reach), capacity)
    return written


@part
def runs_demote(p, node):
    """Put a node's runs behind those demoted before, ahead of all others; demoted ones stay."""
    s, _ = tables(p)
    run = s.first_run[node]
    while run >= 0:
        if s.run[run].dead == 0:
            _unlink(p, run)
            _insert_after(p, run, s.count[GLOBAL_DEAD])
            s.count[GLOBAL_DEAD] = run
            s.run[run].dead = 1
        run = s.run[run].above


# --- by next use ----------------------------------------------------------------------------------


@part
def _put(p, node, low, high, capacity):
    """Store blocks one after the other, unless they would be the first to go."""
    s, _ = tables(p)
    written = 0
    at = low
    while at < high:
        # the deepest run that does not begin behind `at`, and the one behind it
        deeper, run = -1, s.first_run[node]
        while run >= 0 and s.run[run].low > at:
            deeper, run = run, s.run[run].above
        if run >= 0 and s.run[run].high > at:
            at = s.run[run].high
            continue
        gap = high - at
        if deeper >= 0:
            gap = min(gap, s.run[deeper].low - at)
        room = capacity - s.count[GLOBAL_USED]
        if room == 0:
            last = s.store_heap[0]
            deepest = s.first_run[last]
            if last == node:
                if s.run[deepest].high - 1 < at:
                    break
                gap = 1
            elif not _sooner(p, last, node):
                break
            room = min(gap, s.run[deepest].high - s.run[deepest].low)
            s.run[deepest].high -= room
            s.count[GLOBAL_USED] -= room
            s.count[GLOBAL_EVICTED] += room
            if s.run[deepest].high == s.run[deepest].low:
                _drop_run(p, deepest, -1)
            continue
        gap = min(gap, room)
        if run >= 0 and s.run[run].high == at:
            s.run[run].high += gap
        else:
            _new_run(p, node, at, at + gap, deeper)
        s.count[GLOBAL_USED] += gap
        s.count[GLOBAL_WRITTEN] += gap
        written += gap
        at += gap
    return written


@part
def _sooner(p, one, two):
    """Whether a node is evicted before another one."""
    s, _ = tables(p)
    a, b = s.next_use[one], s.next_use[two]
    return a > b or (a == b and one > two)


@part
def runs_later(p, node):
    """Note that a node's next use has moved away."""
    s, _ = tables(p)
    if s.first_run[node] >= 0:
        _rise(p, node, s.store_place[node])


@part
def _rise(p, node, place):
    s, _ = tables(p)
    while place > 0:
        above = (place - 1) >> 1
        other = s.store_heap[above]
        if not _sooner(p, node, other):
            break
        s.store_heap[place] = other
        s.store_place[other] = place
        place = above
    s.store_heap[place] = node
    s.store_place[node] = place


@part
def _take_out(p, node):
    s, _ = tables(p)
    place = s.store_place[node]
    s.count[STORE_HEAP] -= 1
    size = s.count[STORE_HEAP]
    last = s.store_heap[size]
    if last == node:
        return
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _sooner(p, s.store_heap[below + 1], s.store_heap[below]):
            below += 1
        other = s.store_heap[below]
        if _sooner(p, last, other):
            break
        s.store_heap[place] = other
        s.store_place[other] = place
        place = below
    _rise(p, last, place)
