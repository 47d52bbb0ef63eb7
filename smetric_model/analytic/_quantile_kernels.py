"""Compiled quantiles of mixtures of laws on grids: what a request adds, and a wait or stalls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from smetric_model.analytic._stall_kernels import FAST, LastStep, in_time, stalls_within

__all__ = ["stall_quantiles", "ttft_quantiles", "ttft_within"]

_WIDTH = 0.005  # of the bracket in which a quantile is interpolated, in logarithms
_MOST = 40  # knots for a quantile
_DOUBLINGS = 8  # of the highest time, at most
_BISECT = 4  # every so many-th knot is in the middle of the bracket
_EDGE = 1e-3  # probabilities nearer to 0 or 1 are drawn as this


@njit(cache=True, error_model="numpy")
def _drawn(probability: float) -> Any:
    """Coordinate in which many laws are about linear in the logarithm: Weibull's paper."""
    return np.log(-np.log1p(-min(max(probability, _EDGE), 1.0 - _EDGE)))


@njit(cache=True, error_model="numpy")
def _upper(knots, count: int, share: float) -> int:  # type: ignore[no-untyped-def]
    """Upper knot of the bracket of a quantile."""
    upper = 1
    while upper < count - 1 and knots[1, upper] < share:
        upper += 1
    return upper


@njit(cache=True, error_model="numpy")
def _between(knots, first: int, end: int, share: float) -> Any:  # type: ignore[no-untyped-def]
    """Quantile by the polynomial through some knots, drawn; nan where two are level."""
    wanted = _drawn(share)
    found = 0.0
    for i in range(first, end):
        own, term = _drawn(knots[1, i]), knots[0, i]
        for k in range(first, end):
            if k != i:
                term *= (wanted - _drawn(knots[1, k])) / (own - _drawn(knots[1, k]))
        found += term
    return found


@njit(cache=True, error_model="numpy")
def _ask(knots, count: int, share: float, turn: int) -> Any:  # type: ignore[no-untyped-def]
    """Where a law is to be looked up next for a quantile; nan once it is known well enough.

    By the bracket and the knots on either side of it.  Interpolation takes turns with bisection,
    so that steps of a law cost no more than bisection alone; near a knot it goes beyond the
    quantile, so that the bracket closes.
    """
    upper = _upper(knots, count, share)
    low, high = knots[0, upper - 1], knots[0, upper]
    if high - low < _WIDTH or knots[1, count - 1] < share or turn == _MOST:
        return np.nan
    middle = 0.5 * (low + high)
    at = middle
    if turn % _BISECT != _BISECT - 1:
        first = upper - 2 if upper > 1 and knots[1, upper - 2] > _EDGE else upper - 1
        end = upper + 2 if upper < count - 1 and knots[1, upper + 1] < 1.0 - _EDGE else upper + 1
        for _ in range(2):
            at = _between(knots, first, end, share)
            if low <= at <= high:
                break
            first, end, at = upper - 1, upper + 1, middle
    near, beyond = 0.9 * _WIDTH, 0.25 * _WIDTH
    if at - low < near:
        return min(max(at + beyond, low + near), middle)
    if high - at < near:
        return max(min(at - beyond, high - near), middle)
    return at


@njit(cache=True, error_model="numpy")
def _note(knots, count: int, at: float, value: float) -> int:  # type: ignore[no-untyped-def]
    """Insert what a law was found to be between its ends; returns the number of knots."""
    if not knots[0, 0] < at < knots[0, count - 1]:
        return count
    place = count
    while knots[0, place - 1] > at:
        knots[0, place], knots[1, place] = knots[0, place - 1], knots[1, place - 1]
        place -= 1
    knots[0, place] = at
    knots[1, place] = min(max(value, knots[1, place - 1]), knots[1, place + 1])
    return count + 1


@njit(cache=True, error_model="numpy")
def _read(knots, count: int, share: float) -> Any:  # type: ignore[no-untyped-def]
    """Quantile between two knots; inf where the law ends below it."""
    if knots[1, count - 1] < share:
        return np.inf
    upper = _upper(knots, count, share)
    at = _between(knots, upper - 1, upper + 1, share)
    return np.exp(at if at == at else knots[0, upper])


