"""Compiled parts of the routing mean field: laws of the chain of one instance's load."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@njit(cache=True, error_model="numpy")
def join_least_loaded(
    rate: float, completion_rate: FloatArray, instances: int, top: int
) -> FloatArray:
    r"""Return the law of one instance's load when every request joins the least loaded.

    Balance across level k reads ``sum_{l >= k} p_l mu_l = rate G_{k-1}^N`` with
    ``G_k = P(load >= k)``: given the top, all lower levels follow, and the top is found, by
    bisection and then regula falsi (Illinois), so that ``G_0 = 1``.  Logarithms, since ``G_k``
    falls doubly exponentially in k.

    Parameters
    ----------
    rate : float
        Requests per second and instance.
    completion_rate : ndarray, shape (levels,)
        mu(1), mu(2), …
    instances : int
        N >= 2.
    top : int
        Highest load kept, at most ``levels``.
    """
    log_g, log_mu = np.empty(top + 1), np.empty(top)
    for k in range(top):
        log_mu[k] = math.log(completion_rate[k])
    log_rate = math.log(rate)
    low, high = -30.0, min(math.log(instances) * top + 5.0, 690.0)
    at_low, at_high, side = 1.0, -1.0, 0
    for step in range(100):
        near = step > 1 and high - low < 1.0
        share = at_low / (at_low - at_high) if near else 0.5
        middle = low + share * (high - low)
        current = -math.exp(middle)
        log_g[top] = current
        log_sum = current + log_mu[top - 1]
        for k in range(top, 0, -1):
            below = max((log_sum - log_rate) / instances, current)
            log_g[k - 1] = below
            if below > current and k > 1:
                term = below + math.log(-math.expm1(current - below)) + log_mu[k - 2]
                more = max(term, log_sum)
                log_sum = more + math.log1p(math.exp(min(term, log_sum) - more))
            current = below
            if below > 1.0:  # far above: no need to go on
                break
        if abs(current) < 1e-14 or high - low < 1e-14 * abs(middle):
            break
        if current > 0.0:
            low, at_low = middle, min(current, 1.0)
            at_high *= 0.5 if side > 0 else 1.0
            side = 1
        else:
            high, at_high = middle, max(current, -1.0)
            at_low *= 0.5 if side < 0 else 1.0
            side = -1
    law = np.zeros(completion_rate.size + 1)
    for k in range(top + 1):
        above = math.exp(min(log_g[k + 1], 0.0)) if k < top else 0.0
        law[k] = max(math.exp(min(log_g[k], 0.0)) - above, 0.0)
    total = 0.0
    for k in range(law.size):
        total += law[k]
    for k in range(law.size):
        law[k] /= total
    return law


@njit(cache=True, error_model="numpy")
def balance_free_flow(
    own: FloatArray,
    flow: float,
    of: int,
    moving: FloatArray,
    completion_rate: FloatArray,
    start: FloatArray,
) -> FloatArray:
    r"""Return P(load >= k) of an instance that has own arrivals and a share of two free flows.

    With G_k = P(load >= k), balance between l and l + 1 is

    .. math:: (G_l - G_{l+1}) own_l + flow (G_l^N - G_{l+1}^N)
        + moving_l (G_l^{N-1} - G_{l+1}^{N-1}) = (G_{l+1} - G_{l+2}) mu_{l+1},

    tridiagonal in G: Newton.  The flow to the least loaded is stiff (its slope grows with N), own
    arrivals are not; solving for the former at fixed latter leaves a mild outer iteration.

    Parameters
    ----------
    own : ndarray, shape (levels,)
        Own arrivals at each load.
    flow : float
        Flow to the least loaded of ``of``, per instance.
    of : int
        N.
    moving : ndarray, shape (levels,)
        Flow to the least loaded of N - 1 where that load is l.
    completion_rate : ndarray, shape (levels - 1,)
        mu(1), mu(2), …
    start : ndarray, shape (levels,)
        G to start from.
    """
    size = own.size
    g, best = np.zeros(size + 1), np.zeros(size + 1)
    for k in range(size):
        g[k] = best[k] = start[k]
    best_error = np.inf
    step = 1.0
    slope = np.empty(size + 1)
    power = np.empty(size + 1)
    power_moving = np.empty(size + 1)
    slope_moving = np.empty(size + 1)
    upper = np.empty(size)
    right = np.empty(size)
    least = math.exp(-700.0 / max(of - 2, 1))  # powers of smaller ones underflow
    for _ in range(60):
        for k in range(size + 1):
            raised = 1.0
            if of > 2:
                raised = g[k] ** (of - 2) if g[k] > least else 0.0
            power_moving[k] = raised * g[k]
            power[k] = power_moving[k] * g[k]
            slope_moving[k] = (of - 1) * raised
            slope[k] = of * power_moving[k]
        error = 0.0
        for row in range(size - 1):
            value = (
                (g[row] - g[row + 1]) * own[row]
                + flow * (power[row] - power[row + 1])
                + moving[row] * (power_moving[row] - power_moving[row + 1])
                - (g[row + 1] - g[row + 2]) * completion_rate[row]
            )
            right[row] = -value
            error = max(error, abs(value))
        if error < best_error:
            best_error = error
            for k in range(size + 1):
                best[k] = g[k]
            step = min(1.0, 2.0 * step)
        else:
            step *= 0.5
        if error < 1e-14 * completion_rate[-1]:
            break
        # rows l = 0 … size - 2, unknowns G_1 … G_{size-1}
        for row in range(size - 1):
            diagonal = (
                -own[row] - flow * slope[row + 1] - moving[row] * slope_moving[row + 1]
            ) - completion_rate[row]
            above = completion_rate[row] if row < size - 2 else 0.0
            if row > 0:
                lower = own[row] + flow * slope[row] + moving[row] * slope_moving[row]
                diagonal -= lower * upper[row - 1]
                right[row] -= lower * right[row - 1]
            if diagonal == 0.0:  # nothing flows there: far beyond saturation, powers underflow
                upper[row] = 0.0
                right[row] = 0.0
                continue
            upper[row] = above / diagonal
            right[row] /= diagonal
        for row in range(size - 3, -1, -1):
            right[row] -= upper[row] * right[row + 1]
        for row in range(size - 1):
            g[row + 1] += step * right[row]
        for k in range(1, size):  # a law: between 0 and what lies below
            g[k] = min(max(g[k], 0.0), g[k - 1])
    return best[:size]


@njit(cache=True, error_model="numpy")
def least_loaded_share(at_least: FloatArray, law: FloatArray, of: float) -> FloatArray:
    """(G_l^of - G_{l+1}^of) / p_l: what a flow to the least loaded of ``of`` brings to each load.

    Parameters
    ----------
    at_least, law : ndarray, shape (levels,)
        G_l = P(load >= l), and p.
    of : float
        How many the least loaded is chosen from; need not be whole.
    """
    result = np.empty(law.size)
    for k in range(law.size):
        above = at_least[k]
        if above <= 1e-300:
            result[k] = 0.0 if of > 1.0 else 1.0
            continue
        share = min(law[k] / above, 1.0)
        if share < 1e-9:
            result[k] = min(of * above ** (of - 1.0), 1e6)
        elif share >= 1.0:
            result[k] = above**of / law[k]
        else:
            result[k] = above**of * -math.expm1(of * math.log1p(-share)) / law[k]
    return result


@njit(cache=True, error_model="numpy")
def least_loaded_shares(
    at_least: FloatArray, law: FloatArray, of: int, of_all: FloatArray, of_others: FloatArray
) -> Any:
    """Work out :func:`least_loaded_share` of N and of N - 1 together.

    Parameters
    ----------
    at_least, law : ndarray, shape (levels,)
        As there.
    of : int
        N.
    of_all, of_others : ndarray, shape (levels,)
        Set.
    """
    for k in range(law.size):
        above = at_least[k]
        of_all[k], of_others[k] = 0.0, 0.0
        if above <= 1e-300:
            of_all[k] = 0.0 if of > 1 else 1.0
            of_others[k] = 0.0 if of > 2 else 1.0
            continue
        logarithm = math.log(above)
        if (of - 2) * logarithm < -700.0:
            continue
        share = min(law[k] / above, 1.0)
        if share < 1e-9:
            power = math.exp((of - 2) * logarithm)
            of_all[k] = min(of * power * above, 1e6)
            of_others[k] = min((of - 1.0) * power, 1e6)
            continue
        power = math.exp((of - 1) * logarithm)
        below = math.log1p(-share) if share < 1.0 else -np.inf
        of_all[k] = power * above * -math.expm1(of * below) / law[k]
        of_others[k] = power * (-math.expm1((of - 1) * below) if of > 1 else 0.0) / law[k]
    return 0


@njit(cache=True, error_model="numpy")
def birth_death(births: FloatArray, completion: FloatArray, law: FloatArray) -> Any:
    """Work out the law of a birth-death chain, in logarithms so that tails are exact.

    Parameters
    ----------
    births : ndarray, shape (levels,)
        Rates up.
    completion : ndarray, shape (levels - 1,)
        Rates down from 1, 2, …
    law : ndarray, shape (levels,)
        Set.
    """
    size = births.size
    law[0], top = 0.0, 0.0
    for k in range(size - 1):
        law[k + 1] = law[k] + math.log(max(births[k], 1e-290) / completion[k])
        top = max(top, law[k + 1])
    total = 0.0
    for k in range(size):
        law[k] = math.exp(law[k] - top)
        total += law[k]
    for k in range(size):
        law[k] /= total
    return 0


@njit(cache=True, error_model="numpy")
def load_field(
    law: FloatArray,
    slope: float,
    follow_rate: float,
    base: FloatArray,
    at_least: FloatArray,
    arrivals: FloatArray,
    seen: FloatArray,
) -> tuple[float, float, float]:
    """Work out what follows from an instance's law of the load and the slope of follow-ups.

    Parameters
    ----------
    law : ndarray, shape (levels,)
        P(load = l).
    slope : float
        Follow-ups per second for one request more.
    follow_rate : float
        Follow-ups per second of an instance.
    base : ndarray, shape (levels - 1,)
        Completions per second with 1, 2, … present.
    at_least, arrivals, seen : ndarray, shape (levels,)
        Set: P(load >= l); follow-ups per second at each load; the law that they find.

    Returns
    -------
    mean, variance, service_slope : float
        Of the load, and completions per second for one request more.
    """
    size = law.size
    above, mean = 0.0, 0.0
    for k in range(size - 1, -1, -1):
        arrivals[k], seen[k] = 0.0, law[k]
        above += law[k]
        at_least[k] = min(above, 1.0)
        mean += k * law[k]
    variance, service = 0.0, 0.0
    for k in range(size):
        deviation = k - mean
        variance += law[k] * deviation * deviation
        if k:
            service += law[k] * deviation * base[k - 1]
    variance = max(variance, 1e-12)
    if follow_rate > 0.0:
        total = 0.0
        for k in range(size):
            arrivals[k] = max(follow_rate + slope * (k - mean), 0.05 * follow_rate)
            total += law[k] * arrivals[k]
        for k in range(size):
            seen[k] = law[k] * arrivals[k] / total
            arrivals[k] *= follow_rate / total
    return mean, variance, service / variance


@njit(cache=True, error_model="numpy")
def level_count(rate: float, completion_rate: FloatArray, tail: float, most: int) -> Any:
    r"""Return how many loads to tell apart: beyond them lies less than ``tail`` of the law.

    The law is that of an instance left to itself,
    :func:`~smetric_model.analytic.queueing.state_dependent_queue`.

    Parameters
    ----------
    rate : float
        Requests per second, below the last completion rate.
    completion_rate : ndarray, shape (b,)
        mu(1), …, mu(b), which holds beyond.
    tail : float
        Probability.
    most : int
        Levels at most.
    """
    size = completion_rate.size
    ratio = rate / completion_rate[size - 1]
    logs = np.zeros(size + 1)
    top, total = 0.0, 0.0
    for k in range(size):
        logs[k + 1] = logs[k] + math.log(rate / completion_rate[k])
        top = max(top, logs[k + 1])
    for k in range(size + 1):
        logs[k] = math.exp(logs[k] - top)
        total += logs[k]
    beyond = logs[size] * ratio / (1.0 - ratio)
    total += beyond
    if beyond > tail * total:
        extra = math.ceil(math.log(tail * total / beyond) / math.log(ratio))
        return min(size + 1 + extra, most)
    above, levels = 0.0, size + 1
    while levels > 0 and above + logs[levels - 1] <= tail * total:
        levels -= 1
        above += logs[levels]
    return max(levels + 2, 8)
