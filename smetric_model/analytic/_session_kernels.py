"""Compiled kernels that follow sessions from turn to turn."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["common_blocks", "returns"]


@njit(cache=True)
def common_blocks(parent, start, leaf, blocks, first, second, out):  # type: ignore[no-untyped-def]
    """Length of the common prefix of pairs of requests [blocks]; 0 where either is negative."""
    for pair in range(first.size):
        a, b = first[pair], second[pair]
        if a < 0 or b < 0:
            out[pair] = 0
            continue
        here, there = leaf[a], leaf[b]
        reach_here, reach_there = blocks[a], blocks[b]
        # a parent has a smaller number than its children: the larger one goes up
        while here != there and here >= 0 and there >= 0:
            if here > there:
                reach_here = start[here]
                here = parent[here]
            else:
                reach_there = start[there]
                there = parent[there]
        out[pair] = min(reach_here, reach_there) if here == there else 0
    return np.int64(first.size)


@njit(cache=True)
def returns(order, session, stay, tied, sought, instances, out):  # type: ignore[no-untyped-def]
    """P(each request is served where its session's first turn was), along each session.

    A turn stays with ``stay``, goes to another copy as long with ``tied``, to the latest other
    instance of its session with ``sought``, else anywhere.  Of moves between two copies every other
    one is undone by the next, so that half of them lead away for good; one that is sought leads
    from the first instance to another as often as back.  ``order``: rows by session, then time.
    """
    at_first, before = 1.0, 0.0  # here; not here, but this was the instance before
    others = max(instances - 1.0, 1.0)
    for i in range(order.size):
        row = order[i]
        if i == 0 or session[row] != session[order[i - 1]]:
            at_first, before = 1.0, 0.0
        else:
            kept = min(stay[row] + 0.5 * tied[row], 1.0)
            leave = 1.0 - kept
            back = min(sought[row], leave)
            anywhere = (leave - back) / others
            far = max(1.0 - at_first - before, 0.0)
            came = before * back + (before + far) * anywhere
            left = at_first * leave
            before = before * kept + left
            at_first = at_first * kept + came
        out[row] = at_first
    return 0
