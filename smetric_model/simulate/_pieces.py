"""Compiled global tier that may hold any part of a prefix: pieces of blocks of radix nodes.

Write-back stores what the instances evict, which is tails first, so that a node's stored blocks
are pieces between two depths, listed deepest first.  All pieces stand in one list in order of use
(demoted ones first), and within a piece the tail goes first; or, where the tier is clairvoyant,
nodes with pieces stand in a heap by next use.  Answers are those of a store of single blocks.
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
    PIECE_END,
    PIECE_FREE,
    STORE_HEAP,
)
from smetric_model.simulate.inputs import CLAIRVOYANT

__all__ = [
    "pieces_demote",
    "pieces_hit",
    "pieces_later",
    "pieces_touch",
    "pieces_write_path",
    "pieces_write_victims",
]


@part
def pieces_hit(p, request, held):
    """Blocks of the path that are stored from the ``held``-th on without a gap, and ``held``."""
    s, w = tables(p)
    levels = _path(p, request)
    reach = w.requests[request].blocks
    at = held
    for level in range(levels - 1, -1, -1):
        node = s.path[level]
        upto = min(w.nodes[node].end, reach)
        while at < upto:
            piece = s.first_piece[node]
            while piece >= 0 and s.piece[piece].low > at:
                piece = s.piece[piece].above
            if piece < 0 or s.piece[piece].high <= at:
                return at
            at = min(s.piece[piece].high, upto)
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
def _new_piece(p, node, low, high, deeper):
    """Make a piece, below ``deeper`` in the node's list (−1: the deepest); in no line yet."""
    s, w = tables(p)
    piece = s.count[PIECE_FREE]
    if piece >= 0:
        s.count[PIECE_FREE] = s.piece[piece].above
    else:
        piece = s.count[PIECE_END]
        s.count[PIECE_END] += 1
    s.piece[piece].node = node
    s.piece[piece].low = low
    s.piece[piece].high = high
    s.piece[piece].dead = 0
    if deeper >= 0:
        s.piece[piece].above = s.piece[deeper].above
        s.piece[deeper].above = piece
    else:
        if w.tiers.global_eviction == CLAIRVOYANT and s.first_piece[node] < 0:
            place = s.count[STORE_HEAP]
            s.count[STORE_HEAP] += 1
            _rise(p, node, place)
        s.piece[piece].above = s.first_piece[node]
        s.first_piece[node] = piece
    return piece


@part
def _drop_piece(p, piece, deeper):
    """Forget a piece that is in no line; ``deeper`` is the one before it in the node's list."""
    s, w = tables(p)
    node, above = s.piece[piece].node, s.piece[piece].above
    if deeper >= 0:
        s.piece[deeper].above = above
    else:
        s.first_piece[node] = above
        if w.tiers.global_eviction == CLAIRVOYANT and above < 0:
            _take_out(p, node)
    s.piece[piece].above = s.count[PIECE_FREE]
    s.count[PIECE_FREE] = piece


@part
def _insert_after(p, piece, older):
    """Put a piece into the line behind ``older`` (−1: at its beginning)."""
    s, _ = tables(p)
    newer = s.piece[older].newer if older >= 0 else s.count[GLOBAL_HEAD]
    s.piece[piece].older = older
    s.piece[piece].newer = newer
    if older >= 0:
        s.piece[older].newer = piece
    else:
        s.count[GLOBAL_HEAD] = piece
    if newer >= 0:
        s.piece[newer].older = piece
    else:
        s.count[GLOBAL_TAIL] = piece


@part
def _unlink(p, piece):
    s, _ = tables(p)
    older, newer = s.piece[piece].older, s.piece[piece].newer
    if piece == s.count[GLOBAL_DEAD]:
        s.count[GLOBAL_DEAD] = older
    s.piece[piece].dead = 0
    if older >= 0:
        s.piece[older].newer = newer
    else:
        s.count[GLOBAL_HEAD] = newer
    if newer >= 0:
        s.piece[newer].older = older
    else:
        s.count[GLOBAL_TAIL] = older


@part
def _cut_off_tail(p, piece, high, deeper):
    """Split off what a piece has from depth ``high`` on: it stays just ahead of the rest."""
    s, _ = tables(p)
    tail = _new_piece(p, s.piece[piece].node, high, s.piece[piece].high, deeper)
    s.piece[tail].dead = s.piece[piece].dead
    _insert_after(p, tail, s.piece[piece].older)
    s.piece[piece].high = high
    return tail


