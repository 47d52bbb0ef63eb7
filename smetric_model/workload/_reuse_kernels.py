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

__all__ = ["last_touches", "producers"]


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
    parent, start, end, longest, leaf, blocks, session, own, reused
):
    """Blocks of each request produced before it (``reused``), and by its own session (``own``).

    A block's producer is the session whose request held it first.
    """
    segments = parent.size
    requests = leaf.size
    head = np.full(segments, -1, np.int64)
    tail = np.full(segments, -1, np.int64)
    entry_session = np.empty(segments + requests + 1, np.int64)
    entry_end = np.empty(segments + requests + 1, np.int64)
    entry_next = np.empty(segments + requests + 1, np.int64)
    used = 0
    stack = np.empty(longest + 1, np.int64)
    for request in range(requests):
        depth = _path(leaf[request], parent, stack)
        own[request] = 0
        reused[request] = 0
        for level in range(depth - 1, -1, -1):
            segment = stack[level]
            reach = min(end[segment], blocks[request])
            at = start[segment]
            entry = head[segment]
            while entry >= 0 and at < reach:
                upto = min(entry_end[entry], reach)
                if entry_session[entry] == session[request]:
                    own[request] += upto - at
                reused[request] += upto - at
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
