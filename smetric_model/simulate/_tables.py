"""Compiled sums behind the outcome: intervals into bins."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["add_intervals", "covered_ticks"]


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
