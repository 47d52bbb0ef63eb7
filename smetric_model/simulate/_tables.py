"""Compiled sums behind the outcome: intervals into bins, and who produced what is reused."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["add_intervals", "covered_ticks", "reuse_by_origin"]


@njit(cache=True)
def add_intervals(start, end, instance, weight, first, last, bin_ticks, sums):
    """Add weight · ticks of each interval to the bins that it overlaps inside [first, last]."""
    for k in range(start.size):
        begin, stop = max(start[k], first), min(end[k], last)
        while begin < stop:
            column = (begin - first) // bin_ticks
            edge = min(first + (column + 1) * bin_ticks, stop)
            sums[instance[k], column] += weight[k] * (edge - begin)
            begin = edge


@njit(cache=True)
def covered_ticks(start, end, instance, first, last, covered):
    """Ticks inside [first, last] in which any interval of an instance runs; sorted by start."""
    reach = np.full(covered.size, first, np.int64)
    for k in range(start.size):
        where = instance[k]
        begin, stop = max(start[k], reach[where]), min(end[k], last)
        if stop > begin:
            covered[where] += stop - begin
            reach[where] = stop


@njit(cache=True)
def reuse_by_origin(
    parent,
    start,
    end,
    longest,
    leaf,
    blocks,
    order,
    session,
    common,
    reused_tokens,
    block_tokens,
    own,
    system,
    other,
):
    """Reused tokens of each request by the session whose request held the block first.

    Requests are taken in order of arrival.  Of blocks that another session produced, those within
    the first ``common`` blocks are the framework's (``system``).
    """
    head = np.full(parent.size, -1, np.int64)
    tail = np.full(parent.size, -1, np.int64)
    size = parent.size + order.size * (longest + 1)
    # a node is extended at most once a request
    limit = 0
    for request in order:
        node = leaf[request]
        while node >= 0:
            limit += 1
            node = parent[node]
    size = min(size, limit + 1)
    entry_session = np.empty(size, np.int64)
    entry_end = np.empty(size, np.int64)
    entry_next = np.empty(size, np.int64)
    used = 0
    stack = np.empty(longest + 1, np.int64)
    for request in order:
        depth = 0
        node = leaf[request]
        while node >= 0:
            stack[depth] = node
            depth += 1
            node = parent[node]
        for level in range(depth - 1, -1, -1):
            node = stack[level]
            reach = min(end[node], blocks[request])
            at = start[node]
            entry = head[node]
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
                newest = tail[node]
                if newest >= 0 and entry_session[newest] == session[request]:
                    entry_end[newest] = reach
                else:
                    entry_session[used] = session[request]
                    entry_end[used] = reach
                    entry_next[used] = -1
                    if newest >= 0:
                        entry_next[newest] = used
                    else:
                        head[node] = used
                    tail[node] = used
                    used += 1
