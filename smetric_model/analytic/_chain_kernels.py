"""Compiled parts of the routing mean field: the chain of one instance's load, and its closure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

GENERAL, NEVER, ALONE, HASH = 0, 1, 2, 3  #: how a policy closes the chain, see :func:`respond`


@njit(cache=True)
def join_least_loaded(
    rate: float, completion_rate: FloatArray, instances: int, top: int
) -> FloatArray:
    r"""Return the law of one instance's load when every request joins the least loaded.

    Balance across level k reads ``sum_{l >= k} p_l mu_l = rate G_{k-1}^N`` with
    ``G_k = P(load >= k)``: given the top, all lower levels follow, and the top is found by
    bisection so that ``G_0 = 1``.  Logarithms, since ``G_k`` falls doubly exponentially in k.

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
    log_g = np.empty(top + 1)
    low, high = -30.0, math.log(instances) * top + 5.0
    if high > 690.0:
        high = 690.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        current = -math.exp(middle)
        log_g[top] = current
        log_sum = current + math.log(completion_rate[top - 1])
        for k in range(top, 0, -1):
            below = (log_sum - math.log(rate)) / instances
            if below < current:
                below = current
            log_g[k - 1] = below
            if below > current and k > 1:
                term = below + math.log(-math.expm1(current - below))
                term += math.log(completion_rate[k - 2])
                if term > log_sum:
                    log_sum = term + math.log1p(math.exp(log_sum - term))
                else:
                    log_sum += math.log1p(math.exp(term - log_sum))
            current = below
            if below > 1.0:  # far above: no need to go on
                break
        if current > 0.0:
            low = middle
        else:
            high = middle
    law = np.zeros(completion_rate.size + 1)
    for k in range(top + 1):
        above = math.exp(min(log_g[k + 1], 0.0)) if k < top else 0.0
        law[k] = max(math.exp(min(log_g[k], 0.0)) - above, 0.0)
    total = law.sum()
    for k in range(law.size):
        law[k] /= total
    return law


@njit(cache=True)
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
    g = np.append(start, 0.0)
    best = g.copy()
    best_error = np.inf
    step = 1.0
    slope = np.empty(size + 1)
    power = np.empty(size + 1)
    power_moving = np.empty(size + 1)
    slope_moving = np.empty(size + 1)
    upper = np.empty(size)
    right = np.empty(size)
    for _ in range(60):
        for k in range(size + 1):
            raised = g[k] ** (of - 2) if of > 2 else 1.0
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
            best[:] = g
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


@njit(cache=True)
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


@njit(cache=True)
def birth_death(births: FloatArray, completion: FloatArray) -> FloatArray:
    """Law of a birth-death chain, in logarithms so that tails are exact.

    Parameters
    ----------
    births : ndarray, shape (levels,)
        Rates up.
    completion : ndarray, shape (levels - 1,)
        Rates down from 1, 2, …
    """
    size = births.size
    law = np.zeros(size)
    top = 0.0
    for k in range(size - 1):
        law[k + 1] = law[k] + math.log(max(births[k], 1e-290)) - math.log(completion[k])
        top = max(top, law[k + 1])
    total = 0.0
    for k in range(size):
        law[k] = math.exp(law[k] - top)
        total += law[k]
    for k in range(size):
        law[k] /= total
    return law


@njit(cache=True)
def load_field(
    law: FloatArray, slope: float, follow_rate: float, base: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, float, float, float]:
    """Return what follows from an instance's law of the load and the slope of follow-ups.

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

    Returns
    -------
    at_least, arrivals, seen : ndarray, shape (levels,)
        P(load >= l); follow-ups per second at each load; the law that they find.
    mean, variance, service_slope : float
        Of the load, and completions per second for one request more.
    """
    size = law.size
    at_least, arrivals, seen = np.empty(size), np.zeros(size), law.copy()
    above, mean = 0.0, 0.0
    for k in range(size - 1, -1, -1):
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
    return at_least, arrivals, seen, mean, variance, service / variance


