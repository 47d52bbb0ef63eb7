"""Compiled look-ups in the laws of waits and stalls: many requests, few tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "FAST",
    "NUMBERS",
    "LastStep",
    "Table",
    "in_time",
    "placed",
    "shared_s",
    "stalls_within",
    "within_slo",
]

#: what sums and products may be made to be vectors
FAST = {"reassoc", "contract", "arcp", "nsz"}
NUMBERS = 9  #: of each case; see :func:`placed`


class Table(NamedTuple):
    """Laws on grids of their own at levels of a parameter, linear between levels' logarithms.

    Attributes
    ----------
    cdf : ndarray of float32, shape (levels + 2, points)
        P(amount <= k step) of each level, two or more; the last two rows are 1 everywhere.
        (Look-ups take half as long as with more digits than anyone needs.)
    per_step : ndarray, shape (levels + 2,)
        One over the step of each level's grid [1/s].
    log_first, per_level : float
        Logarithm of the first level, and levels for a unit of logarithm.
    last : float
        Index of the last level.
    """

    cdf: NDArray[np.float32]
    per_step: NDArray[np.float64]
    log_first: float
    per_level: float
    last: float


class LastStep(NamedTuple):
    """What an arrival meets besides the prefill work ahead of it.

    Attributes
    ----------
    under_way_s : float
        Rest of the step under way [s].
    share_load, share_slope, most_s : float
        Work of later arrivals that leaves with it: share of the own prefill beyond the most, a
        second waited, and at most [s].
    """

    under_way_s: float
    share_load: float
    share_slope: float
    most_s: float


@njit(cache=True, error_model="numpy", fastmath=FAST)
def shared_s(own: float, wait: float, step: LastStep) -> Any:
    """Work of later arrivals that leaves with a request, after a wait [s]."""
    base = step.share_load * max(own - step.most_s, 0.0)
    return min(base + step.share_slope * wait, step.most_s)


@njit(cache=True, error_model="numpy", fastmath=FAST)
def in_time(  # type: ignore[no-untyped-def]
    limit, own, blocked, waiting, wait_step, kv_wait, step: LastStep
):
    """P(wait, own prefill and last step take no longer than a limit)."""
    left = limit - own
    if not blocked:
        # what later arrivals add to the last step grows with the wait up to the most
        left -= step.under_way_s
        base = step.share_load * max(own - step.most_s, 0.0)
        left = max((left - base) / (1.0 + step.share_slope), left - step.most_s)
    last = waiting.size - 1.0
    place = min(max(left, 0.0) / wait_step, last)
    index = np.uint32(min(place, last - 1.0))
    value = waiting[index] + (place - index) * (waiting[index + np.uint32(1)] - waiting[index])
    if blocked:
        value *= 1.0 - np.exp(-max(left, 0.0) / kv_wait)
    return value if left >= 0.0 else 0.0


@njit(cache=True, error_model="numpy", fastmath=FAST)
def _level(table: Table, log_parameter: float) -> Any:
    """Row of the level below a parameter, and how far it is towards the next."""
    position = min(max((log_parameter - table.log_first) * table.per_level, 0.0), table.last)
    low = np.int32(min(position, table.last - 1.0))
    return low, position - low


@njit(cache=True, error_model="numpy", fastmath=FAST)
def _of_law(flat, last, start, share, per_step, per_step_above, x):  # type: ignore[no-untyped-def]
    """Value of a table's law at x >= 0, from the row that starts at ``start`` and the next one."""
    place = min(x * per_step, last)
    whole = np.int32(place)
    index = np.uint32(start + whole)
    low = flat[index]
    low += (place - np.float32(whole)) * (flat[index + np.uint32(1)] - low)
    place = min(x * per_step_above, last)
    whole = np.int32(place)
    index = np.uint32(start + np.int32(last) + np.int32(1) + whole)
    high = flat[index]
    high += (place - np.float32(whole)) * (flat[index + np.uint32(1)] - high)
    return low + share * (high - low)


@njit(cache=True, error_model="numpy")
def placed(numbers, starts, log_interval, log_most, alone, table: Table, most_table: Table):  # type: ignore[no-untyped-def]
    """Fill in where the laws of each case are found.

    Parameters
    ----------
    numbers : ndarray of float32, shape (9, n)
        Of each case: steps, time of its own [s], and weight; then, filled in, how far each law is
        from the level below to the one above and what a second is in steps of the two, by
        interval, and the same by places.
    starts : ndarray of int32, shape (2, n)
        Filled in: where the laws' rows start.
    log_interval, log_most : ndarray, shape (n,)
        Logarithms of the interval whose arrivals stall it [s], and of the most that its places
        allow.
    alone : ndarray of bool, shape (n,)
        Which cases nobody stalls.
    table, most_table : Table
        Laws by interval and by places.
    """
    for i in range(log_interval.size):
        low, numbers[3, i] = _level(table, log_interval[i])
        numbers[4, i], numbers[5, i] = table.per_step[low], table.per_step[low + 1]
        starts[0, i] = low * table.cdf.shape[1]
    for i in range(log_interval.size):
        low, share = _level(most_table, log_most[i])
        if alone[i]:
            low = np.int32(most_table.last + 1.0)
        numbers[6, i] = share
        numbers[7, i], numbers[8, i] = most_table.per_step[low], most_table.per_step[low + 1]
        starts[1, i] = low * most_table.cdf.shape[1]


