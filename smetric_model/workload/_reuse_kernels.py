"""Compiled kernels that walk requests in order of arrival over a finished radix tree.

Two facts keep them short.  Whoever touches a block touches everything above it, so along any path
the time of the last touch never grows with depth; and the blocks of a request that nobody has
touched since are always the *end* of its path.  A segment therefore needs only a staircase of
(last toucher, depth it reached), and a request's reusable prefix falls into a few pieces, each
last touched by one earlier request.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = [
    "common_depths",
    "common_reach",
    "continued",
    "last_touches",
    "optimal_hits",
    "producers",
    "shared_blocks",
    "stack_distances",
]


@njit(cache=True)
def _path(leaf, parent, stack):  # type: ignore[no-untyped-def]
    """Write the segments from ``leaf`` up into ``stack``; returns how many."""
    count = 0
    node = leaf
    while parent[node] >= 0:
        stack[count] = node
        count += 1
        node = parent[node]
    return count


@njit(cache=True)
def last_touches(  # type: ignore[no-untyped-def]
    parent, start, end, longest, leaf, blocks, offsets, toucher, first, last, fill
):
    """Pieces of each request's reusable prefix by last toucher.

    Called twice: with ``fill`` false it only counts (into ``offsets``), then it writes.
    """
    segments = parent.size
    requests = leaf.size
    top = np.full(segments, -1, np.int64)
    entry_request = np.empty(segments + requests + 1, np.int32)
    entry_end = np.empty(segments + requests + 1, np.int64)
    entry_next = np.empty(segments + requests + 1, np.int64)
    free = -1
    used = 0
    stack = np.empty(longest + 1, np.int64)
    pieces = 0
    for request in range(requests):
        offsets[request] = pieces
        depth = _path(leaf[request], parent, stack)
        previous = -1
        for level in range(depth - 1, -1, -1):
            segment = stack[level]
            reach = min(end[segment], blocks[request])
            at = start[segment]
            entry = top[segment]
            while entry >= 0:
                upto = min(entry_end[entry], reach)
                if upto > at:
                    by = entry_request[entry]
                    if by == previous:
                        if fill:
                            last[pieces - 1] = upto
                    else:
                        if fill:
                            toucher[pieces] = by
                            first[pieces] = at
                            last[pieces] = upto
                        pieces += 1
                        previous = by
                    at = upto
                if entry_end[entry] > reach:
                    break
                after = entry_next[entry]
                entry_next[entry] = free
                free = entry
                entry = after
            if free >= 0:
                new = free
                free = entry_next[new]
            else:
                new = used
                used += 1
            entry_request[new] = request
            entry_end[new] = reach
            entry_next[new] = entry
            top[segment] = new
    offsets[requests] = pieces
    return pieces


@njit(cache=True)
def producers(  # type: ignore[no-untyped-def]
    parent,
    start,
    end,
    longest,
    leaf,
    blocks,
    order,
    session,
    common,
    block_tokens,
    reused_tokens,
    own,
    system,
    other,
):
    """Reused tokens of each request by who produced them first, added to ``own`` and the others.

    Requests are taken in the given order; ``reused_tokens`` are the first tokens of a prompt that
    count, at most what earlier requests held.  A block's producer is the session whose request
    held it first: ``own`` is the request's own session; of the others, ``system`` lies within the
    first ``common`` blocks of the path.
    """
    head = np.full(parent.size, -1, np.int64)
    tail = np.full(parent.size, -1, np.int64)
    # a segment gets a new producer when a request ends in it, or once when one goes through
    entry_session = np.empty(parent.size + order.size + 1, np.int64)
    entry_end = np.empty(parent.size + order.size + 1, np.int64)
    entry_next = np.empty(parent.size + order.size + 1, np.int64)
    used = 0
    stack = np.empty(longest + 2, np.int64)
    for request in order:
        depth = 0
        segment = leaf[request]
        while segment >= 0:
            stack[depth] = segment
            depth += 1
            segment = parent[segment]
        for level in range(depth - 1, -1, -1):
            segment = stack[level]
            reach = min(end[segment], blocks[request])
            at = start[segment]
            entry = head[segment]
            while entry >= 0 and at < reach:
                upto = min(entry_end[entry], reach)
                tokens = min(upto * block_tokens, reused_tokens[request]) - at * block_tokens
                if tokens > 0:
                    if entry_session[entry] == session[request]:
                        own[request] += tokens
                    else:
                        below = min(max(common[request] - at, 0) * block_tokens, tokens)
                        system[request] += below
                        other[request] += tokens - below
                at = upto
                entry = entry_next[entry]
            if at < reach:
                newest = tail[segment]
                if newest >= 0 and entry_session[newest] == session[request]:
                    entry_end[newest] = reach
                else:
                    entry_session[used] = session[request]
                    entry_end[used] = reach
                    entry_next[used] = -1
                    if newest >= 0:
                        entry_next[newest] = used
                    else:
                        head[segment] = used
                    tail[segment] = used
                    used += 1


@njit(cache=True)
def stack_distances(offsets, toucher, first, last, blocks, distance):  # type: ignore[no-untyped-def]
    """Blocks touched more recently than the first block of each piece, under LRU.

    The stack holds, most recent request first, what is left of each request's path (its end, see
    the module's introduction), root before leaf.  A Fenwick tree over requests holds how much.
    """
    requests = blocks.size
    tree = np.zeros(requests + 1, np.int64)
    total = 0
    for request in range(requests):
        for piece in range(offsets[request], offsets[request + 1]):
            older = 0
            index = toucher[piece] + 1
            while index > 0:
                older += tree[index]
                index -= index & -index
            distance[piece] = total - older
        for piece in range(offsets[request], offsets[request + 1]):
            size = last[piece] - first[piece]
            total -= size
            index = toucher[piece] + 1
            while index <= requests:
                tree[index] -= size
                index += index & -index
        total += blocks[request]
        index = request + 1
        while index <= requests:
            tree[index] += blocks[request]
            index += index & -index


@njit(cache=True)
def optimal_hits(starts, order, piece_request, size, capacity, kept):  # type: ignore[no-untyped-def]
    """Blocks of each piece that an offline optimal cache keeps until their use.

    A piece is ``size`` blocks wanted from one touch (``toucher``) to the next (``piece_request``);
    pieces are numbered by the time of that next use and, within a request, by depth.  When more
    than ``capacity`` blocks are wanted, the end of the piece with the highest number is let go:
    farthest next use first, deepest first, so that what is kept is always a prefix.
    ``order[starts[q]:starts[q + 1]]`` are the pieces that begin at request ``q``.
    """
    requests = starts.size - 1
    heap = np.empty(size.size + 1, np.int64)  # a max-heap of piece numbers
    count = 0
    held = 0
    ended = 0  # pieces below this number have met their use
    for request in range(requests):
        while ended < size.size and piece_request[ended] <= request:
            held -= kept[ended]
            ended += 1
        for index in range(starts[request], starts[request + 1]):
            piece = order[index]
            kept[piece] = size[piece]
            held += size[piece]
            place = count
            count += 1
            while place > 0 and heap[(place - 1) // 2] < piece:
                heap[place] = heap[(place - 1) // 2]
                place = (place - 1) // 2
            heap[place] = piece
        while held > capacity:
            piece = heap[0]
            cut = min(kept[piece], held - capacity)
            kept[piece] -= cut
            held -= cut
            if kept[piece] == 0 or piece < ended:
                count -= 1
                moved = heap[count]
                place = 0
                while True:
                    child = 2 * place + 1
                    if child >= count:
                        break
                    if child + 1 < count and heap[child + 1] > heap[child]:
                        child += 1
                    if heap[child] <= moved:
                        break
                    heap[place] = heap[child]
                    place = child
                heap[place] = moved


@njit(cache=True)
def common_depths(  # type: ignore[no-untyped-def]
    parent, start, end, leaf_order, leaf, blocks, threshold, common
):
    """Depth in each segment down to which at least ``threshold`` of the given paths reach.

    ``leaf_order`` sorts the paths by segment and, within one, by depth, deepest first.
    """
    segments = parent.size
    through = np.zeros(segments, np.int64)  # paths that end in a segment, later: or below it
    for index in range(leaf_order.size):
        through[leaf[leaf_order[index]]] += 1
    ending = through.copy()
    for segment in range(segments - 1, -1, -1):
        if parent[segment] >= 0:
            through[parent[segment]] += through[segment]
    index = 0
    for segment in range(segments):
        passing = through[segment] - ending[segment]
        if passing >= threshold:
            common[segment] = end[segment]
        elif through[segment] >= threshold:
            path = leaf_order[index + threshold - passing - 1]
            common[segment] = min(end[segment], blocks[path])
        else:
            common[segment] = start[segment]
        index += ending[segment]


@njit(cache=True)
def common_reach(parent, end, common, leaf, blocks, reach):  # type: ignore[no-untyped-def]
    """Length of each path's common prefix, given the common depth of each segment."""
    inherited = np.zeros(parent.size, np.int64)
    whole = np.zeros(parent.size, np.bool_)
    for segment in range(parent.size):
        above = parent[segment]
        if above < 0:
            whole[segment] = True
        elif whole[above]:
            inherited[segment] = common[segment]
            whole[segment] = common[segment] == end[segment]
        else:
            inherited[segment] = inherited[above]
    for path in range(leaf.size):
        reach[path] = min(inherited[leaf[path]], blocks[path])


