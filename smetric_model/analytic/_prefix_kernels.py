"""Compiled parts of the placement by shared prefixes: loops over loads that do not vectorise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


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
