"""Compiled map of the routing mean field, from a law of the load to the next, and its fixed point.

The map's quantities at each load are the rows of one array, those without a load the entries of
another; the constants name them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smetric_model.analytic._chain_kernels import (
    balance_free_flow,
    birth_death,
    least_loaded_shares,
    load_field,
)
from smetric_model.analytic._noise_kernels import (
    fluctuations,
    stationary_covariance,
    total_variance,
)
from smetric_model.analytic._routing_kernels import stays
from smetric_model.analytic._search_kernels import BEST, GO_ON, POINTS, STEPS, advance

FloatArray = NDArray[np.float64]

#: how a policy closes the chain: free requests join the least loaded, all do, one instance alone
#: (or first turns by hash), all ask a hash, free flow given, law given
GENERAL, NEVER, ALONE, HASH, PLACED, BLIND = range(6)
#: rows: P(load >= l), follow-ups per second, the law that they find, P(they stay), P(leave | least
#: load of the others), free flow ÷ its rate, arrivals and completions per second, the next law
AT_LEAST, ARRIVALS, SEEN, STAY, LEAVE_AT, JOINED, BIRTHS, COMPLETION, NEW_LAW = range(9)
ROWS = 9
#: mean and variance of the load, variance of the cluster's total ÷ N, share of the follow-ups that
#: leave for the load of their home; per second, for one request more: completions, follow-ups
MEAN, VARIANCE, TOTAL_VARIANCE, LEAVE, SERVICE_SLOPE, NEW_SLOPE = range(6)
NUMBERS = 6
_EVERYBODY = 1 - 1e-13  # a share that falls short of 1 by rounding alone


@njit(cache=True, error_model="numpy")
def open_field(
    law: FloatArray,
    slope: float,
    flows: tuple[float, float, float],
    base: FloatArray,
    tilts: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    rows: FloatArray,
    numbers: FloatArray,
) -> Any:
    """Work out what a law of the load says, before any rule is asked.

    Parameters
    ----------
    law : ndarray, shape (levels,)
        P(load = l).
    slope : float
        Follow-ups per second for one request more.
    flows, base, tilts
        As of :func:`solve`.
    rows : ndarray, shape (ROWS, levels)
        ``AT_LEAST``, ``ARRIVALS`` and ``SEEN`` are set.
    numbers : ndarray, shape (NUMBERS,)
        ``MEAN``, ``VARIANCE`` and ``TOTAL_VARIANCE`` are set.
    """
    first, follow, _ = flows
    mean, variance, service = load_field(
        law, slope, follow, base, rows[AT_LEAST], rows[ARRIVALS], rows[SEEN]
    )
    numbers[MEAN], numbers[VARIANCE] = mean, variance
    numbers[TOTAL_VARIANCE] = total_variance(mean, variance, service, first + follow, tilts)
    return 0


@njit(cache=True, error_model="numpy")
def respond(
    mode: int,
    compares: bool,
    law: FloatArray,
    flows: tuple[float, float, float],
    works: tuple[float, bool, bool],
    instances: int,
    base: FloatArray,
    thinking: tuple[FloatArray, FloatArray, FloatArray],
    rows: FloatArray,
    numbers: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Work out the rest of the map, once it is known how often follow-ups stay.

    Parameters
    ----------
    mode : int
        How the policy closes the chain.
    compares : bool
        Whether follow-ups leave by the least load of the others, ``LEAVE_AT``.
    law : ndarray, shape (levels,)
        P(load = l).
    flows, works, instances, base, thinking
        As of :func:`solve`.
    rows, numbers : ndarray
        What :func:`open_field` sets, and ``STAY``, ``LEAVE_AT``; ``JOINED`` too where free flow is
        given.  The rest is set.

    Returns
    -------
    drift, covariance : ndarray, shape (classes + 1, classes + 1)
        Linear noise.
    """
    first, follow, evicted = flows
    move_work, is_fixed, is_sloped = works
    size, rate = law.size, first + follow
    at_least, arrivals, seen, stay = rows[AT_LEAST], rows[ARRIVALS], rows[SEEN], rows[STAY]
    leave_at, joined, births = rows[LEAVE_AT], rows[JOINED], rows[BIRTHS]
    completion, new_law = rows[COMPLETION][: size - 1], rows[NEW_LAW]
    kept = 0.0
    for k in range(size):
        kept += seen[k] * stay[k]
    leave = (1.0 - evicted) * (1.0 - kept) if kept < _EVERYBODY else 0.0
    sticking, others = np.empty(size), np.empty(size)
    for k in range(size):
        sticking[k] = 0.0 if mode == NEVER else (1.0 - evicted) * stay[k]
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
        if mode == ALONE:
            for k in range(size):
                joined[k] = 1.0
        elif mode in (NEVER, GENERAL):
            least_loaded_shares(at_least, law, instances, joined, others)
            if mode == GENERAL and moving > 0.0:
                _join_movers(law, leave_at, compares, fixed, moving, others, joined)
        free_rate = rate if mode == NEVER else fixed + moving
        for k in range(size):
            births[k] = arrivals[k] * sticking[k] + free_rate * joined[k]
    work = 1.0 if is_fixed else 1.0 + move_work * follow / rate * leave
    for k in range(size - 1):
        completion[k] = base[k] / work
    if mode == BLIND:
        for k in range(size):
            new_law[k] = law[k]
    elif mode == GENERAL:
        own, left = np.empty(size), np.empty(size)
        for k in range(size):
            own[k] = arrivals[k] * sticking[k]
            left[k] = follow * (1.0 - evicted) * leave_at[k] if compares else moving
        balanced = balance_free_flow(own, fixed, instances, left, completion, at_least)
        # the law again from its births, exact also where it is tiny
        for k in range(size):
            above = balanced[k + 1] if k < size - 1 else 0.0
            new_law[k] = max(balanced[k] - above, 1e-300)
        everybody = np.empty(size)
        least_loaded_shares(balanced, new_law, instances, everybody, others)
        for k in range(size):
            own[k] += fixed * everybody[k] + left[k] * others[k]
        birth_death(own, completion, new_law)
    else:
        birth_death(births, completion, new_law)
    drift, noise, service = fluctuations(
        law, seen, sticking, births, arrivals, completion, thinking,
        (numbers[MEAN], numbers[VARIANCE]), (rate, follow),
    )  # fmt: skip
    covariance = stationary_covariance(drift, noise)
    numbers[LEAVE], numbers[SERVICE_SLOPE] = leave, service
    numbers[NEW_SLOPE] = 0.0
    if is_sloped:
        numbers[NEW_SLOPE] = _slope(covariance, thinking, follow / max(numbers[MEAN], 1e-9))
    return drift, covariance


