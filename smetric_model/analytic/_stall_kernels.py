"""Compiled look-ups in the laws of waits and stalls: many requests, few tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["law_at", "mean_ttft_within", "mean_within"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@njit(cache=True)
def _on_grid(cdf: FloatArray, step: float, x: float) -> Any:
    """Value of a law on a grid that starts at 0; 1 beyond it."""
    last = cdf.size - 1
    place = x / step
    if place >= last:
        return 1.0
    index = int(place)
    share = place - index
    return (1.0 - share) * cdf[index] + share * cdf[index + 1]


@njit(cache=True)
def _between(cdf: FloatArray, steps: FloatArray, low: int, share: float, x: float) -> Any:
    """Value between a level's law and the next one's; 0 below x = 0."""
    if x < 0.0:
        return 0.0
    high = min(low + 1, steps.size - 1)
    below = _on_grid(cdf[low], steps[low], x)
    return (1.0 - share) * below + share * _on_grid(cdf[high], steps[high], x)


@njit(cache=True)
def law_at(
    cdf: FloatArray, steps: FloatArray, low: IntArray, share: FloatArray, x: FloatArray
) -> FloatArray:
    """Values of tabulated laws between levels.

    Parameters
    ----------
    cdf : ndarray, shape (levels, points)
        P(amount <= k step) of each level.
    steps : ndarray, shape (levels,)
        Step of each level's grid.
    low : ndarray of int, shape (n,)
        Level below each parameter.
    share : ndarray, shape (n,)
        How far it is towards the next level.
    x : ndarray, shape (n,)
        Where.
    """
    result = np.empty(x.size)
    for i in range(x.size):
        result[i] = _between(cdf, steps, low[i], share[i], x[i])
    return result


@njit(cache=True)
def mean_within(
    limit: float,
    tokens: FloatArray,
    own: FloatArray,
    weights: FloatArray,
    cdf: FloatArray,
    steps: FloatArray,
    low: IntArray,
    share: FloatArray,
    most_cdf: FloatArray,
    most_steps: FloatArray,
    most_low: IntArray,
    most_share: FloatArray,
) -> float:
    """Weighted mean of P(stalls fit into what a limit a token leaves).

    Parameters
    ----------
    limit : float
        Limit a token [s].
    tokens : ndarray, shape (n,)
        Tokens of each request after the first.
    own : ndarray, shape (kinds, n)
        Time of its own steps [s], by kind of circumstances.
    weights : ndarray, shape (kinds,)
        Weight of each kind.
    cdf, steps, low, share
        Laws by interval, as in :func:`law_at`; the latter two of shape (kinds, n).
    most_cdf, most_steps, most_low, most_share
        Laws by largest count, the latter two of shape (n,); all empty where it never binds.
    """
    total = 0.0
    for kind in range(weights.size):
        within = 0.0
        for i in range(tokens.size):
            spare = tokens[i] * limit - own[kind, i]
            value = _between(cdf, steps, low[kind, i], share[kind, i], spare)
            if most_steps.size:
                other = _between(most_cdf, most_steps, most_low[i], most_share[i], spare)
                value = max(value, other)
            within += value
        total += weights[kind] * within / tokens.size
    return total


@njit(cache=True)
def mean_ttft_within(
    limit: float,
    apart: FloatArray,
    base: FloatArray,
    blocked: NDArray[np.bool_],
    weights: FloatArray,
    cdf: FloatArray,
    step: float,
    kv_wait: float,
    under_way: float,
    slope: float,
    most_shared: float,
) -> float:
    """Weighted mean of P(TTFT <= limit).

    Parameters
    ----------
    limit : float
        Limit [s].
    apart, base : ndarray, shape (groups, n)
        Time of each request that is no wait, and what others add to its last step whatever it
        waits [s].
    blocked, weights : ndarray, shape (groups,)
        Whether a group waits for KV, and its weight.
    cdf, step
        Law of the wait for prefill on its grid.
    kv_wait : float
        Mean wait for KV [s].
    under_way, slope, most_shared : float
        Step under way [s]; work of later arrivals a second waited, and at most [s].
    """
    last = cdf.size - 1
    total = 0.0
    for group in range(weights.size):
        within = 0.0
        for i in range(apart.shape[1]):
            spare = limit - apart[group, i]
            if not blocked[group]:
                spare -= under_way
                spare = max((spare - base[group, i]) / (1.0 + slope), spare - most_shared)
            if spare < 0.0:
                continue
            place = spare / step
            value = cdf[last]
            if place < last:
                index = int(place)
                value = cdf[index] + (place - index) * (cdf[index + 1] - cdf[index])
            if blocked[group]:
                value *= 1.0 - np.exp(-spare / kv_wait)
            within += value
        total += weights[group] * within / apart.shape[1]
    return total
