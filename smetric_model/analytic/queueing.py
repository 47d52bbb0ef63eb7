r"""Queueing building blocks: state-dependent service, and the workload of a busy engine.

Everything here is about one server and knows nothing of LLMs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "cumulated",
    "damping",
    "erlang_c",
    "fitting_counts",
    "number_in_system",
    "on_grid",
    "state_dependent_queue",
    "waiting_law",
]


_MANY = 64  # items of mean size in a capacity


def erlang_c(servers: int, offered_load: float) -> float:
    r"""Return the probability that an arrival waits in M/M/c (Erlang C).

    .. math:: C = \frac{B}{1 - \rho (1 - B)}, \qquad \rho = a / c,

    with the Erlang B recursion ``B_k = a B_{k-1} / (k + a B_{k-1})``, which neither overflows nor
    cancels (Cooper, *Introduction to Queueing Theory*, 1981).

    Parameters
    ----------
    servers : int
        Number of servers, c >= 1.
    offered_load : float
        Arrival rate times mean service time, a >= 0 [erlang].

    Returns
    -------
    float
        P(wait) in [0, 1]; 1 where the queue is unstable (a >= c).
    """
    if offered_load >= servers:
        return 1.0
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = offered_load * blocking / (k + offered_load * blocking)
    return blocking / (1.0 - offered_load / servers * (1.0 - blocking))


def state_dependent_queue(
    arrival_rate_rps: float, completion_rate_rps: ArrayLike
) -> tuple[NDArray[np.float64], float]:
    r"""Return the stationary law of the number present when service depends on it.

    .. math:: \pi(l) \propto \prod_{j \le l} \lambda / \mu(\min(j, b)),

    for ``b`` = the number of states given; beyond ``b`` the rate stays and the tail is geometric
    (processor sharing with state-dependent speed is insensitive to the work's distribution:
    Cohen, 1979; the tail of those waiting is not).

    Parameters
    ----------
    arrival_rate_rps : float
        Poisson arrival rate, λ [requests/s].
    completion_rate_rps : array_like of float, shape (b,)
        Total completion rate with 1, 2, …, b in service, µ [requests/s].

    Returns
    -------
    probabilities : ndarray, shape (b + 1,)
        P(0), …, P(b).  With the tail ``P(b + k) = P(b) ratio**k`` they sum to 1.
    ratio : float
        Ratio of the geometric tail, λ / µ(b).  At 1 or above there is no steady state and the
        probabilities are ``nan``.
    """
    rates = np.asarray(completion_rate_rps, dtype=float)
    ratio = float(arrival_rate_rps / rates[-1])
    if not ratio < 1:
        return np.full(rates.size + 1, np.nan), ratio
    if arrival_rate_rps == 0:
        return np.eye(1, rates.size + 1)[0], 0.0
    log_weights = np.concatenate(([0.0], np.cumsum(np.log(arrival_rate_rps / rates))))
    weights = np.exp(log_weights - log_weights.max())
    total = weights.sum() + weights[-1] * ratio / (1.0 - ratio)
    return weights / total, ratio


def number_in_system(probabilities: NDArray[np.float64], ratio: float) -> tuple[float, float]:
    """Return the mean number in service and the mean number waiting beyond the last state.

    Parameters
    ----------
    probabilities, ratio
        As returned by :func:`state_dependent_queue`.

    Returns
    -------
    in_service, waiting : float
        E[min(l, b)] and E[max(l - b, 0)].
    """
    last = probabilities.size - 1
    beyond = probabilities[-1] * ratio / (1.0 - ratio)
    in_service = float(probabilities @ np.arange(last + 1) + last * beyond)
    return in_service, float(beyond / (1.0 - ratio))


def fitting_counts(
    size: ArrayLike, weights: ArrayLike, capacity: float, most: int, points: int | None = None
) -> NDArray[np.float64]:
    r"""Return how many items of random size fit a capacity when they are taken as they come.

    .. math:: P(N \ge n) = P(S_1 + \dots + S_n \le C),

    the counting law of a renewal process (Cox, *Renewal Theory*, 1962): the item that does not
    fit blocks those behind it, so that the mean lies *below* ``C / E[S]``, by about
    ``(1 - cv^2) / 2`` places for sizes of coefficient of variation ``cv`` < 1, and the spread is
    about ``cv sqrt(C / E[S])``.  For equal sizes it is the whole number below ``C / S``.

    Parameters
    ----------
    size : array_like of float, shape (n,)
        Sample of the sizes, above 0 and at most ``capacity``.
    weights : array_like of float, shape (n,)
        Weight of each; need not sum to 1.
    capacity : float
        C, in the unit of the sizes.
    most : int
        Largest count of interest.
    points : int
        Grid cells that make up the capacity; by default as many as keep the mean count within
        1e-4 of its limit: 512, or 2,048 where many items fit.

    Returns
    -------
    ndarray, shape (m,)
        P(N >= 1), P(N >= 2), … down to about 1e-6, m <= ``most``.
    """
    size = np.asarray(size, dtype=float)
    weights = np.asarray(weights, dtype=float)
    if points is None:
        many = capacity * float(weights.sum()) > _MANY * float(weights @ size)
        points = 1 << 11 if many else 1 << 9
    cell = capacity / points
    # sizes are spread over their two neighbouring cells; what exceeds the capacity is cut off
    pmf, mean, square = on_grid(size, weights, cell, points, 2 * points)
    spread = float(np.sqrt(square))
    if spread < 1e-9 * mean:
        return np.ones(int(np.clip(np.floor(capacity / mean * (1 + 1e-12)), 1, most)))
    count = int(capacity / mean + 10 + 8 * spread / mean * np.sqrt(capacity / mean))
    # damped, so that sums beyond the transform count for 1e-8 of themselves (see waiting_law)
    transform = np.fft.rfft(pmf * damping(2 * points))
    return np.asarray(_fits(transform, _below(points), min(count, most)))


@lru_cache(maxsize=4)
def _below(points: int) -> NDArray[np.complex128]:
    """Return what makes of a damped transform of 2 points the sum over the first points + 1."""
    kept = np.zeros(2 * points)
    kept[: points + 1] = 1.0 / damping(2 * points)[: points + 1]
    kept[points] *= 0.5  # half of what lies in the last cell is beyond the capacity
    weights = np.conj(np.fft.rfft(kept)) / (2 * points)
    weights[1:-1] *= 2.0  # the other half of the circle
    weights.flags.writeable = False
    return np.asarray(weights)


@njit(cache=True, error_model="numpy")
def on_grid(values, weights, step, last, points):  # type: ignore[no-untyped-def]
    """Law of a weighted sample on a grid, its mean, and its variance.

    Each value is spread over its two neighbours on the grid of ``points`` steps, which keeps the
    mean exactly; what exceeds ``last`` steps sits there.
    """
    pmf = np.zeros(points)
    total, mean, square = 0.0, 0.0, 0.0
    for i in range(values.size):
        total += weights[i]
        mean += weights[i] * values[i]
    mean /= total
    for i in range(values.size):
        share = weights[i] / total
        square += share * (values[i] - mean) * (values[i] - mean)
        position = min(values[i] / step, float(last))
        low = int(position)
        upper = position - low
        pmf[low] += share * (1.0 - upper)
        pmf[low + 1] += share * upper
    return pmf, mean, square


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _fits(transform, below, most):  # type: ignore[no-untyped-def]
    """P(sum of 1, 2, … is at most the capacity) down to 1e-6."""
    fits = np.ones(most)
    # (parts apart: so the sums are vectorised)
    real, imag = np.empty(below.size), np.empty(below.size)
    law, law_imag = np.empty(below.size), np.empty(below.size)
    below_real, below_imag = np.empty(below.size), np.empty(below.size)
    for k in range(below.size):
        real[k] = law[k] = transform[k].real
        imag[k] = law_imag[k] = transform[k].imag
        below_real[k], below_imag[k] = below[k].real, below[k].imag
    for n in range(1, most):
        total = 0.0
        for k in range(law.size):
            value = law[k] * real[k] - law_imag[k] * imag[k]
            law_imag[k] = law[k] * imag[k] + law_imag[k] * real[k]
            law[k] = value
            total += value * below_real[k] - law_imag[k] * below_imag[k]
        fits[n] = min(max(total, 0.0), fits[n - 1])
        if fits[n] < 1e-6:
            return fits[:n]
    return fits


@lru_cache(maxsize=16)
def damping(points: int) -> NDArray[np.float64]:
    """Return the powers of the radius on which a generating function is sampled.

    Parameters
    ----------
    points : int
        Size of the transform: what it wraps around is damped to 1e-8 (Abate and Whitt, 1992).
    """
    powers = np.asarray((10.0 ** (-8.0 / points)) ** np.arange(points))
    powers.flags.writeable = False
    return powers


@njit(cache=True, error_model="numpy")
def _residual(work, weights, step, powers):  # type: ignore[no-untyped-def]
    """Damped law of the residual life of a work in progress, density (1 - F) / mean; and the mean.

    Spread over neighbouring points as works are, so that its mean is that of the sample,
    ``E[S^2] / 2 E[S]``.  Up to half of the grid; what lies beyond is left out (a defective law: the
    result below is unaffected).
    """
    size = powers.size // 2
    law, ends = np.zeros(powers.size), np.zeros(size + 1)
    total, weight = 0.0, 0.0
    for i in range(work.size):
        weight += weights[i]
        total += weights[i] * work[i]
        position = min(work[i] / step, float(size))
        low = int(position)
        upper = position - low
        ends[low] += weights[i]
        law[low] += weights[i] * (upper - 0.5 * upper * upper + (0.5 if low > 0 else 0.0))
        law[low + 1] += weights[i] * 0.5 * upper * upper
    beyond = ends[size]
    for k in range(size - 1, -1, -1):
        law[k] += beyond if k > 0 else 0.5 * beyond
        beyond += ends[k]
    scale = step / total if total > 0.0 else 0.0
    for k in range(powers.size):
        law[k] *= scale * powers[k] if k < size else 0.0
    return law, total / weight


@njit(cache=True, error_model="numpy")
def cumulated(pmf, powers, size):  # type: ignore[no-untyped-def]
    """Distribution functions of damped laws, shape (laws, points), at the first points."""
    cdf = np.empty((pmf.shape[0], size))
    for row in range(pmf.shape[0]):
        upto = 0.0
        for k in range(size):
            upto += pmf[row, k] / powers[k]
            cdf[row, k] = min(max(upto, 0.0), 1.0)
    return cdf


@njit(cache=True, error_model="numpy")
def _wait_cdf(pmf, powers, at_once):  # type: ignore[no-untyped-def]
    """Distribution function of a damped law that is continuous but for those who need not wait.

    What is at a grid point stands for the cell around it, half of which lies beyond the point.
    """
    cdf = np.empty(pmf.size // 2)
    upto, cdf[0] = pmf[0], at_once
    for k in range(1, cdf.size):
        mass = pmf[k] / powers[k]
        cdf[k] = min(max(upto + 0.5 * mass, cdf[k - 1]), 1.0)
        upto += mass
    return cdf


def waiting_law(
    work_s: ArrayLike,
    weights: ArrayLike,
    rate_rps: float,
    horizon_s: float,
    points: int = 1 << 10,
) -> tuple[NDArray[np.float64], float]:
    r"""Return the law of the wait for a first-come-first-served server (M/G/1).

    Pollaczek-Khinchine as a geometric sum of residual works,

    .. math:: \hat W = \frac{1 - \rho}{1 - \rho \hat R},

    on a grid and by a damped transform; no moment closure, so that heavy tails count as they are.

    Parameters
    ----------
    work_s, weights : array_like of float, shape (n,)
        Sample of the works [s], not negative, and the weight of each.
    rate_rps : float
        Poisson arrival rate [requests/s].
    horizon_s : float
        Longest wait of interest [s].
    points : int
        Size of the transform, a power of two; half of it is the grid.

    Returns
    -------
    cdf : ndarray, shape (points // 2,)
        P(wait <= x) at ``x = 0, step_s, 2 step_s, …``; zeros where ρ >= 1.
    step_s : float
        Step of the grid [s].
    """
    half = points // 2
    step_s = max(horizon_s, 1e-9) / half
    # The generating function is sampled on a circle of radius below 1, so that what a circular
    # transform wraps around is damped to 1e-8 (Abate and Whitt, 1992).
    powers = damping(points)
    law, mean_s = _residual(
        np.asarray(work_s, dtype=float), np.asarray(weights, dtype=float), step_s, powers
    )
    load = rate_rps * mean_s
    if load >= 1:
        return np.zeros(half), step_s
    pmf = np.fft.irfft((1.0 - load) / (1.0 - load * np.fft.rfft(law)), n=points)
    return np.asarray(_wait_cdf(pmf, powers, 1.0 - load)), step_s
