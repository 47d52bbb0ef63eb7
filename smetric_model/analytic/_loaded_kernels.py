"""Compiled sums over an instance's requests: their groups, their mean wait, what stalls them.

The formulas are those of :mod:`smetric_model.analytic.loaded`, where they are derived.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from smetric_model.analytic._stall_kernels import FAST, LastStep, shared_s

__all__ = ["e2e_cases", "groups", "mean_beyond", "stall_intervals", "tpot_cases"]


@njit(cache=True, error_model="numpy")
def groups(seen, tokens, batches, fits, rates, seen_full, full_rate, most):  # type: ignore[no-untyped-def]
    """Arrivals by the batch they will run in.

    Parameters
    ----------
    seen, tokens : ndarray, shape (b,)
        P(l present) as an arrival finds it, and share of the tokens made with l present.
    batches, fits, rates : ndarray, shape (b,)
        Mean number in service, P(all fit) and completion rate with 1, 2, … present [requests/s].
    seen_full, full_rate : float
        P(all places taken) as an arrival finds it, and the arrival rate then [requests/s].
    most : int
        Groups told apart among those that are not blocked.

    Returns
    -------
    weights, batch : ndarray, shape (most + 1,)
        P(group) and its batch; the last is of those blocked.
    wait : float
        Mean wait for a place of those blocked, had completions no variability [s].
    """
    size = batches.size
    weights, batch = np.zeros(most + 1), np.ones(most + 1)
    blocked, wait, made = seen_full, 0.0, 0.0
    for level in range(size):
        taken = seen[level] * (1.0 - fits[level])
        blocked += taken
        made += tokens[level]
        if level > 0:
            wait += taken * (level - batches[level - 1] + 1.0) / rates[level - 1]
    ratio = min(full_rate / rates[-1], 1.0 - 1e-6)
    beyond = size - batches[-1] + 1.0 + ratio / (1.0 - ratio)
    wait += seen_full * beyond / rates[-1]
    if made > 0.0 and blocked < 1.0:
        upto = 0.0
        for level in range(size):
            upto += tokens[level]
            group = min(int(upto / made * most - 1e-9), most - 1)
            weights[group] += tokens[level]
            if level > 0:
                batch[group] += tokens[level] * batches[level - 1]
        for group in range(most):
            if weights[group] > 0.0:
                batch[group] = max((batch[group] - 1.0) / weights[group], 1.0)
                # one that finds room starts below the largest batch; one that waited starts in it
                weights[group] *= (1.0 - blocked) / made
    elif blocked < 1.0:  # one place: whoever finds it free runs alone
        weights[0] = 1.0 - blocked
    weights[most] = max(blocked, 0.0)
    batch[most] = batches[-1]
    return weights, batch, wait / blocked if blocked > 0.0 else 0.0


@njit(cache=True, error_model="numpy", fastmath=FAST)
def mean_beyond(prefill, blocked, weights, waits, edges, longer_s, step: LastStep):  # type: ignore[no-untyped-def]
    """Mean time to the first token beyond the prefill work ahead: own prefill, and last step [s].

    Parameters
    ----------
    prefill : ndarray, shape (groups, n)
        Time of the own prefill [s].
    blocked, weights : ndarray, shape (groups,)
        Whether a group waits for KV, and its weight.
    waits, edges : ndarray, shape (bins,) and (bins + 1,)
        Waits told apart [s], and the parts of [0, 1] they stand for.
    longer_s : float
        By how much the wait for KV exceeds that for prefill, in mean [s].
    step : LastStep
        What else it meets.

    Returns
    -------
    own, beyond : float
        Means of the two parts [s].
    """
    own, beyond = 0.0, 0.0
    for group in range(weights.size):
        total = 0.0
        for i in range(prefill.shape[1]):
            total += prefill[group, i]
        own += weights[group] * total / prefill.shape[1]
        if blocked[group]:
            beyond += weights[group] * longer_s
            continue
        total = 0.0
        for b in range(waits.size):
            part = 0.0
            for i in range(prefill.shape[1]):
                part += shared_s(prefill[group, i], waits[b], step)
            total += (edges[b + 1] - edges[b]) * part
        beyond += weights[group] * (step.under_way_s + total / prefill.shape[1])
    return own, beyond


@njit(cache=True, error_model="numpy", fastmath=FAST)
def _interval(
    own: float, wait: float, decode: float, step: LastStep, over: float, ratio: float
) -> Any:
    """Interval whose arrivals stall a request: its decode, and what is still to be prefilled [s].

    The latter is as long as it would have to be beside a decode for as much work to come
    (``ratio``); ``over`` is one over the load, 1 where nothing is shared.
    """
    shared = shared_s(own, wait, step)
    return decode + ratio * max(own + wait + shared * (1.0 - over), 0.0)


@njit(cache=True, error_model="numpy", fastmath=FAST)
def stall_intervals(prefill, decode, cases, waits, over, step: LastStep, ratio):  # type: ignore[no-untyped-def]
    """Interval whose arrivals stall each request in each of some circumstances [s].

    Parameters
    ----------
    prefill, decode : ndarray, shape (groups, n)
        Time of the own prefill, and of the own decode steps [s].
    cases : ndarray of int, shape (cases,)
        Group of each of the circumstances.
    waits, over : ndarray, shape (cases,)
        Wait for prefill [s]; one over the load, 1 where nothing is shared.
    step : LastStep
        What else it meets.
    ratio : float
        Work that comes in a second while a prefill runs ÷ beside a decode.

    Returns
    -------
    ndarray, shape (cases, n)
    """
    result = np.empty((cases.size, prefill.shape[1]))
    for case in range(cases.size):
        group = cases[case]
        for i in range(prefill.shape[1]):
            result[case, i] = _interval(
                prefill[group, i], waits[case], decode[group, i], step, over[case], ratio
            )
    return result


@njit(cache=True, error_model="numpy")
def tpot_cases(rows, turn, turns, decode, log_interval, log_most, tokens, cases, shares):  # type: ignore[no-untyped-def]
    """Cases behind the quantiles of the TPOT: requests meet the circumstances in turn.

    Parameters
    ----------
    rows, turn : ndarray of int, shape (m,)
        Requests with two tokens or more, and the turn of each.
    turns : int
        Each meets one in so many of the circumstances.
    decode : ndarray, shape (groups, n)
        Time of the own decode steps [s].
    log_interval : ndarray, shape (cases, n)
        Logarithm of the interval whose arrivals stall it.
    log_most, tokens : ndarray, shape (n,)
        Logarithm of the most prefills beside it; tokens after the first.
    cases, shares : ndarray, shape (cases,)
        Group of each of the circumstances, and its probability.

    Returns
    -------
    ndarray, shape (5, k)
        Of each case: tokens, time of its own [s], weight, and the logarithms.
    """
    result = np.empty((5, cases.size * rows.size))
    count = 0
    for case in range(cases.size):
        start = count
        for j in range(rows.size):
            if turn[j] != case % turns:
                continue
            i = rows[j]
            result[0, count] = tokens[i]
            result[1, count] = decode[cases[case], i]
            result[3, count] = log_interval[case, i]
            result[4, count] = log_most[i]
            count += 1
        for j in range(start, count):
            result[2, j] = shares[case] / (count - start)
    return result[:, :count]


@njit(cache=True, error_model="numpy")
def e2e_cases(  # type: ignore[no-untyped-def]
    rows,
    turn,
    turns,
    before,
    prefill,
    decode,
    blocked,
    weights,
    waits,
    longer,
    over,
    step: LastStep,
    ratio,
):
    """Time to the first token of requests that meet the waits in turn, and what stalls them later.

    Parameters
    ----------
    rows, turn : ndarray of int, shape (m,)
        Requests, and the turn of each.
    turns : int
        Each meets one in so many of the waits.
    before : ndarray, shape (n,)
        Time before the prefill [s].
    prefill, decode : ndarray, shape (groups, n)
        Time of the own prefill, and of the own decode steps [s].
    blocked, weights : ndarray, shape (groups,)
        Whether a group waits for KV, and its weight.
    waits, longer : ndarray, shape (k,)
        Equally likely waits for prefill, and for what takes longer, prefill or KV [s].
    over, ratio : float
        One over the load; work that comes in a second while a prefill runs ÷ beside a decode.
    step : LastStep
        What else they meet.

    Returns
    -------
    ndarray, shape (3, groups * k / turns * m)
        Weight of each case, its time to the first token, and the interval whose arrivals stall it
        [s].
    """
    met = waits.size // turns
    result = np.empty((3, weights.size * met * rows.size))
    count = 0
    for group in range(weights.size):
        weight = weights[group] / (met * rows.size)
        for k in range(met):
            for j in range(rows.size):
                i = rows[j]
                own = prefill[group, i]
                at = k * turns + (turn[j] + group) % turns
                result[0, count] = weight
                if blocked[group]:
                    time, wait, share = longer[at], 0.0, 1.0
                else:
                    wait, share = waits[at], over
                    time = wait + step.under_way_s + shared_s(own, wait, step)
                result[1, count] = before[i] + own + time
                result[2, count] = _interval(own, wait, decode[group, i], step, share, ratio)
                count += 1
    return result
