"""Compiled parts of the routing mean field: fluctuations around its fixed point."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@njit(cache=True, error_model="numpy")
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


@njit(cache=True, error_model="numpy")
def stationary_covariance(drift: FloatArray, noise: FloatArray) -> FloatArray:
    r"""Solve ``A S + S A' + Q = 0`` for the symmetric S of classes that only the last one couples.

    With A = [[-γ, c], [r, d]], γ diagonal, the classes' own covariances follow from those with the
    last, v, :math:`S_{ij} = (c_i v_j + c_j v_i + Q_{ij}) / (γ_i + γ_j)`, which leaves n equations.

    Parameters
    ----------
    drift, noise : ndarray, shape (n, n)
        A, zero but for its diagonal, its last column and its last row, and Q.

    Returns
    -------
    ndarray, shape (n, n)
        Where A is singular, as it may be on the way to the fixed point, some answer.
    """
    size = drift.shape[0]
    last = size - 1
    corner = drift[last, last]
    system = np.zeros((size, size + 1))
    for i in range(last):
        system[i, i] = corner + drift[i, i]
        system[i, last] = drift[i, last]
        system[i, size] = -noise[i, last]
        for k in range(last):
            share = drift[last, k] / -(drift[i, i] + drift[k, k])
            system[i, i] += share * drift[k, last]
            system[i, k] += share * drift[i, last]
            system[i, size] -= share * noise[i, k]
        system[last, i] = 2.0 * drift[last, i]
    system[last, last] = 2.0 * corner
    system[last, size] = -noise[last, last]
    for i in range(size):  # Gauss, by the largest pivot
        best = i
        for j in range(i + 1, size):
            if abs(system[j, i]) > abs(system[best, i]):
                best = j
        for k in range(i, size + 1):
            system[i, k], system[best, k] = system[best, k], system[i, k]
        if system[i, i] == 0.0:
            system[i, i] = 1e-200
        for j in range(i + 1, size):
            factor = system[j, i] / system[i, i]
            for k in range(i, size + 1):
                system[j, k] -= factor * system[i, k]
    found = np.zeros((size, size))
    for i in range(last, -1, -1):
        total = system[i, size]
        for k in range(i + 1, size):
            total -= system[i, k] * found[k, last]
        found[i, last] = total / system[i, i]
    for i in range(last):
        found[last, i] = found[i, last]
        for j in range(i + 1):
            total = drift[i, last] * found[j, last] + drift[j, last] * found[i, last] + noise[i, j]
            found[i, j] = found[j, i] = total / -(drift[i, i] + drift[j, j])
    return found


@njit(cache=True, error_model="numpy")
def total_variance(
    mean: float, variance: float, slope: float, rate: float, tilts: tuple[FloatArray, ...]
) -> Any:
    """Return the variance of the cluster's total load ÷ N.

    That of the product form with the mean load, but no more than the linear noise of a balanced
    cluster, rate ÷ slope of the completion rate: with KV-bound instances the former grows without
    limit while balanced ones stay below their bound.

    Parameters
    ----------
    mean, variance : float
        Of a load.
    slope : float
        Completions per second for one request more.
    rate : float
        Requests per second and instance.
    tilts : tuple of ndarray
        Logarithms of the product form's weights (levels,); factors by which the rate is multiplied,
        ascending; mean and variance ÷ mean with each, below 0 where they are not worked out yet.
    """
    weights, factors, means, ratios = tilts
    low, high = -1, factors.size
    while high - low > 1:
        middle = (low + high) // 2
        if means[middle] < 0.0:
            _tilt(weights, math.log(factors[middle]), middle, means, ratios)
        if means[middle] <= mean:
            low = middle
        else:
            high = middle
    if low < 0:
        ratio = ratios[0]
    elif high == factors.size:
        ratio = ratios[low]
    else:
        share = (mean - means[low]) / (means[high] - means[low])
        ratio = ratios[low] + share * (ratios[high] - ratios[low])
    linear = rate / slope if slope > 0.0 else np.inf
    return max(min(ratio * mean, linear), 1e-9)


@njit(cache=True, error_model="numpy")
def _tilt(
    weights: FloatArray, log_factor: float, node: int, means: FloatArray, ratios: FloatArray
) -> Any:
    """Work out mean and variance ÷ mean of the law of weights × factor^l."""
    top = -np.inf
    for k in range(weights.size):
        top = max(top, weights[k] + log_factor * k)
    total, first, second = 0.0, 0.0, 0.0
    for k in range(weights.size):
        logarithm = weights[k] + log_factor * k - top
        if logarithm > -50.0:
            chance = math.exp(logarithm)
            total += chance
            first += chance * k
            second += chance * k * k
    means[node] = first / total
    ratios[node] = (second - first * first / total) / first
    return 0