@njit(cache=True, error_model="numpy", fastmath=FAST)
def stalls_within(limit: float, numbers, starts, table: Table, most_table: Table):  # type: ignore[no-untyped-def]
    """Weighted mean of P(stalls fit into what a limit a token leaves).

    Parameters
    ----------
    limit : float
        Limit a token [s].
    numbers, starts : ndarray
        Cases, as :func:`placed` leaves them.
    table, most_table : Table
        Laws by interval and by places.
    """
    flat, most_flat = table.cdf.ravel(), most_table.cdf.ravel()
    last = np.float32(table.cdf.shape[1] - 1)
    most_last = np.float32(most_table.cdf.shape[1] - 1)
    longest, nothing = np.float32(limit), np.float32(0.0)
    tokens, own, weights = numbers[0], numbers[1], numbers[2]
    share, low, high = numbers[3], numbers[4], numbers[5]
    most_share, most_low, most_high = numbers[6], numbers[7], numbers[8]
    start, most_start = starts[0], starts[1]
    total = nothing
    for i in range(tokens.size):
        room = tokens[i] * longest - own[i]
        spare = max(room, nothing)
        value = _of_law(flat, last, start[i], share[i], low[i], high[i], spare)
        other = _of_law(
            most_flat, most_last, most_start[i], most_share[i], most_low[i], most_high[i], spare
        )
        total += weights[i] * max(value, other) if room >= nothing else nothing
    return float(total)


@njit(cache=True, error_model="numpy", fastmath=FAST)
def within_slo(  # type: ignore[no-untyped-def]
    prefill,
    decode,
    blocked,
    weights,
    groups,
    edges,
    log_interval,
    log_most,
    tokens,
    spare,
    tpot_limit,
    waiting,
    wait_step,
    kv_wait,
    step: LastStep,
    table: Table,
    most_table: Table,
):
    """P(TTFT within its limit), P(TPOT within its), and P(both) of each request.

    Parameters
    ----------
    prefill, decode : ndarray, shape (groups, n)
        Time of the own prefill, and of the own decode steps [s].
    blocked, weights : ndarray, shape (groups,)
        Whether a group waits for KV, and its weight.
    groups : ndarray of int, shape (cases,)
        Group of each of the circumstances told apart where the TPOT depends on them.
    edges : ndarray, shape (2, cases)
        Which part of its waits, in [0, 1], each stands for.
    log_interval : ndarray, shape (cases, n)
        Logarithm of the interval whose arrivals stall a request [s].
    log_most, tokens, spare : ndarray, shape (n,)
        Logarithm of the most prefills beside it; tokens after the first; TTFT limit less what lies
        before the prefill [s].
    tpot_limit : float
        Limit a token [s]; finite.
    waiting, wait_step : ndarray, shape (points,), and float
        Law of the wait for prefill at multiples of a step [s].
    kv_wait : float
        Mean wait for KV [s].
    step : LastStep
        What else an arrival meets.
    table, most_table : Table
        Laws of the stalls by interval, and by places.

    Returns
    -------
    ndarray, shape (3, n)
    """
    flat, most_flat = table.cdf.ravel(), most_table.cdf.ravel()
    last, most_last = table.cdf.shape[1] - 1.0, most_table.cdf.shape[1] - 1.0
    count = tokens.size
    result = np.zeros((3, count))
    soon = np.empty(prefill.shape)
    for group in range(weights.size):
        for i in range(count):
            soon[group, i] = in_time(
                spare[i], prefill[group, i], blocked[group], waiting, wait_step, kv_wait, step
            )
            result[0, i] += weights[group] * soon[group, i]
    by_count = np.empty(count)
    before = -1
    for case in range(groups.size):
        group = groups[case]
        if group != before:  # what the places allow does not depend on the wait
            for i in range(count):
                low, share = _level(most_table, log_most[i])
                room = max(tokens[i] * tpot_limit - decode[group, i], 0.0)
                by_count[i] = _of_law(
                    most_flat,
                    most_last,
                    low * np.int32(most_table.cdf.shape[1]),
                    share,
                    most_table.per_step[low],
                    most_table.per_step[low + 1],
                    room,
                )
            before = group
        start, end = edges[0, case], edges[1, case]
        for i in range(count):
            low, share = _level(table, log_interval[case, i])
            room = tokens[i] * tpot_limit - decode[group, i]
            value = _of_law(
                flat,
                last,
                low * np.int32(table.cdf.shape[1]),
                share,
                table.per_step[low],
                table.per_step[low + 1],
                max(room, 0.0),
            )
            value = max(value, by_count[i]) if room >= 0.0 else 0.0
            value = value if tokens[i] > 0.0 else 1.0
            # of these waits, the part short enough for the TTFT
            short = min(max(soon[group, i] - start, 0.0), end - start)
            result[1, i] += weights[group] * (end - start) * value
            result[2, i] += weights[group] * short * value
    for i in range(count):
        for k in range(3):
            result[k, i] = min(max(result[k, i], 0.0), 1.0)
    return result
