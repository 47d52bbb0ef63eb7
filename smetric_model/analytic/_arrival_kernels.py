"""Compiled parts of what a router sends an instance: free arrivals, and those that avoid it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smetric_model.analytic._incomplete_kernels import gamma_ratio

FloatArray = NDArray[np.float64]

#: which arrivals are free to go anywhere: some, all, none
SOME, ALL, NONE = range(3)
_TURNS = 8  # rounds of ties in which an instance that has just got a request may get the next


@njit(cache=True, error_model="numpy")
def by_load(
    law: FloatArray,
    births: FloatArray,
    joined: FloatArray,
    own_rps: float,
    stuck: float,
    which: int,
    rare: float,
) -> tuple[FloatArray, FloatArray, float]:
    """Return the arrivals at each load, and which share of them is free.

    Parameters
    ----------
    law, births, joined : ndarray, shape (levels,)
        P(load = l); arrivals per second; law of the load that free requests find where they go.
    own_rps : float
        Their mean [requests/s].
    stuck : float
        Share of all requests that stay at their home.
    which : int
        ``SOME``, ``ALL`` or ``NONE`` are free.
    rare : float
        Loads less likely than this beyond the last that is not are left out.

    Returns
    -------
    factor, free : ndarray, shape (m,)
        Arrivals ÷ their mean; P(free | load).
    free_ratio : float
        Share of all arrivals that is free.
    """
    last, total, all_free = 0, 0.0, 0.0
    free = np.empty(law.size)
    for k in range(law.size):
        if law[k] > rare:
            last = k
        free[k] = 1.0 if which == ALL else 0.0
        if which == SOME:
            share = (1.0 - stuck) * joined[k] / max(law[k], 1e-300)
            free[k] = min(max(share / max(births[k] / own_rps, 1e-300), 0.0), 1.0)
        total += law[k] * births[k]
        all_free += law[k] * births[k] * free[k]
    factor = births[: last + 1] / own_rps
    return factor, free[: last + 1], all_free / max(total, 1e-300)


@njit(cache=True, error_model="numpy")
def met_ratio(
    stop_s: FloatArray, share: FloatArray, means_s: FloatArray, weights: FloatArray
) -> Any:
    """Return by how much fewer sessions come during a stop that they may have been stopped by.

    Parameters
    ----------
    stop_s, share : ndarray, shape (n,)
        Lengths of the stops [s], and how often each occurs.
    means_s, weights : ndarray, shape (classes,)
        Mean think time of each class [s], and its share of the gaps.
    """
    whole, met = 0.0, 0.0
    for i in range(stop_s.size):
        whole += 0.5 * share[i] * stop_s[i] * stop_s[i]
        for j in range(means_s.size):
            # means² (x - 1 + exp(-x)), x = w/mean; its series where that cancels
            x = stop_s[i] / means_s[j]
            part = 0.5 * x * x * (1.0 - x / 3.0) if x < 1e-4 else x + math.expm1(-x)
            met += share[i] * weights[j] * part * means_s[j] * means_s[j]
    return min(met / whole, 1.0) if whole > 0.0 else 1.0


@njit(cache=True, error_model="numpy")
def next_in_turn(stop_s: FloatArray, share: FloatArray, rate_rps: float, tied: float) -> Any:
    """Return by how much fewer free requests come during a stop that begins with one of them.

    Ties are round robin: of a Poisson stream the instance gets the k-th, 2k-th … after its own.

    Parameters
    ----------
    stop_s, share : ndarray, shape (n,)
        Lengths of the stops [s], and how often each occurs.
    rate_rps : float
        Free requests of the cluster [requests/s].
    tied : float
        Instances that take turns, k; need not be whole.
    """
    met, plain = 0.0, 0.0
    for i in range(stop_s.size):
        come = rate_rps * stop_s[i]
        plain += share[i] * come / tied
        for turn in range(1, _TURNS + 1):
            chance = gamma_ratio(turn * tied, come)
            met += share[i] * chance
            if chance < 1e-12:
                break
    return min(met / plain, 1.0) if plain > 0.0 else 1.0


@njit(cache=True, error_model="numpy")
def home_wins(law: FloatArray, seen: FloatArray, most: float, count: int) -> tuple[float, Any]:
    """Return how often a follow-up's home is no less loaded than another instance, or the least.

    Parameters
    ----------
    law, seen : ndarray, shape (levels,)
        P(load = l), and the law of the home's load as a follow-up finds it.
    most : float
        N.
    count : int
        Numbers of instances told apart, a geometric series from 1 to N.

    Returns
    -------
    older_wins : float
        P(another instance is less loaded), ties shared.
    wins : ndarray, shape (count,)
        P(the home is the least loaded of so many), ties shared.
    """
    wins, older, above = np.zeros(count), 0.0, 0.0
    of_each = np.empty(count)
    for c in range(count):
        of_each[c] = most ** (c / (count - 1.0))
    at_least = np.empty(law.size)
    for k in range(law.size - 1, -1, -1):
        above += law[k]
        at_least[k] = min(above, 1.0)
    for k in range(law.size):
        older += seen[k] * (1.0 - at_least[k] + 0.5 * law[k])
        if seen[k] < 1e-18 or at_least[k] <= 1e-300:
            continue
        logarithm = math.log(at_least[k])
        share = min(max(law[k], 1e-300) / at_least[k], 1.0)
        rest = math.log1p(-share) if share < 1.0 else -np.inf
        for c in range(count):
            of = of_each[c]
            if share < 1e-9:
                wins[c] += seen[k] * math.exp((of - 1.0) * logarithm)
            else:
                power = math.exp(of * logarithm) * -math.expm1(of * rest)
                wins[c] += seen[k] * power / (of * share * at_least[k])
    for c in range(count):
        wins[c] = min(max(wins[c], 0.0), 1.0)
    return older, wins
