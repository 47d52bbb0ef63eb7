r"""Busy periods of M/G/1, and what they do to those who wait for them to end.

An engine that serves prefills before anything else leaves the rest to decode between the busy
periods of its prefill queue: requests reach decode in bursts, one burst a busy period, and every
arrival interrupts decode for one busy period.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic import _busy_kernels as kernels
from smetric_model.analytic.queueing import cumulated, damping, on_grid

__all__ = ["BusyPeriods", "bursty_queue", "busy_period_counts", "circle", "condensed"]


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


@lru_cache(maxsize=4)
def circle(points: int) -> NDArray[np.float64]:
    """Return where damped laws on a grid are transformed.

    Parameters
    ----------
    points : int
        Size of the transform; see :func:`~smetric_model.analytic.queueing.damping`.

    Returns
    -------
    ndarray, shape (2, points // 2 + 1)
        Real and imaginary parts of half of a circle.
    """
    z = 10.0 ** (-8.0 / points) * np.exp(-2j * np.pi * np.arange(points // 2 + 1) / points)
    parts = np.array([z.real, z.imag])
    parts.flags.writeable = False
    return parts


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
        self._growth_per_step = rate_rps * self.step_s
        self._growing = self._on_grid(work_s, weights)
        self._first = np.zeros(0)
        if first is not None:
            self.rate_rps = first[2]
            self._first = self._on_grid(*first[:2])

    def _on_grid(self, work_s: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
        work, share = np.asarray(work_s, dtype=float), np.asarray(weights, dtype=float)
        half = self.points // 2  # longer is late whatever it is
        return np.asarray(on_grid(work, share, self.step_s, half, half + 2)[0])

    def delay_transforms(
        self, interval_s: NDArray[np.float64], result: NDArray[np.complex128]
    ) -> None:
        """Fill in the transforms of the laws of :meth:`delay_cdf`.

        Parameters
        ----------
        interval_s : ndarray of float, shape (k,)
            Lengths of intervals [s].
        result : ndarray of complex, shape (k, points // 2 + 1)
            Filled in.
        """
        kernels.delay_transforms(
            self._growing,
            self._first,
            self._growth_per_step,
            circle(self.points),
            self.rate_rps * interval_s,
            result,
        )

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
        intervals = np.asarray(interval_s, dtype=float)
        transforms = np.empty((intervals.size, self.points // 2 + 1), dtype=np.complex128)
        self.delay_transforms(intervals.ravel(), transforms)
        pmf = np.fft.irfft(transforms, n=self.points)
        cdf = cumulated(pmf, damping(self.points), self.points // 2)
        return np.asarray(cdf.reshape(*intervals.shape, -1))
