"""Compiled quantiles of mixtures of laws on grids: what a request adds, and a wait or stalls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from smetric_model.analytic._stall_kernels import FAST, LastStep, in_time, stalls_within

__all__ = ["stall_quantiles", "ttft_quantiles", "ttft_within"]

_WIDTH = 0.005  # of the bracket in which a quantile is interpolated, in logarithms
_MOST = 40  # knots for a quantile
_EDGE = 1e-3  # probabilities nearer to 0 or 1 are drawn as this


@njit(cache=True, error_model="numpy")
def _drawn(probability: float) -> Any:
    """Coordinate in which many laws are about linear in the logarithm: Weibull's paper."""
    return np.log(-np.log1p(-min(max(probability, _EDGE), 1.0 - _EDGE)))


@njit(cache=True, error_model="numpy")
def _bracket(knots, count: int, share: float) -> Any:  # type: ignore[no-untyped-def]
    """Upper knot of the bracket of a quantile, and where in it the quantile is by interpolation."""
    upper = 1
    while upper < count - 1 and knots[1, upper] < share:
        upper += 1
    low, high = knots[1, upper - 1], knots[1, upper]
    rise = _drawn(high) - _drawn(low)
    part = (_drawn(share) - _drawn(low)) / rise if rise > 0.0 else 1.0
    return upper, min(max(part, 0.0), 1.0)


@njit(cache=True, error_model="numpy")
def _ask(knots, count: int, share: float, turn: int) -> Any:  # type: ignore[no-untyped-def]
    """Where a law is to be looked up next for a quantile; nan once it is known well enough.

    Interpolation takes turns with bisection, so that steps of a law cost no more than bisection
    alone; a point near a knot goes beyond the quantile, so that the bracket closes.
    """
    upper, part = _bracket(knots, count, share)
    low, width = knots[0, upper - 1], knots[0, upper] - knots[0, upper - 1]
    if width < _WIDTH or knots[1, count - 1] < share or turn == _MOST:
        return np.nan
    if turn % 3 == 2:
        part = 0.5
    beside = 0.9 * _WIDTH / width
    if part < 0.5 * beside:
        part = min(beside, 0.5)
    elif part > 1.0 - 0.5 * beside:
        part = max(1.0 - beside, 0.5)
    return low + part * width


@njit(cache=True, error_model="numpy")
def _note(knots, count: int, at: float, value: float) -> int:  # type: ignore[no-untyped-def]
    """Insert what a law was found to be; returns the number of knots."""
    place = count
    while knots[0, place - 1] > at:
        knots[:, place] = knots[:, place - 1]
        place -= 1
    knots[0, place] = at
    knots[1, place] = min(max(value, knots[1, place - 1]), knots[1, place + 1])
    return count + 1


@njit(cache=True, error_model="numpy")
def _read(knots, count: int, share: float) -> Any:  # type: ignore[no-untyped-def]
    """Quantile between two knots; inf where the law ends below it."""
    if knots[1, count - 1] < share:
        return np.inf
    upper, part = _bracket(knots, count, share)
    return np.exp(knots[0, upper - 1] + part * (knots[0, upper] - knots[0, upper - 1]))


@njit(cache=True, error_model="numpy")
def _knots(low: float, high: float, at_high: float, shares: int) -> Any:
    knots = np.empty((2, 2 + _MOST * shares))
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
    shares, low, high, own, before, blocked, weights, waiting, wait_step, kv_wait, step: LastStep
):
    """Quantiles of the law of :func:`ttft_within`; ascending ``shares``, between two times [s]."""
    found = np.empty(shares.size)
    value = ttft_within(high, own, before, blocked, weights, waiting, wait_step, kv_wait, step)
    knots, count = _knots(low, high, value, shares.size), 2
    for k in range(shares.size):
        at = _ask(knots, count, shares[k], 0)
        turn = 0
        while at == at:
            value = ttft_within(
                np.exp(at), own, before, blocked, weights, waiting, wait_step, kv_wait, step
            )
            count = _note(knots, count, at, value)
            turn += 1
            at = _ask(knots, count, shares[k], turn)
        found[k] = _read(knots, count, shares[k])
    return found


@njit(cache=True, error_model="numpy")
def stall_quantiles(shares, low, high, numbers, starts, table, most_table):  # type: ignore[no-untyped-def]
    """Quantiles of the law of :func:`stalls_within`, as :func:`ttft_quantiles`."""
    found = np.empty(shares.size)
    at_high = stalls_within(high, numbers, starts, table, most_table)
    knots = _knots(low, high, at_high, shares.size)
    count = 2
    for k in range(shares.size):
        at = _ask(knots, count, shares[k], 0)
        turn = 0
        while at == at:
            value = stalls_within(np.exp(at), numbers, starts, table, most_table)
            count = _note(knots, count, at, value)
            turn += 1
            at = _ask(knots, count, shares[k], turn)
        found[k] = _read(knots, count, shares[k])
    return found
