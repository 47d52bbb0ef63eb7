"""Compiled parts of the routing rules: loops over loads that do not vectorise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


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
