r"""Busy periods of M/G/1, and what they do to those who wait for them to end.

An engine that serves prefills before anything else leaves the rest to decode between the busy
periods of its prefill queue: requests reach decode in bursts, one burst a busy period, and every
arrival interrupts decode for one busy period.
"""

from __future__ import annotations

from functools import lru_cache

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic.queueing import damping

__all__ = ["BusyPeriods", "bursty_queue", "busy_period_counts", "condensed"]


def condensed(work: ArrayLike, bins: int = 32) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a weighted sample that stands for a long one: means of parts of the ordered values.

    The parts shrink towards the largest values (each holds half of what is left in ``bins / 4``
    steps), so that heavy tails keep their second moment; the mean is kept exactly.

    Parameters
    ----------
    work : array_like of float, shape (n,)
        Sample.
    bins : int
        About a quarter of the values wanted for each halving of the tail.

    Returns
    -------
    values, weights : ndarray
        Weights sum to 1.
    """
    ordered = np.sort(np.asarray(work, dtype=float))
    if ordered.size <= 2 * bins:
        return ordered, np.full(ordered.size, 1.0 / ordered.size)
    cuts, counts, weights = _parts(ordered.size, bins)
    return np.add.reduceat(ordered, cuts) / counts, weights


@lru_cache(maxsize=64)
def _parts(
    size: int, bins: int
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Return where the parts of a sample begin, how many values each has, and its weight."""
    tail = 0.5 ** (np.arange(1, 4 * bins) * 4.0 / bins)
    cuts = np.unique(np.concatenate(([0], (size * (1.0 - tail)).round().astype(int))))
    cuts = cuts[cuts < size]
    counts = np.diff(np.append(cuts, size)).astype(float)
    weights = counts / size
    weights.flags.writeable = False
    return cuts, counts, weights


