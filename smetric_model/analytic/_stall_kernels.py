"""Compiled look-ups in the laws of waits and stalls: many requests, few tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["law_at", "mean_ttft_within", "mean_within", "within_slo"]

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
        Tokens after the first of each case, a request in some circumstances.
    own, weights : ndarray, shape (n,)
        Time of its own steps [s]; weight of each case.
    cdf, steps, low, share
        Laws by interval, as in :func:`law_at`.
    most_cdf, most_steps, most_low, most_share
        Laws by largest count, likewise; all empty where it never binds.
    """
    per_step, most_per_step = 1.0 / steps, 1.0 / most_steps
    total = 0.0
    for i in range(tokens.size):
        spare = tokens[i] * limit - own[i]
        if spare < 0.0:
            continue
        value = _of_levels(cdf, per_step, low[i], share[i], spare)
        if most_steps.size and value < 1.0:
            other = _of_levels(most_cdf, most_per_step, most_low[i], most_share[i], spare)
            value = max(value, other)
        total += weights[i] * value
    return total


@njit(cache=True)
def _of_levels(cdf: FloatArray, per_step: FloatArray, low: int, share: float, x: float) -> Any:
    """As :func:`_between`, for x >= 0 and one over each step."""
    last = cdf.shape[1] - 1
    below, above = 1.0, 1.0
    place = x * per_step[low]
    if place < last:
        index = int(place)
        below = cdf[low, index] + (place - index) * (cdf[low, index + 1] - cdf[low, index])
    high = min(low + 1, per_step.size - 1)
    place = x * per_step[high]
    if place < last:
        index = int(place)
        above = cdf[high, index] + (place - index) * (cdf[high, index + 1] - cdf[high, index])
    return below + share * (above - below)


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


@njit(cache=True)
def within_slo(
    prefill: FloatArray,
    step: FloatArray,
    blocked: NDArray[np.bool_],
    weights: FloatArray,
    tokens: FloatArray,
    most: FloatArray,
    spare: FloatArray,
    tpot_limit: float,
    waiting: FloatArray,
    waiting_step: float,
    waits: FloatArray,
    edges: FloatArray,
    wait: tuple[float, float, float, float, float],
    behind: tuple[float, float],
    table: tuple[FloatArray, FloatArray, float, float],
    most_table: tuple[FloatArray, FloatArray, float, float],
) -> FloatArray:
    """P(TTFT within its limit), P(TPOT within its), and P(both) of each request.

    Parameters
    ----------
    prefill, step : ndarray, shape (groups, n)
        Time of the own prefill, and of a decode step [s].
    blocked, weights : ndarray, shape (groups,)
        Whether a group waits for KV, and its weight.
    tokens, most, spare : ndarray, shape (n,)
        Tokens after the first; most prefills beside them; TTFT limit less what lies before the
        prefill [s].
    tpot_limit : float
        Limit a token [s]; ``inf``: none.
    waiting, waiting_step
        Law of the wait for prefill on its grid.
    waits, edges : ndarray, shape (bins,) and (bins + 1,)
        Waits told apart where the TPOT depends on them [s], and the parts of [0, 1] they stand for.
    wait : tuple of float
        Mean wait for KV [s]; step under way [s]; work of later arrivals in the last step: share of
        the prefill beyond the most, a second waited, and at most [s].
    behind : tuple of float
        Share of the shared work by which the interval behind is longer, and the factor on it.
    table, most_table
        Laws of the stalls by interval, and by count: values, step of each, logarithm of the first
        level and levels for a unit of logarithm; the second empty where it never binds.

    Returns
    -------
    ndarray, shape (3, n)
    """
    cdf, steps, first, per_level = table
    most_cdf, most_steps, most_first, most_per_level = most_table
    kv_wait, under_way, share_load, slope, most_shared = wait
    shared_share, factor = behind
    result = np.zeros((3, tokens.size))
    last = waiting.size - 1
    for group in range(weights.size):
        weight = weights[group]
        for i in range(tokens.size):
            own = prefill[group, i]
            base = share_load * max(own - most_shared, 0.0)
            left = spare[i] - own
            if not blocked[group]:
                left -= under_way
                left = max((left - base) / (1.0 + slope), left - most_shared)
            in_ttft = 0.0
            if left >= 0.0:
                place = left / waiting_step
                in_ttft = waiting[last]
                if place < last:
                    index = int(place)
                    in_ttft = waiting[index] + (place - index) * (
                        waiting[index + 1] - waiting[index]
                    )
                if blocked[group]:
                    in_ttft *= 1.0 - np.exp(-left / kv_wait)
            result[0, i] += weight * in_ttft
            decode = tokens[i] * step[group, i]
            room = tokens[i] * tpot_limit - decode
            by_count = 0.0
            limited = tokens[i] > 0.0 and tpot_limit < np.inf
            if limited and most_steps.size:
                low, share = _level(most[i], most_first, most_per_level, most_steps.size)
                by_count = _between(most_cdf, most_steps, low, share, room)
            bins = 1 if blocked[group] else waits.size
            for b in range(bins):
                low_edge = 0.0 if blocked[group] else edges[b]
                high_edge = 1.0 if blocked[group] else edges[b + 1]
                in_tpot = 1.0
                if limited:
                    in_tpot = by_count
                    if by_count < 1.0:
                        interval = own
                        if not blocked[group]:
                            shared = min(base + slope * waits[b], most_shared)
                            interval = max(own + waits[b] + shared_share * shared, 0.0)
                        interval = decode + factor * interval
                        low, share = _level(interval, first, per_level, steps.size)
                        in_tpot = max(_between(cdf, steps, low, share, room), by_count)
                # of this bin of waits, the part short enough for the TTFT
                short = min(max(in_ttft - low_edge, 0.0), high_edge - low_edge)
                result[1, i] += weight * (high_edge - low_edge) * in_tpot
                result[2, i] += weight * short * in_tpot
    return np.minimum(np.maximum(result, 0.0), 1.0)


@njit(cache=True)
def _level(parameter: float, first: float, per_level: float, levels: int) -> Any:
    """Level below a parameter, and how far it is towards the next."""
    position = min(max((np.log(parameter) - first) * per_level, 0.0), levels - 1.0)
    low = min(int(position), max(levels - 2, 0))
    return low, position - low
