"""Quantiles of weighted samples, and samples that stand for many requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["GOLDEN", "quantiles", "spread", "turns", "unevenly", "weighted_quantiles"]

GOLDEN = 0.6180339887498949  #: its multiples fill [0, 1) evenly


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


def quantiles(values: NDArray[np.float64], shares: Sequence[float]) -> list[float]:
    """Return quantiles of an equally weighted sample, as :func:`numpy.quantile` in less time.

    Parameters
    ----------
    values : ndarray of float, shape (n,)
        Sample.
    shares : sequence of float
        Such as ``(0.5, 0.9)``.

    Returns
    -------
    list of float
    """
    found = []
    ordered = np.sort(values)
    for share in shares:
        place = share * (ordered.size - 1)
        low = min(int(place), ordered.size - 2)
        below, above = float(ordered[low]), float(ordered[low + 1 if low >= 0 else 0])
        found.append(below + (place - low) * (above - below))
    return found


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
    """Quickselect: of two parts about a pivot the one that holds the quantile is looked at on."""
    found = np.empty(shares.size)
    value, weight = values.copy(), weights.copy()
    total = 0.0
    for i in range(weight.size):
        total += weight[i]
    for k in range(shares.size):
        wanted = shares[k] * total
        first, end = 0, value.size
        while end - first > 1:
            pivot = value[first + (end - first) // 2]
            # below the pivot, the pivot, above it
            low, at, high, below, level = first, first, end, 0.0, 0.0
            while at < high:
                if value[at] < pivot:
                    below += weight[at]
                    value[low], value[at] = value[at], value[low]
                    weight[low], weight[at] = weight[at], weight[low]
                    low += 1
                    at += 1
                elif value[at] > pivot:
                    high -= 1
                    value[high], value[at] = value[at], value[high]
                    weight[high], weight[at] = weight[at], weight[high]
                else:
                    level += weight[at]
                    at += 1
            if wanted <= below:
                end = low
            elif wanted <= below + level or high == end:
                first, end = low, low + 1
            else:
                wanted -= below + level
                first = high
        found[k] = value[first]
    return found
