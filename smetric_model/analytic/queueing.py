r"""Queueing building blocks: state-dependent service, and the workload of a busy engine.

Everything here is about one server and knows nothing of LLMs.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "DiscreteWork",
    "cumulated",
    "damping",
    "erlang_c",
    "fitting_counts",
    "number_in_system",
    "on_grid",
    "state_dependent_queue",
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
    # damped, so that sums beyond the transform count for 1e-8 of themselves (see DiscreteWork)
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
    """Damped law of the residual life of a work in progress, density (1 - F) / mean, on a grid.

    Spread over neighbouring points as works are, so that its mean is that of the sample,
    ``E[S^2] / 2 E[S]``.  Up to half of the grid; what lies beyond is left out (a defective law: the
    result below is unaffected).
    """
    size = powers.size // 2
    law, ends = np.zeros(powers.size), np.zeros(size + 1)
    total = 0.0
    for i in range(work.size):
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
    for k in range(powers.size):
        law[k] *= step / total * powers[k] if k < size else 0.0
    return law


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
def _wait_cdf(pmf, powers, size, at_once):  # type: ignore[no-untyped-def]
    """Distribution function of a damped law that is continuous but for those who need not wait.

    What is at a grid point stands for the cell around it, half of which lies beyond the point.
    """
    cdf = np.empty(size)
    upto, cdf[0] = pmf[0], at_once
    for k in range(1, size):
        mass = pmf[k] / powers[k]
        cdf[k] = min(max(upto + 0.5 * mass, cdf[k - 1]), 1.0)
        upto += mass
    return cdf


def _powers(base: NDArray[np.complex128], exponent: NDArray[np.float64]) -> NDArray[np.complex128]:
    """Powers of whole exponents (…, 1), by squares."""
    left = exponent.astype(np.int64)
    result = np.ones(np.broadcast_shapes(left.shape, base.shape), dtype=np.complex128)
    square = base
    while left.any():
        result = np.where(left % 2 == 1, result * square, result)
        square = square * square
        left = left // 2
    return result


class DiscreteWork:
    r"""A positive random amount of work on a grid, with what queueing needs of it.

    The sample is spread over the two neighbouring grid points of each value, which keeps its mean
    exactly.  The grid's step follows the mean and its length the largest value of interest, so
    that heavy tails stay in.

    Parameters
    ----------
    work_s : array_like of float, shape (n,)
        Sample of the work [s], not negative.
    weights : array_like of float, shape (n,), optional
        Weight of each, default equal.
    horizon_s : float
        Largest amount of work that will be asked for [s].
    points : int
        Size of the grid; a power of two.

    Attributes
    ----------
    mean_s, second_moment_s2 : float
        Moments of the work [s], [s^2].
    step_s, horizon_s : float
        Step of the grid and its last point [s].
    """

    mean_s: float
    second_moment_s2: float

    def __init__(
        self,
        work_s: ArrayLike,
        horizon_s: float,
        weights: ArrayLike | None = None,
        points: int = 1 << 13,
    ):
        work = np.asarray(work_s, dtype=float)
        half = points // 2
        self.step_s = max(horizon_s, 1e-9) / half
        self.points = points
        self.horizon_s = (half - 1) * self.step_s
        # Generating functions are sampled on a circle of radius below 1, so that what a circular
        # transform wraps around is damped to 1e-8 (Abate and Whitt, 1992).
        self._damping = damping(points)
        share = np.ones(work.size) if weights is None else np.asarray(weights, dtype=float)
        self._sample = work, share
        # What exceeds the horizon exceeds every slack that is asked for: it may sit at its end.
        self._pmf, self.mean_s, square = on_grid(work, share, self.step_s, half - 1, points)
        self.second_moment_s2 = square + self.mean_s**2

    @cached_property
    def _work(self) -> NDArray[np.complex128]:
        """Transform of the work."""
        return np.fft.rfft(self._pmf * self._damping)

    @cached_property
    def _residual(self) -> NDArray[np.complex128]:
        """Transform of the residual life of the work in progress."""
        return np.fft.rfft(_residual(*self._sample, self.step_s, self._damping))

    def arrived_cdf(self, rate_rps: float, interval_s: float) -> NDArray[np.float64]:
        r"""Return the law of the work that arrives in an interval (compound Poisson).

        .. math:: \hat W = \exp(\lambda t (\hat F - 1))

        Parameters
        ----------
        rate_rps : float
            Poisson rate of arrivals [requests/s].
        interval_s : float
            Length of the interval [s].

        Returns
        -------
        ndarray, shape (points // 2,)
            P(work <= x) at ``x = 0, step_s, 2 step_s, …``.
        """
        return self._cdf(np.exp(rate_rps * interval_s * (self._work - 1.0)))

    def sum_cdf(self, count: ArrayLike) -> NDArray[np.float64]:
        """Return the law of the sum of ``count`` independent works.

        Parameters
        ----------
        count : float or array_like of float, shape (k,)
            How many, or several such numbers; between whole numbers a mixture of the two.

        Returns
        -------
        ndarray, shape (points // 2,) or (k, points // 2)
            P(sum <= x) at ``x = 0, step_s, 2 step_s, …``.
        """
        counts = np.asarray(count, dtype=float)[..., None]
        whole = np.floor(counts)
        part = counts - whole
        return self._cdf(_powers(self._work, whole) * (1.0 - part + part * self._work))

    def waiting_cdf(self, rate_rps: float) -> NDArray[np.float64]:
        r"""Return the law of the wait for a first-come-first-served server (M/G/1).

        Pollaczek-Khinchine as a geometric sum of residual works,
        ``W = (1 - ρ) / (1 - ρ R)`` in the transform domain; no moment closure, so that heavy
        tails count as they are.

        Parameters
        ----------
        rate_rps : float
            Poisson arrival rate [requests/s].

        Returns
        -------
        ndarray, shape (points // 2,)
            P(wait <= x) at ``x = 0, step_s, 2 step_s, …``; zeros where ρ >= 1.
        """
        load = rate_rps * self.mean_s
        if load >= 1:
            return np.zeros(self.points // 2)
        if load <= 0:
            return np.ones(self.points // 2)
        pmf = np.fft.irfft((1.0 - load) / (1.0 - load * self._residual), n=self.points)
        return np.asarray(_wait_cdf(pmf, self._damping, self.points // 2, 1.0 - load))

    def _cdf(self, transform: NDArray[np.complex128]) -> NDArray[np.float64]:
        half = self.points // 2
        pmf = np.fft.irfft(transform, n=self.points)
        cdf = cumulated(pmf.reshape(-1, self.points), self._damping, half)
        return np.asarray(cdf.reshape(*transform.shape[:-1], half))

    def at(self, cdf: NDArray[np.float64], x_s: ArrayLike) -> Any:
        """Interpolate a law returned by this object.

        Parameters
        ----------
        cdf : ndarray
            From :meth:`arrived_cdf` or :meth:`waiting_cdf`.
        x_s : array_like of float
            Where [s]; below 0 the probability is 0.

        Returns
        -------
        ndarray
            P(amount <= x).
        """
        x = np.asarray(x_s, dtype=float)
        grid = np.arange(cdf.size) * self.step_s
        return np.where(x < 0, 0.0, np.interp(x, grid, cdf))