@njit(cache=True, error_model="numpy")
def _join_movers(
    law: FloatArray,
    leave_at: FloatArray,
    compares: bool,
    fixed: float,
    moving: float,
    others: FloatArray,
    joined: FloatArray,
) -> Any:
    """Mix into the free flow those that leave their home: for the least loaded of the others."""
    norm = 1.0
    if compares:
        # they do so when somebody is idle, and go there
        norm = 0.0
        for k in range(law.size):
            norm += law[k] * leave_at[k] * others[k]
    for k in range(law.size):
        share = leave_at[k] / norm if compares and norm > 0.0 else 1.0
        joined[k] = (fixed * joined[k] + moving * share * others[k]) / (fixed + moving)
    return 0


@njit(cache=True, error_model="numpy")
def _slope(
    covariance: FloatArray, thinking: tuple[FloatArray, FloatArray, FloatArray], limit: float
) -> Any:
    """Follow-ups per second for one request more: Σ_j k_j γ_j Cov(m_j, l) / Var l."""
    gamma, _, keeps = thinking
    size = gamma.size
    spread = covariance[size, size]
    if not spread > 0.0:
        return 0.0
    slope = 0.0
    for j in range(size):
        slope += gamma[j] * keeps[j] * covariance[j, size] / spread
    return min(max(slope, -20.0 * limit), limit)


