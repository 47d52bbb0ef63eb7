"""Quantiles of weighted samples, and samples that stand for many requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["GOLDEN", "spread", "turns", "unevenly", "weighted_quantiles"]

GOLDEN = 0.6180339887498949  #: its multiples fill [0, 1) evenly
_PARTS = 1024  # of a sample's range, of which those that hold a quantile are sorted


@lru_cache(maxsize=32)
def turns(count: int, of: int) -> NDArray[np.int64]:
    """Return in which of some turns each of so many is taken: evenly, but not in equal steps.

    Parameters
    ----------
    count, of : int
        How many there are, and the number of turns.
    """
    return ((np.arange(count) * GOLDEN) % 1.0 * of).astype(np.int64)


@lru_cache(maxsize=32)
def unevenly(size: int, most: int) -> NDArray[np.int64]:
    """Return indices of some of many, evenly but not in equal steps.

    Items may come in strata, which equal steps would always meet alike.

    Parameters
    ----------
    size, most : int
        How many there are, and how many are wanted at most.
    """
    steps = np.arange(min(size, most))
    return ((steps + (steps * GOLDEN) % 1.0) * (size / steps.size)).astype(np.int64)


def spread(rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return some of many rows, evenly.

    Parameters
    ----------
    rows : ndarray of int
        Rows.
    most : int
        How many are wanted at most.
    """
    if rows.size <= most:
        return rows
    return np.asarray(rows[np.linspace(0, rows.size - 1, most).round().astype(int)])


def weighted_quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64], shares: Sequence[float]
) -> list[float]:
    """Return the values at which the cumulated weight reaches shares of the whole.

    Parameters
    ----------
    values, weights : ndarray of float
        Sample of any shape, and the weight of each value, of the same shape.
    shares : sequence of float
        Such as ``(0.5, 0.9)``.

    Returns
    -------
    list of float
    """
    found = _weighted_quantiles(values.ravel(), weights.ravel(), np.asarray(shares))
    return [float(value) for value in found]


@njit(cache=True, error_model="numpy")
def _weighted_quantiles(values, weights, shares):  # type: ignore[no-untyped-def]
    """Weigh the parts of the range, then sort the part in which each quantile lies."""
    low, high = values.min(), values.max()
    found = np.full(shares.size, high)
    if not low < high:
        return found
    scale = (_PARTS - 1) / (high - low)
    held = np.zeros(_PARTS)
    for i in range(values.size):
        held[int((values[i] - low) * scale)] += weights[i]
    upto = np.cumsum(held)
    for k in range(shares.size):
        wanted = shares[k] * upto[-1]
        part = min(np.searchsorted(upto, wanted), _PARTS - 1)
        inside = np.empty(values.size, np.int64)
        count = 0
        for i in range(values.size):
            if int((values[i] - low) * scale) == part:
                inside[count] = i
                count += 1
        order = inside[:count][np.argsort(values[inside[:count]])]
        reached = upto[part] - held[part]
        for i in order:
            reached += weights[i]
            found[k] = values[i]
            if reached >= wanted:
                break
    return found
