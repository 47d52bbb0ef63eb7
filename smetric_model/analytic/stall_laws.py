r"""Laws of what delays a decode, tabulated: work that comes beside it, or that its places allow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic import _stall_kernels as kernels
from smetric_model.analytic.busy_periods import BusyPeriods
from smetric_model.analytic.queueing import DiscreteWork

__all__ = ["FEWEST_PLACES", "StallLaw"]

_Array = NDArray[np.float64]

_LEVELS = 24  # intervals, or counts, at which the law of stalls is tabulated
_COARSER = 3.0  # a grid serves intervals that reach up to this much further than its first
FEWEST_PLACES = 1e-3  #: places that count as none


class _Table:
    """Laws on grids of their own at levels of a parameter, linear between levels' logarithms."""

    def __init__(self, levels: _Array, laws: list[_Array], steps: list[float]):
        self.log_first = float(np.log(levels[0]))
        span = float(np.log(levels[-1])) - self.log_first
        self.per_level = (levels.size - 1) / span if span > 1e-9 else 0.0
        self.last = levels.size - 1
        self.cdf = np.concatenate(laws)
        self.steps = np.array(steps)

    @property
    def laws(self) -> tuple[_Array, _Array, float, float]:
        """Values, step of each, logarithm of the first level, levels for a unit of logarithm."""
        return self.cdf, self.steps, self.log_first, self.per_level

    def place(self, parameter: _Array) -> tuple[NDArray[np.int64], _Array]:
        """Level below each parameter, and how far it is towards the next."""
        position = np.clip(
            (np.log(parameter) - self.log_first) * self.per_level, 0.0, float(self.last)
        )
        low = np.minimum(position.astype(np.int64), max(self.last - 1, 0))
        return low, position - low

    def at(self, parameter: _Array, x_s: _Array) -> _Array:
        return kernels.law_at(self.cdf, self.steps, *self.place(parameter), x_s)


def _alike(reach: _Array) -> list[slice]:
    """Parts of ascending numbers that one grid serves: the largest at most _COARSER the first."""
    parts = []
    start = 0
    while start < reach.size:
        end = int(np.searchsorted(reach, _COARSER * reach[start], side="right"))
        parts.append(slice(start, end))
        start = end
    return parts


class StallLaw:
    """P(prefills beside a decode take no longer than its spare time)."""

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
        largest = float(work_s.max())
        growing, growing_weights, growth_rps = meanwhile or (work_s, weights, rate_rps)
        growth = growth_rps * float(growing @ growing_weights)
        load = min(growth, 0.995)
        scale = load / growth if load > 0 else 1.0
        beside = rate_rps * mean
        levels = np.geomspace(max(shortest_s, 1e-9), max(longest_s, 2e-9), _LEVELS)
        spread = np.sqrt(rate_rps * levels * second / (1 - load) ** 3)
        reach = np.maximum(levels * beside / (1 - load) + 8 * spread, 1.02 * largest)
        laws, steps = [], []
        for part in _alike(reach):
            top = float(reach[part].max())
            first = None if meanwhile is None else (work_s, weights, rate_rps)
            busy = BusyPeriods(growing * scale, growing_weights, growth_rps, top, first=first)
            laws.append(busy.delay_cdf(levels[part]))
            steps += [busy.step_s] * len(laws[-1])
        self.arrivals = _Table(levels, laws, steps)
        self.places: _Table | None = None
        most = np.maximum(most_prefills, FEWEST_PLACES)
        # a large pool never limits how many prefills come
        binding = rate_rps * longest_s / (1 - load) > most - 4 * np.sqrt(most)
        if binding.any():
            counts = np.geomspace(float(most.min()), float(most.max()) * (1 + 1e-9), _LEVELS)
            reach = np.maximum(counts * mean + 8 * np.sqrt(counts * second), 1.02 * largest)
            laws, steps = [], []
            for part in _alike(reach):
                law = DiscreteWork(work_s, float(reach[part].max()), weights, 1 << 11)
                laws.append(law.sum_cdf(counts[part]))
                steps += [law.step_s] * len(laws[-1])
            self.places = _Table(counts, laws, steps)

    def within(self, interval_s: _Array, most_prefills: _Array, spare_s: _Array) -> _Array:
        """Return P(stalls fit); arrays of one length.

        Parameters
        ----------
        interval_s, most_prefills, spare_s : ndarray
            Interval whose arrivals stall, the most that its places allow, and spare time [s].
        """
        within = self.arrivals.at(interval_s, spare_s)
        if self.places is not None:
            most = np.maximum(most_prefills, FEWEST_PLACES)
            within = np.maximum(within, self.places.at(most, spare_s))
        return within

    def mean_within(
        self,
        steps: _Array,
        own_s: _Array,
        interval_s: _Array,
        weights: _Array,
        most_prefills: _Array,
    ) -> Callable[[float], float]:
        """Return the weighted mean of P(time a step <= limit) as a function of the limit [s].

        Parameters
        ----------
        steps, own_s, interval_s, weights, most_prefills : ndarray, shape (n,)
            Of each case: steps, time of its own, interval whose arrivals stall it [s], weight, and
            the most prefills that its places allow.
        """
        laws = (self.arrivals.cdf, self.arrivals.steps, *self.arrivals.place(interval_s))
        most: tuple[_Array, _Array, NDArray[np.int64], _Array]
        if self.places is None:
            none = np.zeros(0)
            most = (np.zeros((0, 0)), none, np.zeros(0, np.int64), none)
        else:
            place = self.places.place(np.maximum(most_prefills, FEWEST_PLACES))
            most = (self.places.cdf, self.places.steps, *place)

        def within(limit_s: float) -> float:
            return float(kernels.mean_within(limit_s, steps, own_s, weights, *laws, *most))

        return within
