"""Compiled parts of the routing rules: which follow-ups stay, by what their home's hit is worth."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smetric_model.analytic._routing_kernels import least_of_others, total_given_home

FloatArray = NDArray[np.float64]


@njit(cache=True, error_model="numpy")
def stay_of_limits(
    limits: NDArray[np.int64], at_least: FloatArray, seen: FloatArray, others: int
) -> FloatArray:
    """P(stay) of each hit whose home may have a largest load, by that of the others' least.

    Parameters
    ----------
    limits : ndarray of int, shape (n, levels, …)
        Largest home load at which each stays | least load of the others j; below 0: none.
    at_least, seen : ndarray, shape (levels,)
        P(load >= l); law of the home's load as a follow-up finds it.
    others : int
        N - 1.
    """
    levels = seen.size
    least, upto = np.empty(levels), np.zeros(levels + 1)
    least_of_others(at_least, others, least)
    for k in range(levels):
        upto[k + 1] = upto[k] + seen[k]
    result = np.zeros(limits.shape[0])
    for k in range(levels):
        if least[k] < 1e-18:
            continue
        for row in range(result.size):
            result[row] += least[k] * upto[min(limits[row, k], levels - 1) + 1]
    return result


@njit(cache=True, error_model="numpy")
def stay_of_leads(
    leads: FloatArray,
    total_mean: FloatArray,
    total_sd: float,
    instances: int,
    least: FloatArray,
    seen: FloatArray,
) -> FloatArray:
    """P(stay) of each lead, in mean loads; as :func:`stay_against_mean`, averaged over loads.

    Parameters
    ----------
    leads : ndarray, shape (n,)
        Leads of the home's hit, in mean loads.
    total_mean, total_sd, instances
        As of :func:`stay_against_mean`.
    least : ndarray, shape (levels,)
        Law of the least load of the others.
    seen : ndarray, shape (levels,)
        Law of the home's load as a follow-up finds it.
    """
    stay = np.zeros(leads.size)
    levels = seen.size
    for k in range(leads.size):
        lead = leads[k]
        total = 0.0
        for home in range(levels):
            for other in range(levels):
                weight = seen[home] * least[other]
                if other >= home:
                    total += weight
                    continue
                gap = float(home - other)
                if lead <= 0.0 or weight < 1e-12:
                    continue
                floor = (home + (instances - 1.0) * other) / instances
                enough = max(floor, total_mean[home] - 7.0 * total_sd)
                if gap <= enough * lead:
                    total += weight
                elif gap < (total_mean[home] + 7.0 * total_sd) * lead:
                    distance = (gap / lead - total_mean[home]) / total_sd
                    total += weight * 0.5 * math.erfc(distance * 0.7071067811865476)
        stay[k] = min(total, 1.0)
    return stay


@njit(cache=True, error_model="numpy")
def stay_of_each_lead(
    leads: FloatArray,
    instances: int,
    field: tuple[FloatArray, FloatArray],
    moments: tuple[float, float, float],
) -> FloatArray:
    """P(stay) of each lead, in mean loads, under the mean field; see :func:`stay_of_leads`.

    Parameters
    ----------
    leads : ndarray, shape (n,)
        Leads of the home's hit, in mean loads.
    instances : int
        N.
    field : tuple of ndarray, shape (levels,)
        P(load >= l); law of the home's load as a follow-up finds it.
    moments : tuple of float
        Mean and variance of a load, variance of the cluster's total ÷ N.
    """
    at_least, seen = field
    levels = seen.size
    least = np.empty(levels)
    least_of_others(at_least, instances - 1, least)
    mean, variance, total_variance = moments
    pull, spread = total_given_home(instances, mean, variance, total_variance)
    top = 0
    while top < levels and at_least[top] > 1e-9:
        top += 1
    top = min(top + 2, levels)
    found, others, each = np.empty(top), np.empty(top), np.empty(top)
    all_found, all_others = 1e-300, 1e-300
    for k in range(top):
        all_found += seen[k]
        all_others += least[k]
    for k in range(top):
        found[k], others[k] = seen[k] / all_found, least[k] / all_others
        each[k] = mean + pull * (k - mean) / instances
    return stay_of_leads(leads, each, math.sqrt(spread) / instances, instances, others, found)


@njit(cache=True, error_model="numpy")
def stay_under_bursts(
    tokens: FloatArray,
    weights: FloatArray,
    ratio: float,
    leads: FloatArray,
    levels: int,
    cells: int,
) -> FloatArray:
    """P(unprefilled tokens of l requests in flight <= lead) for each lead and l.

    Each adds all of its uncached tokens, or nothing: a compound binomial law, on a grid.

    Parameters
    ----------
    tokens, weights : ndarray, shape (m,)
        Uncached tokens of a request before its first token, and how likely they are.
    ratio : float
        P(a request in flight is before its first token).
    leads : ndarray, shape (n,)
        Tokens up to which each stays.
    levels, cells : int
        Numbers of requests told apart; cells of the grid, up to the longest lead.

    Returns
    -------
    ndarray, shape (n, levels)
    """
    longest, total = 1.0, 0.0
    for k in range(leads.size):
        longest = max(longest, leads[k])
    step = longest / (cells - 2)
    one = np.zeros(cells + 1)  # the last two hold what is beyond
    for k in range(tokens.size):
        place = min(tokens[k] / step, cells - 1.0)
        low = int(place)
        one[low] += weights[k] * (1.0 - (place - low))
        one[low + 1] += weights[k] * (place - low)
        total += weights[k]
    for k in range(cells):
        one[k] *= ratio / max(total, 1e-300)
    one[0] += 1.0 - ratio
    law, after, upto = np.zeros(cells), np.empty(cells), np.empty(cells)
    law[0] = 1.0
    result = np.zeros((leads.size, levels))
    for load in range(levels):
        below = 0.0
        for k in range(cells):
            below += law[k]
            upto[k] = below
        for k in range(leads.size):
            if leads[k] >= 0.0:
                at = leads[k] / step
                low = int(at)
                part = (at - low) * law[min(low + 1, cells - 1)]
                result[k, load] = min(upto[low] + part, 1.0)
        if below < 1e-15:
            break
        for k in range(cells):
            after[k] = 0.0
        for k in range(cells):
            if law[k] > 0.0:
                for j in range(cells - k):
                    after[k + j] += law[k] * one[j]
        law, after = after, law
    return result