def busy_period_counts(
    work_s: ArrayLike, weights: ArrayLike, rate_rps: float, most: int
) -> NDArray[np.float64]:
    r"""Return P(K > 0), P(K > 1), … of the number served in a busy period of M/G/1.

    .. math:: \hat K(z) = z\, \hat F\big(λ (1 - \hat K(z))\big)

    (Takács, 1955), solved by Newton's method on a circle and inverted by a damped transform.

    Parameters
    ----------
    work_s, weights : array_like of float, shape (n,)
        Sample of the service times [s] and the weight of each, which sum to 1.
    rate_rps : float
        Arrival rate, λ; λ times the mean work must be below 1 [requests/s].
    most : int
        Largest count wanted.

    Returns
    -------
    ndarray, shape (most + 1,)
        P(K > n) for n = 0 … most.
    """
    work, share = np.asarray(work_s, dtype=float), np.asarray(weights, dtype=float)
    points = 1 << int(np.ceil(np.log2(2 * most + 16)))
    radius = 10.0 ** (-8.0 / points)
    z = radius * np.exp(-2j * np.pi * np.arange(points // 2 + 1) / points)
    count = z.copy()
    for turn in range(40):
        factor = share * np.exp(-rate_rps * work * (1.0 - count[:, None]))
        value = z * factor.sum(axis=1)
        error = count - value
        if np.abs(error).max() < 1e-12:
            break
        # plain iteration contracts and keeps inside the unit circle; Newton finishes
        slope = 1.0 - z * (factor @ (rate_rps * work)) if turn >= 4 else 1.0
        count = count - error / slope
    pmf = np.fft.irfft(count, n=points) / damping(points)
    return np.asarray(np.clip(1.0 - np.cumsum(pmf[: most + 1]), 0.0, 1.0))


def bursty_queue(
    burst_rate_rps: ArrayLike, burst_over: NDArray[np.float64], completion_rate_rps: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return the stationary law of the number present where arrivals come in bursts.

    Level crossings: what leaves state ``l`` downwards is what jumps over it upwards,

    .. math:: µ(l)\, π(l) = \sum_{j < l} λ_j\, π(j)\, P(K > l - 1 - j).

    For bursts of one this is :func:`state_dependent_queue`.

    Parameters
    ----------
    burst_rate_rps : float or array_like of float, shape (b,)
        Rate of bursts, λ, or λ_j with 0, …, b - 1 present [1/s].
    burst_over : ndarray, shape (>= b + 1,)
        P(K > n) of the size of a burst, n = 0 ….
    completion_rate_rps : array_like of float, shape (b,)
        Total completion rate with 1, …, b present [requests/s].

    Returns
    -------
    weights : ndarray, shape (b,)
        Stationary law of 0 … b - 1, up to a factor.
    over : ndarray, shape (b,)
        With the same factor, the rate of bursts that find ``j`` present: ``λ_j π(j)``.
    """
    rates = np.asarray(completion_rate_rps, dtype=float)
    size = rates.size
    burst_rates = np.broadcast_to(np.asarray(burst_rate_rps, dtype=float), (size,))
    weights = np.zeros(size)
    weights[0] = 1.0
    backwards = burst_over[:size][::-1]
    for level in range(1, size):
        jumps = (burst_rates[:level] * weights[:level]) @ backwards[size - level :]
        weights[level] = jumps / rates[level - 1]
        if weights[level] > 1e200:
            weights[: level + 1] /= weights[level]
    return weights, burst_rates * weights


_POINTS = 1 << 10  # of the transforms
_MANY = 40  # Newton steps at one point, at most


@numba.njit(cache=True)
def _series(mass, gaps, places, x):  # type: ignore[no-untyped-def]
    """Sum of ``m x^k`` and of ``k m x^k`` over ascending powers ``k``, given by their gaps."""
    squares = np.empty(32, np.complex128)
    squares[0] = x
    known = 1
    power = 1.0 + 0.0j
    value, weighted = 0.0j, 0.0j
    for j in range(places.size):
        gap, bit = gaps[j], 0
        while gap > 0:
            if bit >= known:
                squares[known] = squares[known - 1] * squares[known - 1]
                known += 1
            if gap & 1:
                power *= squares[bit]
            gap >>= 1
            bit += 1
        term = mass[j] * power
        value += term
        weighted += places[j] * term
    return value, weighted


@numba.njit(cache=True)
def _busy_transform(mass, places, log_z, per_step):  # type: ignore[no-untyped-def]
    """Return the generating function of a busy period at points that lie side by side."""
    gaps = places.copy()
    gaps[1:] -= places[:-1]
    busy = np.zeros(log_z.size, np.complex128)
    start = 0.0j
    for i in range(log_z.size):
        found = 2.0 * start - busy[i - 2] if i > 1 else start
        for attempt in range(2):
            # plain iteration contracts and keeps inside the unit circle; Newton finishes, and
            # does without where the neighbour's value is at hand
            plain = (0 if i else 4) if attempt == 0 else 12
            for turn in range(_MANY):
                value, weighted = _series(
                    mass, gaps, places, np.exp(log_z[i] - per_step * (1.0 - found))
                )
                error = found - value
                slope = 1.0 - per_step * weighted if turn >= plain else 1.0 + 0.0j
                found -= error / slope
                # what a step of Newton's leaves is about the square of what it met
                if abs(error) < (1e-5 if turn >= plain else 1e-8):
                    break
            if abs(found) <= 1.0 + 1e-6 and abs(error) < 1e-5:
                break
            found = 0.0j  # the neighbour's value led astray: from the beginning
        busy[i] = start = found
    return busy


@numba.njit(cache=True)
def _transform(mass, places, x):  # type: ignore[no-untyped-def]
    """Return the generating function of a law on a grid at some points."""
    gaps = places.copy()
    gaps[1:] -= places[:-1]
    result = np.empty(x.size, np.complex128)
    for i in range(x.size):
        result[i] = _series(mass, gaps, places, x[i])[0]
    return result


class BusyPeriods:
    r"""Busy periods of M/G/1 on a grid, and the time by which they delay an interrupted task.

    .. math:: \hat B(z) = \hat F\big(z\, e^{-λ h (1 - \hat B(z))}\big)

    for works on a grid of step h (Takács, 1955), by Newton's method on a circle.  A task of
    length ``y`` that every arrival interrupts, for its own work and for what arrives meanwhile,
    is over after ``y`` plus a compound Poisson number ``λ y`` of busy periods.

    Parameters
    ----------
    work_s, weights : array_like of float, shape (n,)
        Sample of the works [s] and the weight of each, which sum to 1.
    rate_rps : float
        Arrival rate, λ; λ times the mean work must be below 1 [requests/s].
    horizon_s : float
        Longest delay of interest [s].
    points : int
        Size of the transform; half of it is the grid.
    first : tuple of array_like and float, optional
        Works, weights and rate of those that interrupt, where they are others than those that
        come meanwhile.
    """

    def __init__(
        self,
        work_s: ArrayLike,
        weights: ArrayLike,
        rate_rps: float,
        horizon_s: float,
        points: int = _POINTS,
        first: tuple[ArrayLike, ArrayLike, float] | None = None,
    ):
        self.rate_rps = rate_rps
        self.points = points
        half = points // 2
        self.step_s = horizon_s / (half - 1)
        mass, places = self._on_grid(work_s, weights)
        radius = 10.0 ** (-8.0 / points)
        self._damping = damping(points)[:half]
        log_z = np.log(radius) - 2j * np.pi * np.arange(half + 1) / points
        self._busy = _busy_transform(mass, places, log_z, rate_rps * self.step_s)
        if first is not None:
            self.rate_rps = first[2]
            x = np.exp(log_z - rate_rps * self.step_s * (1.0 - self._busy))
            self._busy = _transform(*self._on_grid(*first[:2]), x)

    def _on_grid(
        self, work_s: ArrayLike, weights: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return probabilities and places on the grid; means are kept."""
        work, share = np.asarray(work_s, dtype=float), np.asarray(weights, dtype=float)
        half = self.points // 2
        position = np.minimum(work / self.step_s, half)  # longer is late whatever it is
        low = position.astype(int)
        pmf = np.bincount(low, share * (1 - (position - low)), minlength=half + 2)
        pmf += np.bincount(low + 1, share * (position - low), minlength=half + 2)
        places = np.flatnonzero(pmf)
        return np.asarray(pmf[places], dtype=float), places

    def delay_cdf(self, interval_s: ArrayLike) -> NDArray[np.float64]:
        """Return the law of the delay by the arrivals of an interval and what they bring along.

        Parameters
        ----------
        interval_s : float or array_like of float, shape (k,)
            Length of the interval, or of several [s].

        Returns
        -------
        ndarray, shape (points // 2,) or (k, points // 2)
            P(delay <= x) at ``x = 0, step_s, 2 step_s, …``.
        """
        arrivals = self.rate_rps * np.asarray(interval_s, dtype=float)[..., None]
        transform = np.exp(arrivals * (self._busy - 1.0))
        pmf = np.fft.irfft(transform, n=self.points)[..., : self.points // 2] / self._damping
        return np.asarray(np.clip(np.cumsum(pmf, axis=-1), 0.0, 1.0))