@njit(cache=True)
def fluctuations(
    law: FloatArray,
    seen: FloatArray,
    sticking: FloatArray,
    births: FloatArray,
    arrivals: FloatArray,
    completion: FloatArray,
    thinking: tuple[FloatArray, FloatArray, FloatArray],
    moments: tuple[float, float],
    rates: tuple[float, float],
) -> tuple[FloatArray, FloatArray, float]:
    """Drift and noise of thinking sessions by class and of the load, and the slope of completions.

    Parameters
    ----------
    law, seen, sticking, births, arrivals : ndarray, shape (levels,)
        Law of the load, as follow-ups find it; P(follow-up stays), all arrivals, follow-ups per
        second.
    completion : ndarray, shape (levels - 1,)
        Completions per second with 1, 2, … present.
    thinking : tuple of ndarray, shape (classes,)
        Rate at which each class ends, share of the gaps in it, and how much likelier than the
        average follow-up one of this class finds its context at home.
    moments : tuple of float
        Mean and variance of the load.
    rates : tuple of float
        Requests, and follow-ups, per second and instance.
    """
    gamma, alpha, keeps = thinking
    mean, variance = moments
    rate, follow = rates
    service, own, kept = 0.0, 0.0, 0.0
    for k in range(law.size):
        deviation = (k - mean) * law[k]
        if k:
            service += deviation * completion[k - 1]
        # what depends on the load while the thinking sessions are as they are
        own += deviation * (follow * sticking[k] + births[k] - arrivals[k] * sticking[k])
        kept += seen[k] * sticking[k]
    service /= variance
    own /= variance
    size = gamma.size
    drift, noise = np.zeros((size + 1, size + 1)), np.zeros((size + 1, size + 1))
    for j in range(size):
        drift[j, j] = -gamma[j]
        drift[j, size] = alpha[j] * (follow / rate) * service
        drift[size, j] = kept * keeps[j] * gamma[j]
        noise[j, j] = 2.0 * follow * alpha[j]
        noise[j, size] = noise[size, j] = -follow * alpha[j] * (1.0 + kept * keeps[j])
    drift[size, size] = own - service - 1e-9 * rate  # never singular, also for a point mass
    noise[size, size] = 2.0 * rate
    return drift, noise, service


@njit(cache=True)
def stationary_covariance(drift: FloatArray, noise: FloatArray) -> FloatArray:
    """Solve ``A S + S A' + Q = 0`` for the symmetric S.

    Parameters
    ----------
    drift, noise : ndarray, shape (n, n)
        A and Q.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the system is singular.
    """
    size = drift.shape[0]
    system = np.zeros((size * size, size * size))
    for i in range(size):
        for j in range(size):
            row = i * size + j
            for k in range(size):
                system[row, k * size + j] += drift[i, k]
                system[row, i * size + k] += drift[j, k]
    found = np.linalg.solve(system, -noise.ravel()).reshape((size, size))
    return 0.5 * (found + found.T)


