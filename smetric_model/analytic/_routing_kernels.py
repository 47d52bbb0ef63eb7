"""Compiled parts of the routing rules: how often a follow-up stays, from the loads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smetric_model.analytic._incomplete_kernels import beta_ratio, gamma_ratio

FloatArray = NDArray[np.float64]

_ALWAYS, _NEVER, _MEAN, _EACH_OTHER, _SCALED, _LARGEST, _RANGE, _SLO = range(8)
#: how :func:`stays` computes, by name
KINDS = {
    "always": _ALWAYS,
    "never": _NEVER,
    "mean": _MEAN,
    "each other": _EACH_OTHER,
    "scaled by mean": _SCALED,
    "scaled by max": _LARGEST,
    "scaled by minmax": _RANGE,
    "slo": _SLO,
}
_RARE = 1e-12  # loads less likely than this are told apart no more


@njit(cache=True, error_model="numpy")
def least_of_others(at_least: FloatArray, others: int, least: FloatArray) -> Any:
    """Work out the law of the least load of so many instances, (G_l^others - G_{l+1}^others).

    Parameters
    ----------
    at_least : ndarray, shape (levels,)
        P(load >= l) of one.
    others : int
        How many.
    least : ndarray, shape (levels,)
        Set.
    """
    power, total = at_least[0] ** others, 0.0
    for k in range(least.size):
        above = 0.0
        if k + 1 < least.size and at_least[k + 1] > 0.0:
            logarithm = others * math.log(at_least[k + 1])
            above = math.exp(logarithm) if logarithm > -700.0 else 0.0
        least[k] = power - above
        total += least[k]
        power = above
    for k in range(least.size):
        least[k] /= total
    return 0


@njit(cache=True, error_model="numpy")
def total_given_home(
    instances: int, mean: float, variance: float, total_variance: float
) -> tuple[float, float]:
    """Return the slope of the cluster's mean total in the home's load, and its variance given that.

    Parameters
    ----------
    instances : int
        N.
    mean, variance, total_variance : float
        Of one instance's load; of the cluster's total ÷ N.
    """
    pull = min(max(total_variance / max(variance, 1e-12), 1.0), float(instances))
    return pull, max(instances * total_variance - pull * pull * variance, 1e-6)


@njit(cache=True, error_model="numpy")
def stay_below_mean(
    needed: FloatArray, instances: int, moments: tuple[float, float, float], stay: FloatArray
) -> Any:
    """Work out P(total of the cluster >= needed | home load l).

    The others' total given l is negative binomial; Poisson or normal where it spreads less.

    Parameters
    ----------
    needed : ndarray, shape (levels, …)
        Least total at which home load l stays, whole or ``inf``.
    instances : int
        N.
    moments : tuple of float
        Mean and variance of a load, variance of the total ÷ N.
    stay : ndarray, shape (levels,)
        Set.
    """
    mean, variance, total_variance = moments
    pull, spread = total_given_home(instances, mean, variance, total_variance)
    narrow = not spread > 1.0001 * max((instances - pull) * mean, 1e-9)
    for k in range(stay.size):
        others = max(instances * mean + pull * (k - mean) - k, 1e-9)
        missing = needed[k] - k
        if missing <= 0.0:
            stay[k] = 1.0
        elif missing == np.inf:
            stay[k] = 0.0
        elif narrow:  # than Poisson: N small, or loads far from random
            stay[k] = 0.5 * math.erfc((missing - others - 0.5) / math.sqrt(2.0 * spread))
        elif spread > 1.0001 * others:
            size = others * others / (spread - others)
            stay[k] = beta_ratio(missing, size, (spread - others) / spread, others / spread)
        else:
            stay[k] = gamma_ratio(missing, others)
    return 0


@njit(cache=True, error_model="numpy")
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


@njit(cache=True, error_model="numpy")
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


@njit(cache=True, error_model="numpy")
def _stays_scaled(
    kind: int,
    instances: int,
    leads: FloatArray,
    field: tuple[FloatArray, FloatArray, FloatArray],
    moments: tuple[float, float, float],
    least: FloatArray,
    stay: FloatArray,
    leave_at: FloatArray,
) -> Any:
    """Fill in :func:`stays` for rules that compare loads in units of a scale of theirs."""
    law, at_least, seen = field
    levels = law.size
    top = 0
    while top < levels and at_least[top] > _RARE:
        top += 1
    top = min(top + 2, levels)
    if kind == _SCALED:
        mean, variance, total_variance = moments
        pull, spread = total_given_home(instances, mean, variance, total_variance)
        each = np.empty(top)
        for k in range(top):
            each[k] = mean + pull * (k - mean) / instances
        part = stay_against_mean(leads, each, math.sqrt(spread) / instances, instances, top)
    else:
        part = stay_against_largest(leads, law[:top], instances - 1, kind == _RANGE, top)
    # beyond the loads that occur, the last that does stands in
    busier, beyond = 0.0, 0.0
    for k in range(top, levels):
        busier += seen[k]
        beyond += least[k]
    for home in range(top):
        stay[home] = 0.0
    upto = 0.0
    for other in range(levels):
        upto += seen[other]
        # a home no busier than anybody keeps it
        leave_at[other] = 1.0 - upto
        if other < top:
            kept = part[other, top - 1] * busier
            for home in range(top):
                kept += part[other, home] * seen[home]
                stay[home] += least[other] * part[other, home]
            leave_at[other] = 1.0 - kept
    for home in range(levels):
        if home >= top:
            stay[home] = min(stay[top - 1], 1.0 + beyond)
        else:
            stay[home] += beyond
    return 0


@njit(cache=True, error_model="numpy")
def stays(
    kind: int,
    instances: int,
    rule: tuple[FloatArray, FloatArray, FloatArray],
    field: tuple[FloatArray, FloatArray, FloatArray],
    moments: tuple[float, float, float],
    stay: FloatArray,
    leave_at: FloatArray,
) -> Any:
    """Work out how often a follow-up stays that was not evicted, under one kind of rule.

    Parameters
    ----------
    kind : int
        Of :data:`KINDS`.
    instances : int
        N >= 2.
    rule : tuple of ndarray
        Two vectors and a table; by kind: least totals needed (levels, …); sorted leads; P(stay |
        home load, somebody else within the SLO) and P(another is within it); table of P(stay | load
        of the other j, home load l), one row where all j are alike.  What a kind has not is empty.
    field : tuple of ndarray, shape (levels,)
        Law of a load; P(load >= l); law of the home's load as a follow-up finds it.
    moments : tuple of float
        Mean and variance of a load, variance of the cluster's total ÷ N.
    stay, leave_at : ndarray, shape (levels,)
        Set: P(stay | home load l), P(a follow-up leaves | least load of the others is j).

    Returns
    -------
    bool
        Whether ``leave_at`` says anything: whether loads are compared with each other's.
    """
    one, two, table = rule
    law, at_least, seen = field
    levels = law.size
    if kind in (_ALWAYS, _NEVER):
        for k in range(levels):
            stay[k] = 1.0 if kind == _ALWAYS else 0.0
        return False
    if kind == _MEAN:
        stay_below_mean(one, instances, moments, stay)
        return False
    least = np.empty(levels)
    least_of_others(at_least, instances - 1, least)
    if kind == _SLO:
        nobody = 0.0
        for k in range(levels):
            nobody += least[k] * (1.0 - two[k])
        for k in range(levels):
            stay[k] = 1.0 - (1.0 - one[k]) * (1.0 - nobody)
        return False
    if kind != _EACH_OTHER:
        _stays_scaled(kind, instances, one, field, moments, least, stay, leave_at)
        return True
    for home in range(levels):
        stay[home] = 0.0
    for other in range(levels):
        row = table[other] if table.shape[0] > 1 else table[0]
        kept = 0.0
        if other == 0 or table.shape[0] > 1:
            for home in range(levels):
                kept += row[home] * seen[home]
            leave_at[other] = 1.0 - kept
        else:
            leave_at[other] = leave_at[0]
        if least[other] > 1e-300:
            for home in range(levels):
                stay[home] += least[other] * row[home]
    return True