@njit(cache=True, error_model="numpy")
def _knots(low: float, high: float, at_high: float, shares: int) -> Any:
    knots = np.empty((2, 3 + _MOST * (shares + 1)))
    knots[0, 0], knots[1, 0] = np.log(low), 0.0
    knots[0, 1], knots[1, 1] = np.log(high), at_high
    return knots


@njit(cache=True, error_model="numpy", fastmath=FAST)
def ttft_within(limit, own, before, blocked, weights, waiting, wait_step, kv_wait, step: LastStep):  # type: ignore[no-untyped-def]
    """Weighted mean of P(TTFT <= limit).

    Parameters
    ----------
    limit : float
        Limit [s].
    own : ndarray, shape (groups, n)
        Time of the own prefill [s].
    before : ndarray, shape (n,)
        Time before it [s].
    blocked, weights : ndarray, shape (groups,)
        Whether a group waits for KV, and its weight.
    waiting, wait_step : ndarray, shape (points,), and float
        Law of the wait for prefill at multiples of a step [s].
    kv_wait : float
        Mean wait for KV [s].
    step : LastStep
        What else an arrival meets.
    """
    total = 0.0
    for group in range(weights.size):
        within = 0.0
        for i in range(before.size):
            within += in_time(
                limit - before[i], own[group, i], blocked[group], waiting, wait_step, kv_wait, step
            )
        total += weights[group] * within / before.size
    return total


@njit(cache=True, error_model="numpy")
def ttft_quantiles(  # type: ignore[no-untyped-def]
    shares,
    low,
    mean,
    high,
    own,
    before,
    blocked,
    weights,
    waiting,
    wait_step,
    kv_wait,
    step: LastStep,
):
    """Quantiles of the law of :func:`ttft_within`.

    Parameters
    ----------
    shares : ndarray, shape (k,)
        Ascending.
    low, mean, high : float
        Where the law is 0, about its mean, and where it is near 1 [s].
    own, before, blocked, weights, waiting, wait_step, kv_wait, step
        As in :func:`ttft_within`.

    Returns
    -------
    ndarray, shape (k,)
        ``inf`` where the law ends below a share [s].
    """
    found = np.empty(shares.size)
    value = ttft_within(high, own, before, blocked, weights, waiting, wait_step, kv_wait, step)
    knots, count = _knots(low, high, value, shares.size), 2
    at = np.log(mean)
    for k in range(shares.size):
        turn = 0
        while at == at:
            value = ttft_within(
                np.exp(at), own, before, blocked, weights, waiting, wait_step, kv_wait, step
            )
            count = _note(knots, count, at, value)
            at = _ask(knots, count, shares[k], turn)
            turn += 1
        found[k] = _read(knots, count, shares[k])
        at = _ask(knots, count, shares[min(k + 1, shares.size - 1)], 0)
    return found


@njit(cache=True, error_model="numpy")
def stall_quantiles(shares, low, high, numbers, starts, table, most_table):  # type: ignore[no-untyped-def]
    """Quantiles of the law of :func:`stalls_within`, as :func:`ttft_quantiles`.

    (It ends at 1: ``high`` is doubled where it is too low.)
    """
    found = np.empty(shares.size)
    value = stalls_within(high, numbers, starts, table, most_table)
    for _ in range(_DOUBLINGS):
        if value >= shares[-1]:
            break
        high *= 2.0
        value = stalls_within(high, numbers, starts, table, most_table)
    knots, count = _knots(low, high, value, shares.size), 2
    mean, weight = 0.0, 0.0
    for i in range(numbers.shape[1]):
        mean += numbers[2, i] * numbers[1, i] / numbers[0, i]
        weight += numbers[2, i]
    at = np.log(mean / weight)
    for k in range(shares.size):
        turn = 0
        while at == at:
            value = stalls_within(np.exp(at), numbers, starts, table, most_table)
            count = _note(knots, count, at, value)
            at = _ask(knots, count, shares[k], turn)
            turn += 1
        found[k] = _read(knots, count, shares[k])
        at = _ask(knots, count, shares[min(k + 1, shares.size - 1)], 0)
    return found
