"""Compiled: reusable prefixes as pieces, one a request and interval since the last touch."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["MOST_TRACKED", "find_pieces", "private_tokens"]

#: More requests than this at work on a node at once: its KV is not charged to them at all.
MOST_TRACKED = 64


@njit(cache=True)
def find_pieces(
    parent,
    start,
    end,
    longest,
    leaf,
    blocks,
    order,
    session,
    in_order,
    arrival,
    completion,
    patience,
    usable,
    block_tokens,
    offsets,
    tokens,
    pairs,
    gap_start,
    gap_end,
    new_tokens,
    write,
):
    """Cut each request's reusable prefix where the last completion of an earlier touch changes.

    Called twice: to count (``write`` False), and to fill the arrays.
    """
    nodes = parent.size
    covered = np.zeros(nodes, np.int64)  # deepest block touched so far; 0: none
    ended = np.zeros(nodes)  # last completion of the touches so far
    last = np.full(nodes, -1, np.int64)  # who touched last ...
    last_piece = np.full(nodes, -1, np.int64)  # ... and the piece that it hit there
    path = np.empty(longest + 1, np.int64)
    count = 0
    for place in range(order.size):
        request = order[place]
        offsets[place] = count
        depth = 0
        node = leaf[request]
        while node >= 0:
            path[depth] = node
            depth += 1
            node = parent[node]
        opened = -1  # piece that may grow
        fresh = 0
        limit = usable[request]
        for level in range(depth - 1, -1, -1):
            node = path[level]
            reach = min(end[node], blocks[request])
            first = start[node] * block_tokens
            known = min(reach, covered[node]) * block_tokens
            hit_end = min(known, limit)
            fresh += max(0, reach - max(covered[node], start[node])) * block_tokens
            piece = -1
            if hit_end > first:
                begin = min(ended[node], arrival[request])
                if opened >= 0 and gap_start[opened] == begin and write:
                    piece = opened
                elif not write and opened >= 0 and gap_start[0] == begin:
                    piece = count - 1
                else:
                    piece = count
                    count += 1
                    if write:
                        tokens[piece] = 0.0
                        pairs[piece] = 0.0
                        gap_start[piece] = begin
                        gap_end[piece] = arrival[request]
                    else:
                        gap_start[0] = begin
                    opened = piece
                if write:
                    tokens[piece] += hit_end - first
                    pairs[piece] += 0.5 * (
                        float(hit_end) * float(hit_end) - float(first) * float(first)
                    )
            if write and last[node] >= 0 and last_piece[node] >= 0:
                other = last[node]
                if arrival[request] < arrival[other] + patience[other] and not (
                    in_order and session[request] == session[other]
                ):
                    # whoever touched last may hit what this request computes meanwhile
                    gap_start[last_piece[node]] = gap_end[last_piece[node]]
            covered[node] = max(covered[node], reach)
            ended[node] = max(ended[node], completion[request])
            last[node] = request
            last_piece[node] = piece
        new_tokens[place] = fresh
    offsets[order.size] = count
    return count


@njit(cache=True)
def private_tokens(
    parent,
    start,
    end,
    leaf,
    blocks,
    order,
    session,
    in_order,
    arrival,
    completion,
    prompt,
    block_tokens,
    private,
):
    """KV of each prompt, a node's shared out among the most requests at work on it at once."""
    nodes = parent.size
    most = np.ones(nodes, np.int64)
    head = np.full(nodes, -1, np.int64)
    active = np.zeros(nodes, np.int64)
    size = 0
    for place in range(order.size):
        node = leaf[order[place]]
        while node >= 0:
            size += 1
            node = parent[node]
    entry_request = np.empty(size, np.int64)
    entry_next = np.empty(size, np.int64)
    used = 0
    for place in range(order.size):
        request = order[place]
        node = leaf[request]
        while node >= 0:
            if most[node] <= MOST_TRACKED:
                # drop those that have completed
                before, here, alive = -1, head[node], 0
                while here >= 0:
                    other = entry_request[here]
                    done = completion[other] <= arrival[request] or (
                        in_order and session[other] == session[request]
                    )
                    if done:
                        if before < 0:
                            head[node] = entry_next[here]
                        else:
                            entry_next[before] = entry_next[here]
                    else:
                        before = here
                        alive += 1
                    here = entry_next[here]
                entry_request[used] = request
                entry_next[used] = head[node]
                head[node] = used
                used += 1
                active[node] = alive + 1
                most[node] = max(most[node], active[node])
            node = parent[node]
    for place in range(order.size):
        request = order[place]
        total = float(prompt[request])
        node = leaf[request]
        while node >= 0:
            held = (min(end[node], blocks[request]) - start[node]) * block_tokens
            if most[node] > MOST_TRACKED:
                total -= held
            else:
                total -= held * (1.0 - 1.0 / most[node])
            node = parent[node]
        private[request] = total