@njit(cache=True, error_model="numpy")
def solve(
    law: FloatArray,
    slope: float,
    mode: int,
    kind: int,
    rule: tuple[FloatArray, FloatArray, FloatArray],
    flows: tuple[float, float, float],
    works: tuple[float, bool, bool],
    instances: int,
    base: FloatArray,
    thinking: tuple[FloatArray, FloatArray, FloatArray],
    factors: FloatArray,
    placed: FloatArray,
    limits: tuple[float, int],
) -> tuple[FloatArray, float, FloatArray, FloatArray, FloatArray, FloatArray, float, int]:
    """Find the fixed point of the map.

    Parameters
    ----------
    law : ndarray, shape (levels,)
        Where to start.
    slope : float
        Follow-ups per second for one request more, there.
    mode, kind : int
        How the policy closes the chain, and which of the rules' kinds it has.
    rule : tuple of ndarray
        As of :func:`~smetric_model.analytic._routing_kernels.stays`.
    flows : tuple
        First turns and follow-ups per second of an instance; share of the follow-ups evicted.
    works : tuple
        Work of a move ÷ that of a request; whether it is in ``base`` already; whether follow-ups
        may come at a rate that depends on the load.
    instances : int
        N.
    base : ndarray, shape (levels - 1,)
        Completions per second with 1, 2, … present, without the work of moves.
    thinking : tuple of ndarray, shape (classes,)
        As of :func:`~smetric_model.analytic._noise_kernels.fluctuations`.
    factors : ndarray
        Of the rate, at which the variance of the total is worked out, ascending.
    placed : ndarray, shape (levels,) or (0,)
        Free flow at each load ÷ its rate, where that is given.
    limits : tuple
        Residual at which it is found; steps at most.

    Returns
    -------
    law : ndarray, shape (levels,)
        P(load = l).
    slope : float
        At which the map was evaluated.
    rows, numbers, drift, covariance : ndarray
        What the map says there.
    residual : float
        Largest change of a probability there.
    steps : int
        Evaluations.
    """
    size = law.size
    first, follow, _ = flows
    scale = 10.0 * (first + follow)
    rows, numbers = np.zeros((ROWS, size)), np.zeros(NUMBERS)
    weights, means = np.zeros(size), np.empty(factors.size)
    for k in range(factors.size):
        means[k] = -1.0
    tilts = (weights, factors, means, np.empty(factors.size))
    point, change, best = np.empty(size + 1), np.empty(size + 1), np.empty(size + 2)
    point[size], best[0] = slope / scale, np.inf
    for k in range(size):
        point[k] = law[k]
        rows[JOINED, k] = placed[k] if placed.size else 0.0
        if k:
            weights[k] = weights[k - 1] + math.log((first + follow) / base[k - 1])
    history = (np.empty((POINTS, size + 1)), np.empty((POINTS, size + 1)))
    counts = np.zeros(4, np.int64)
    state = GO_ON
    while True:
        law, slope = np.empty(size), point[size] * scale
        for k in range(size):
            law[k] = point[k]
        open_field(law, slope, flows, base, tilts, rows, numbers)
        compares = False
        if instances == 1:
            for k in range(size):
                rows[STAY, k] = 1.0
        else:
            compares = stays(
                kind, instances, rule, (law, rows[AT_LEAST], rows[SEEN]),
                (numbers[MEAN], numbers[VARIANCE], numbers[TOTAL_VARIANCE]),
                rows[STAY], rows[LEAVE_AT],
            )  # fmt: skip
        drift, covariance = respond(
            mode, compares, law, flows, works, instances, base, thinking, rows, numbers
        )
        if state == BEST:
            break
        for k in range(size):
            change[k] = rows[NEW_LAW, k] - law[k]
        change[size] = (numbers[NEW_SLOPE] - slope) / scale
        state = advance(point, change, best, history, counts, size, 0.0, limits[0], limits[1])
        if state != GO_ON and state != BEST:
            break
    return law, slope, rows, numbers, drift, covariance, best[0], counts[STEPS]