@njit(cache=True)
def respond(
    mode: int,
    law: FloatArray,
    at_least: FloatArray,
    seen: FloatArray,
    arrivals: FloatArray,
    stay: FloatArray,
    leave_at: FloatArray,
    base: FloatArray,
    flows: tuple[float, float, float, float],
    works: tuple[float, float],
    instances: int,
    thinking: tuple[FloatArray, FloatArray, FloatArray],
    moments: tuple[float, float],
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, float, float]:
    """Apply the rest of the map, once it is known how often follow-ups stay.

    Parameters
    ----------
    mode : int
        ``GENERAL``; ``NEVER``: all requests join the least loaded; ``ALONE``: one instance;
        ``HASH``: requests ask their hash first.
    law, at_least, seen, arrivals, stay : ndarray, shape (levels,)
        As of :func:`load_field`, and P(a follow-up that was not evicted stays).
    leave_at : ndarray, shape (levels,) or (0,)
        P(a follow-up leaves | least load of the others), for rules that compare with these.
    base : ndarray, shape (levels - 1,)
        Completions per second without the work of moves.
    flows : tuple of float
        First turns and follow-ups per second of an instance; shares of the follow-ups that were
        evicted, and that leave for the load of their home.
    works : tuple of float
        Work of a move ÷ that of a request; a factor that is known beforehand, 0: none is.
    instances : int
        N.
    thinking, moments
        As in :func:`fluctuations`.

    Returns
    -------
    joined, births, completion, new_law : ndarray
        Free flow at each load ÷ its rate, arrivals, completions, and the law that balances them.
    drift, covariance : ndarray
        Linear noise.
    service_slope, leave : float
        Completions per second for one request more; share that leaves.
    """
    first, follow, evicted, leave = flows
    size = law.size
    rate = first + follow
    joined, births = np.ones(size), np.empty(size)
    sticking = (1.0 - evicted) * stay
    free_rate = first + follow * (evicted + leave)
    fixed, moving = first + follow * evicted, follow * leave
    if mode == HASH:
        # every request asks its hash first; the rest is dealt out among those below the bound
        kept = 0.0
        for k in range(size):
            kept += law[k] * stay[k]
        for k in range(size):
            joined[k] = stay[k] / max(kept, 1e-12)
            births[k] = rate * joined[k]
        leave = 1.0 - kept
    else:
        if mode == NEVER:
            sticking = np.zeros(size)
            free_rate = rate
        if mode != ALONE:
            joined = least_loaded_share(at_least, law, float(instances))
            if mode == GENERAL and moving > 0.0:
                others = least_loaded_share(at_least, law, instances - 1.0)
                if leave_at.size:
                    # those who leave do so when somebody is idle, and go there
                    norm = 0.0
                    for k in range(size):
                        norm += law[k] * leave_at[k] * others[k]
                    if norm > 0.0:
                        for k in range(size):
                            others[k] *= leave_at[k] / norm
                for k in range(size):
                    joined[k] = (fixed * joined[k] + moving * others[k]) / (fixed + moving)
        for k in range(size):
            births[k] = arrivals[k] * sticking[k] + free_rate * joined[k]
    work = works[1] if works[1] > 0.0 else 1.0 + works[0] * follow / rate * leave
    completion = base if works[1] > 0.0 else base / work
    if mode == GENERAL:
        own = arrivals * sticking
        left = np.full(size, moving)
        if leave_at.size:
            for k in range(size):
                left[k] = follow * (1.0 - evicted) * leave_at[k]
        balanced = balance_free_flow(own, fixed, instances, left, completion, at_least)
        # the law again from its births, exact also where it is tiny
        narrow = np.empty(size)
        for k in range(size):
            above = balanced[k + 1] if k < size - 1 else 0.0
            narrow[k] = max(balanced[k] - above, 1e-300)
        everybody = least_loaded_share(balanced, narrow, float(instances))
        others = least_loaded_share(balanced, narrow, instances - 1.0)
        for k in range(size):
            own[k] += fixed * everybody[k] + left[k] * others[k]
        new_law = birth_death(own, completion)
    else:
        new_law = birth_death(births, completion)
    drift, noise, service = fluctuations(
        law, seen, sticking, births, arrivals, completion, thinking, moments, (rate, follow)
    )
    covariance = stationary_covariance(drift, noise)
    return joined, births, completion, new_law, drift, covariance, service, leave


@njit(cache=True)
def accelerated(
    points: FloatArray, changes: FloatArray, mixing: float, law_size: int, least: float
) -> Any:
    """Next point of a fixed point by Anderson's acceleration, kept within bounds.

    Parameters
    ----------
    points, changes : ndarray, shape (m, n)
        Points so far and what the map changes there, the last one last.
    mixing : float
        Length of the step towards the map's answer.
    law_size : int
        The first so many entries are a law: not negative, sum 1.
    least : float
        Smallest of the entries after the law and the one that follows it; .1 is the largest.

    Returns
    -------
    ndarray, shape (n,)
    """
    count, size = points.shape
    last = count - 1
    result = points[last] + mixing * changes[last]
    if last > 0:
        gram, right = np.empty((last, last)), np.empty(last)
        turned = np.empty((last, size))
        for i in range(last):
            for k in range(size):
                turned[i, k] = changes[i + 1, k] - changes[i, k]
        trace = 0.0
        for i in range(last):
            right[i] = 0.0
            for k in range(size):
                right[i] += turned[i, k] * changes[last, k]
            for j in range(i + 1):
                total = 0.0
                for k in range(size):
                    total += turned[i, k] * turned[j, k]
                gram[i, j] = gram[j, i] = total
            trace += gram[i, i]
        # steps that say the same as others are left out: a little on the diagonal
        for i in range(last):
            gram[i, i] += 1e-13 * trace + 1e-300
        for i in range(last):  # Gauss, in place: symmetric and positive
            for j in range(i + 1, last):
                factor = gram[j, i] / gram[i, i]
                for k in range(i, last):
                    gram[j, k] -= factor * gram[i, k]
                right[j] -= factor * right[i]
        for i in range(last - 1, -1, -1):
            for j in range(i + 1, last):
                right[i] -= gram[i, j] * right[j]
            right[i] /= gram[i, i]
        for i in range(last):
            for k in range(size):
                result[k] -= right[i] * (points[i + 1, k] - points[i, k] + mixing * turned[i, k])
    total = 0.0
    for k in range(law_size):
        result[k] = max(result[k], 0.0)
        total += result[k]
    for k in range(law_size):
        result[k] /= total
    for k in range(law_size + 1, size):
        result[k] = min(max(result[k], least), 0.1)
    return result
