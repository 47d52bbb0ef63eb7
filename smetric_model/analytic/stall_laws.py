"""Laws of what delays a decode, tabulated: work that comes beside it, or that its places allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _busy_kernels, _quantile_kernels
from smetric_model.analytic import _stall_kernels as kernels
from smetric_model.analytic._stall_kernels import Table
from smetric_model.analytic.busy_periods import BusyPeriods
from smetric_model.analytic.queueing import cumulated, damping, on_grid

__all__ = ["FEWEST_PLACES", "NO_STALLS", "StallLaw", "Stalled"]

_Array = NDArray[np.float64]

_LEVELS = 24  # intervals, or counts, at which the law of stalls is tabulated
_COARSER = 3.0  # a grid serves intervals that reach up to this much further than its first
_POINTS = 1 << 10  # of the transforms; half of them are the grid
FEWEST_PLACES = 1e-3  #: places that count as none

#: a table of a law that is 1 everywhere
NO_STALLS = Table(np.ones((4, 2), dtype=np.float32), np.ones(4), 0.0, 0.0, 1.0)
_NEVER = NO_STALLS._replace(cdf=np.array([[0, 0], [0, 0], [1, 1], [1, 1]], dtype=np.float32))


def _table(levels: _Array, steps: _Array, cdf: _Array) -> Table:
    """Tabulate the laws at geometric levels, each on a grid of its own step."""
    rows = np.empty((levels.size + 2, cdf.shape[1]), dtype=np.float32)
    rows[:-2] = cdf
    rows[:, -1] = 1.0  # whatever lies beyond the grid
    rows[-2:] = 1.0
    first = float(np.log(levels[0]))
    span = float(np.log(levels[-1])) - first
    last = levels.size - 1.0
    per_step = np.append(1.0 / steps, (1.0, 1.0))
    return Table(rows, per_step, first, last / span if span > 1e-9 else 0.0, last)


def _geometric(first: float, last: float) -> _Array:
    return np.asarray(first * np.exp(np.arange(_LEVELS) * (np.log(last / first) / (_LEVELS - 1))))


def _alike(reach: _Array) -> list[slice]:
    """Parts of ascending numbers that one grid serves: the largest at most _COARSER the first."""
    parts = []
    start = 0
    while start < reach.size:
        end = int(np.searchsorted(reach, _COARSER * reach[start], side="right"))
        parts.append(slice(start, end))
        start = end
    return parts


class Stalled:
    """Requests in circumstances, each with a law of what stalls it.

    Parameters
    ----------
    law : StallLaw
        The laws.
    steps, own_s, weights : ndarray, shape (n,)
        Of each case: steps, time of its own [s], and weight.
    log_interval, log_most : ndarray, shape (n,)
        Logarithms of the interval whose arrivals stall it [s], and of the most prefills that its
        places allow.
    alone : ndarray of bool, shape (n,)
        Which cases nobody stalls.
    """

    def __init__(
        self,
        law: StallLaw,
        steps: _Array | float,
        own_s: _Array,
        weights: _Array,
        log_interval: _Array,
        log_most: _Array,
        alone: NDArray[np.bool_],
    ):
        self._tables = law.arrivals, law.places
        self._numbers = np.empty((kernels.NUMBERS, own_s.size), dtype=np.float32)
        self._starts = np.empty((2, own_s.size), np.int32)
        self._numbers[0], self._numbers[1], self._numbers[2] = steps, own_s, weights
        kernels.placed(self._numbers, self._starts, log_interval, log_most, alone, *self._tables)

    def within(self, limit_s: float) -> float:
        """Return the weighted mean of P(time a step <= limit).

        Parameters
        ----------
        limit_s : float
            Limit [s].
        """
        return float(kernels.stalls_within(limit_s, self._numbers, self._starts, *self._tables))

    def quantiles_s(self, shares: Sequence[float], low_s: float, high_s: float) -> list[float]:
        """Return quantiles of the time a step; ``inf`` where the law ends below a share [s].

        Parameters
        ----------
        shares : sequence of float
            Ascending.
        low_s, high_s : float
            Where the law is 0, and near 1 [s].
        """
        found = _quantile_kernels.stall_quantiles(
            np.asarray(shares), low_s, high_s, self._numbers, self._starts, *self._tables
        )
        return [float(value) for value in found]


class StallLaw:
    """P(prefills beside a decode take no longer than its spare time).

    The larger of two: the prefills that come in an interval, with all that comes meanwhile, and
    those that its places allow.

    Parameters
    ----------
    work_s, weights : ndarray, shape (k,)
        Sample of the prefills that come beside a decode [s], and the weight of each.
    rate_rps : float
        Their rate [requests/s].
    shortest_s, longest_s : float
        Intervals that occur [s].
    most_prefills : ndarray, shape (n,)
        Prefills that the places allow beside each request.
    meanwhile : tuple of ndarray, ndarray and float, optional
        Sample, weights and rate of those that come while prefills run; by default the same.

    Attributes
    ----------
    arrivals, places : Table
        The two laws: by the interval [s], and by the count that places allow.
    """

    def __init__(
        self,
        work_s: _Array,
        weights: _Array,
        rate_rps: float,
        shortest_s: float,
        longest_s: float,
        most_prefills: _Array,
        meanwhile: tuple[_Array, _Array, float] | None = None,
    ):
        mean, second = float(work_s @ weights), float((work_s * work_s) @ weights)
        largest = 1.02 * float(work_s.max())
        growing, growing_weights, growth_rps = meanwhile or (work_s, weights, rate_rps)
        growth = growth_rps * float(growing @ growing_weights)
        load = min(growth, 0.995)
        scale = load / growth if load > 0 else 1.0
        levels = _geometric(max(shortest_s, 1e-9), max(longest_s, 2e-9))
        spread = np.sqrt(rate_rps * levels * second / (1 - load) ** 3)
        reach = np.maximum(levels * (rate_rps * mean / (1 - load)) + 8 * spread, largest)
        most = np.maximum(most_prefills, FEWEST_PLACES)
        # a large pool never limits how many prefills come
        self.binds = bool((rate_rps * longest_s / (1 - load) > most - 4 * np.sqrt(most)).any())
        laws = 2 * _LEVELS if self.binds else _LEVELS
        transforms = np.empty((laws, _POINTS // 2 + 1), dtype=np.complex128)
        steps = np.empty(laws)
        first = None if meanwhile is None else (work_s, weights, rate_rps)
        for part in _alike(reach):
            busy = BusyPeriods(
                growing * scale,
                growing_weights,
                growth_rps,
                float(reach[part].max()),
                _POINTS,
                first,
            )
            busy.delay_transforms(levels[part], transforms[part])
            steps[part] = busy.step_s
        if self.binds:
            counts = _geometric(float(most.min()), float(most.max()) * (1 + 1e-9))
            reach = np.maximum(counts * mean + 8 * np.sqrt(counts * second), largest)
            half = _POINTS // 2
            parts = _alike(reach)
            pmf = np.zeros((len(parts), half + 1))
            for row, part in enumerate(parts):
                steps[_LEVELS:][part] = step = float(reach[part].max()) / half
                pmf[row], _, _ = on_grid(work_s, weights, step, half - 1, half + 1)
            works = np.fft.rfft(pmf * damping(_POINTS)[: half + 1], n=_POINTS)
            for work, part in zip(works, parts, strict=True):
                _busy_kernels.sum_transforms(
                    np.array((work.real, work.imag)), counts[part], transforms[_LEVELS:][part]
                )
        cdf = cumulated(np.fft.irfft(transforms, n=_POINTS), damping(_POINTS), _POINTS // 2)
        self.arrivals = _table(levels, steps[:_LEVELS], cdf[:_LEVELS])
        self.places = _table(counts, steps[_LEVELS:], cdf[_LEVELS:]) if self.binds else _NEVER