@njit(cache=True)
def shared_blocks(parent, end, leaf, blocks, one, two, shared):  # type: ignore[no-untyped-def]
    """Length of the common prefix of pairs of paths; −1 where either is −1."""
    for pair in range(one.size):
        a, b = one[pair], two[pair]
        if a < 0 or b < 0:
            shared[pair] = -1
            continue
        x, y = leaf[a], leaf[b]
        while x != y and x >= 0 and y >= 0:
            # parents have smaller numbers: the larger cannot lie above the smaller
            if x > y:
                x = parent[x]
            else:
                y = parent[y]
        shared[pair] = 0 if x != y else min(blocks[a], blocks[b], end[x])


@njit(cache=True)
def continued(  # type: ignore[no-untyped-def]
    parent, start, end, longest, leaf, blocks, common, prompt_tokens, predecessor, candidates
):
    """Earlier request that each request continues, by prefix; −1 for none.

    Request ``j`` is continued by ``i`` if all but the last block of ``j`` is a prefix of ``i``,
    reaches beyond the common prefix, and ``i`` is longer; of several the one with the longest
    prefix, of these the first.  ``candidates`` counts those that end where it does.
    """
    requests = leaf.size
    head = np.full(parent.size, -1, np.int64)
    entry_depth = np.zeros(requests, np.int64)  # an entry bears its request's number
    entry_next = np.empty(requests, np.int64)
    entry_last = np.empty(requests, np.int64)  # of the first entry of a depth: the newest one
    entry_count = np.zeros(
        requests, np.int64
    )  # of the first entry of a depth: requests ending there
    stack = np.empty(longest + 1, np.int64)
    for request in range(requests):
        depth = _path(leaf[request], parent, stack)
        found = -1
        same = 0
        for level in range(depth):  # leaf first
            segment = stack[level]
            reach = min(end[segment], blocks[request])
            entry = head[segment]  # deepest first, equal depths in order of arrival
            while entry >= 0 and found < 0:
                if entry_depth[entry] <= reach:
                    if entry_depth[entry] <= common[request]:
                        break
                    if entry_count[entry] > 0:
                        same = entry_count[entry]
                    if prompt_tokens[request] > prompt_tokens[entry]:
                        found = entry
                entry = entry_next[entry]
            if found >= 0 or start[segment] <= common[request]:
                break
        predecessor[request] = found
        candidates[request] = same if found >= 0 else 0
        ends = blocks[request] - 1
        if ends <= 0:
            continue
        segment = leaf[request]
        while parent[segment] >= 0 and start[segment] >= ends:
            segment = parent[segment]
        before = -1
        entry = head[segment]
        while entry >= 0 and entry_depth[entry] > ends:
            before = entry
            entry = entry_next[entry]
        if entry >= 0 and entry_depth[entry] == ends:
            # Only a shorter prompt can ever be chosen before those that end here already.
            entry_count[entry] += 1
            before = entry_last[entry]
            if prompt_tokens[request] >= prompt_tokens[before]:
                continue
            entry_last[entry] = request
            entry = entry_next[before]
        else:
            entry_count[request] = 1
            entry_last[request] = request
        entry_depth[request] = ends
        entry_next[request] = entry
        if before < 0:
            head[segment] = request
        else:
            entry_next[before] = request
