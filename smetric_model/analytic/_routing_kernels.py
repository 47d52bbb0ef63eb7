"""Compiled parts of the routing mean field: loops over loads that do not vectorise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


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
def stay_against_mean(
    leads: FloatArray,
    total_mean: FloatArray,
    total_sd: float,
    instances: int,
    levels: int,
) -> FloatArray:
    """P(home load - least load <= lead * mean load) for every least load i and home load l.

    The mean load given l is normal, never less than what i and l leave possible.

    Parameters
    ----------
    leads : ndarray, shape (n,)
        Leads of the home's hit, ascending, in mean loads.
    total_mean : ndarray, shape (levels,)
        Mean load of the cluster given home load l.
    total_sd : float
        Its standard deviation.
    instances, levels : int
        N; loads 0 … levels - 1 are told apart.
    """
    stay = np.ones((levels, levels))
    count = leads.size
    for home in range(levels):
        most = total_mean[home] + 7.0 * total_sd
        for least in range(home):
            gap = float(home - least)
            floor = (home + (instances - 1.0) * least) / instances
            enough = max(floor, total_mean[home] - 7.0 * total_sd)
            total = 0.0
            # the larger the lead, the smaller the mean load that is needed
            for k in range(count - 1, -1, -1):
                if leads[k] <= 0.0 or gap >= max(most, enough) * leads[k]:
                    break
                if gap <= enough * leads[k]:
                    total += 1.0
                    continue
                distance = (gap / leads[k] - total_mean[home]) / total_sd
                total += 0.5 * math.erfc(distance * 0.7071067811865476)
            stay[least, home] = total / count
    return stay


@njit(cache=True)
def stay_against_largest(
    leads: FloatArray, law: FloatArray, others: int, from_least: bool, levels: int
) -> FloatArray:
    """P(home load - least load <= lead * scale | least load i, home load l), scale from the max.

    The scale is the largest load, or its distance from the least; ``(F_k - F_{i-1})^others`` is
    the joint law of least and largest of the others.

    Parameters
    ----------
    leads : ndarray, shape (n,)
        Sorted leads of the home's hit, in load scales.
    law : ndarray, shape (levels,)
        Law of one instance's load.
    others : int
        N - 1.
    from_least : bool
        Whether the scale is largest - least.
    levels : int
        Loads told apart.
    """
    below = np.empty(levels + 1)
    below[0] = 0.0
    for k in range(levels):
        below[k + 1] = below[k] + law[k]
    stay = np.ones((levels, levels))
    count = leads.size
    joint = np.empty(levels)
    for least in range(levels):
        # law of the largest, given that the least of the others is `least`
        total = 0.0
        before = 0.0
        for k in range(least, levels):
            upto = max(below[k + 1] - below[least], 0.0) ** others
            if k > least:
                upto -= max(below[k + 1] - below[least + 1], 0.0) ** others
            joint[k] = max(upto - before, 0.0)
            before = max(upto, before)
            total += joint[k]
        if total <= 0.0:
            continue
        for home in range(least + 1, levels):
            gap = float(home - least)
            kept = 0.0
            for k in range(least, levels):
                if joint[k] < 1e-12 * total:
                    continue
                scale = float(max(k, home) - (least if from_least else 0))
                kept += joint[k] * (
                    count - np.searchsorted(leads, gap / scale - 1e-12, side="left")
                )
            stay[least, home] = kept / total / count
    return stay


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
def spill_ratios(
    limits: FloatArray, at_least: FloatArray, holders: FloatArray, instances: float
) -> FloatArray:
    """Share of requests placed beside the holders of their prefix, for several numbers of these.

    Parameters
    ----------
    limits, at_least, instances
        As in :func:`place_by_prefix`.
    holders : ndarray, shape (k,)
        Numbers of holders.
    """
    count, levels = limits.shape
    result = np.zeros(holders.size)
    for k in range(holders.size):
        others = max(instances - holders[k], 0.0)
        if others == 0.0:
            continue
        before = 1.0
        for load in range(levels):
            upper = at_least[load + 1] ** others if load + 1 < levels else 0.0
            least = before - upper
            before = upper
            if least < 1e-14:
                continue
            for row in range(count):
                result[k] += least * _least_at_least(at_least, limits[row, load], holders[k])
        result[k] /= count
    return result


@njit(cache=True)
def _least_at_least(at_least: FloatArray, load: float, of: float) -> Any:
    """P(the least of ``of`` instances >= load), smoothed over one unit of load."""
    place = load + 0.5
    if place <= 0.0 or of <= 0.0:
        return 1.0
    low = int(place)
    if low >= at_least.size:
        return 0.0
    share = place - low
    high = at_least[low + 1] ** of if low + 1 < at_least.size else 0.0
    return (1.0 - share) * at_least[low] ** of + share * high


@njit(cache=True)
def _inverse(limits: FloatArray, load: float) -> Any:
    """Smallest other load (between whole ones) whose limit reaches ``load``."""
    if limits[0] >= load:
        return -0.5
    for j in range(1, limits.size):
        if limits[j] >= load:
            return j - (limits[j] - load) / (limits[j] - limits[j - 1])
    return float(limits.size)


@njit(cache=True)
def place_by_prefix(
    limits: FloatArray, at_least: FloatArray, holders: float, instances: float
) -> tuple[FloatArray, FloatArray, float]:
    """Where requests go that find their prefix on some instances and nothing on the others.

    Parameters
    ----------
    limits : ndarray, shape (n, levels)
        Largest load of the least loaded holder at which it is preferred to another instance of
        load 0, 1, …, for n requests.
    at_least : ndarray, shape (levels,)
        P(load >= l) of one instance.
    holders, instances : float
        m of N; need not be whole.

    Returns
    -------
    to_holder, to_other : ndarray, shape (levels,)
        P(chosen) of a holder, and of another instance, that is the least loaded of its kind.
    spill : float
        Share that goes to another instance.
    """
    count, levels = limits.shape
    others = max(instances - holders, 0.0)
    to_holder = np.zeros(levels)
    to_other = np.zeros(levels)
    spill = 0.0
    for row in range(count):
        for load in range(levels):
            if at_least[load] < 1e-13:
                break
            to_holder[load] += _least_at_least(at_least, _inverse(limits[row], load), others)
            chance = _least_at_least(at_least, limits[row, load], holders)
            to_other[load] += chance
            upper = at_least[load + 1] if load + 1 < levels else 0.0
            if others > 0.0:
                spill += chance * (at_least[load] ** others - upper**others)
    return to_holder / count, to_other / count, spill / count


@njit(cache=True)
def stay_beside_holders(
    holding: FloatArray, empty: FloatArray, at_least: FloatArray, holders: float, instances: float
) -> FloatArray:
    """P(stay | home load l) where some of the other instances hold the follow-up's prefix.

    Parameters
    ----------
    holding, empty : ndarray, shape (n, levels)
        Largest home load at which each of n follow-ups stays against an instance of load 0, 1, …
        that holds the prefix, and against one that does not.
    at_least, holders, instances
        As in :func:`place_by_prefix`; the home is one of the holders.
    """
    count, levels = holding.shape
    stay = np.zeros(levels)
    for row in range(count):
        for load in range(levels):
            stay[load] += _least_at_least(
                at_least, _inverse(holding[row], load), max(holders - 1.0, 0.0)
            ) * _least_at_least(
                at_least, _inverse(empty[row], load), max(instances - max(holders, 1.0), 0.0)
            )
    for load in range(levels):
        stay[load] /= count
    return stay


@njit(cache=True)
def birth_death_at(births: FloatArray, deaths: FloatArray, time: float, steps: int) -> FloatArray:
    """Law of a birth-death chain some time after it was at 0; implicit steps that grow in time.

    Parameters
    ----------
    births, deaths : ndarray, shape (n,)
        Rates up and down from each state.
    time : float
        Time since it was at 0.
    steps : int
        Number of steps.
    """
    size = births.size
    law = np.zeros(size)
    law[0] = 1.0
    first = time * 1e-4
    growth = (time / first) ** (1.0 / (steps - 1))
    upper = np.empty(size)
    before = 0.0
    for step in range(steps):
        now = first * growth**step
        span = now - before
        before = now
        for k in range(size):
            up = births[k] if k < size - 1 else 0.0
            diagonal = 1.0 + span * (up + deaths[k])
            if k > 0:
                lower = span * births[k - 1]
                diagonal -= lower * upper[k - 1]
                law[k] = (law[k] + lower * law[k - 1]) / diagonal
            else:
                law[k] /= diagonal
            upper[k] = span * deaths[k + 1] / diagonal if k < size - 1 else 0.0
        for k in range(size - 2, -1, -1):
            law[k] += upper[k] * law[k + 1]
    total = law.sum()
    for k in range(size):
        law[k] = max(law[k], 0.0) / total
    return law


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