@part
def _touch(p, node, low, high):
    """Move what is stored between two depths to the end of the line, tail first."""
    s, _ = tables(p)
    deeper, piece = -1, s.first_piece[node]
    while piece >= 0 and s.piece[piece].high > low:
        if s.piece[piece].low < high:
            if s.piece[piece].high > high:
                deeper = _cut_off_tail(p, piece, high, deeper)
            if s.piece[piece].low < low:
                touched = _new_piece(p, node, low, s.piece[piece].high, deeper)
                s.piece[piece].high = low
                _insert_after(p, touched, s.count[GLOBAL_TAIL])
                return
            _unlink(p, piece)
            _insert_after(p, piece, s.count[GLOBAL_TAIL])
        deeper, piece = piece, s.piece[piece].above


@part
def pieces_touch(p, request, blocks):
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
    before, deeper, piece = -1, -1, s.first_piece[node]
    while piece >= 0 and s.piece[piece].high > low:
        above = s.piece[piece].above
        if s.piece[piece].low >= high:
            before = piece
        else:
            if s.piece[piece].high > high:
                before = deeper = _cut_off_tail(p, piece, high, deeper)
            missing -= s.piece[piece].high - max(s.piece[piece].low, low)
            if s.piece[piece].low < low:
                s.piece[piece].high = low
                break
            _unlink(p, piece)
            _drop_piece(p, piece, deeper)
            piece = above
            continue
        deeper, piece = piece, above
    new = _new_piece(p, node, low, high, before)
    _insert_after(p, new, s.count[GLOBAL_TAIL])
    s.count[GLOBAL_USED] += missing
    s.count[GLOBAL_WRITTEN] += missing
    return missing


@part
def _shrink(p, capacity):
    """Evict from the beginning of the line, the tail of each piece first."""
    s, _ = tables(p)
    while s.count[GLOBAL_USED] > capacity:
        piece = s.count[GLOBAL_HEAD]
        blocks = min(s.piece[piece].high - s.piece[piece].low, s.count[GLOBAL_USED] - capacity)
        s.piece[piece].high -= blocks
        s.count[GLOBAL_USED] -= blocks
        s.count[GLOBAL_EVICTED] += blocks
        if s.piece[piece].high == s.piece[piece].low:
            _unlink(p, piece)
            deeper, other = -1, s.first_piece[s.piece[piece].node]
            while other != piece:
                deeper, other = other, s.piece[other].above
            _drop_piece(p, piece, deeper)


@part
def pieces_write_victims(p, victims, capacity):
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
def pieces_write_path(p, request, capacity):
    """Store a computed path in a clairvoyant tier, less what would be the first to go."""
    s, w = tables(p)
    written = 0
    reach = w.requests[request].blocks
    for level in range(_path(p, request) - 1, -1, -1):
        node = s.path[level]
        written += _put(p, node, w.nodes[node].start, min(w.nodes[node].end, reach), capacity)
    return written


@part
def pieces_demote(p, node):
    """Put a node's pieces behind those demoted before, ahead of all others; demoted ones stay."""
    s, _ = tables(p)
    piece = s.first_piece[node]
    while piece >= 0:
        if s.piece[piece].dead == 0:
            _unlink(p, piece)
            _insert_after(p, piece, s.count[GLOBAL_DEAD])
            s.count[GLOBAL_DEAD] = piece
            s.piece[piece].dead = 1
        piece = s.piece[piece].above


# --- by next use ----------------------------------------------------------------------------------


@part
def _put(p, node, low, high, capacity):
    """Store blocks one after the other, unless they would be the first to go."""
    s, _ = tables(p)
    written = 0
    at = low
    while at < high:
        # the deepest piece that does not begin behind `at`, and the one behind it
        deeper, piece = -1, s.first_piece[node]
        while piece >= 0 and s.piece[piece].low > at:
            deeper, piece = piece, s.piece[piece].above
        if piece >= 0 and s.piece[piece].high > at:
            at = s.piece[piece].high
            continue
        gap = high - at
        if deeper >= 0:
            gap = min(gap, s.piece[deeper].low - at)
        room = capacity - s.count[GLOBAL_USED]
        if room == 0:
            last = s.store_heap[0]
            deepest = s.first_piece[last]
            if last == node:
                if s.piece[deepest].high - 1 < at:
                    break
                gap = 1
            elif not _sooner(p, last, node):
                break
            room = min(gap, s.piece[deepest].high - s.piece[deepest].low)
            s.piece[deepest].high -= room
            s.count[GLOBAL_USED] -= room
            s.count[GLOBAL_EVICTED] += room
            if s.piece[deepest].high == s.piece[deepest].low:
                _drop_piece(p, deepest, -1)
            continue
        gap = min(gap, room)
        if piece >= 0 and s.piece[piece].high == at:
            s.piece[piece].high += gap
        else:
            _new_piece(p, node, at, at + gap, deeper)
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
def pieces_later(p, node):
    """Note that a node's next use has moved away."""
    s, _ = tables(p)
    if s.first_piece[node] >= 0:
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
