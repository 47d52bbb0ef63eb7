"""Compiled kernel behind :mod:`smetric_model.analytic.session_reuse`."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["common_blocks"]


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
