"""When sessions start: Poisson, Markov-modulated or diurnal, forwards and backwards in time.

Starts are a Poisson process whose rate is the wanted one times a level of mean 1.  It is made by
stretching a process of rate 1 (time change): the same random numbers serve every rate, so that a
higher rate brings the same sessions closer together and adds more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smetric_model.workload.synthesis_parameters import Arrivals

__all__ = ["Level", "level_of", "starts_after", "starts_before"]

FloatArray = npt.NDArray[np.float64]

#: Points of a period at which a diurnal level is tabulated.
_POINTS = 4_096


@dataclass(frozen=True, eq=False)
class Level:
    """Rate level over time and its integral from the window's opening.

    Attributes
    ----------
    time_s : ndarray of float64
        Growing; from before the history to after the window [s].
    integral_s : ndarray of float64
        ∫ level dt from 0 to each time [s]; linear between.
    """

    time_s: FloatArray
    integral_s: FloatArray

    def integral(self, time_s: float) -> float:
        """∫ level dt from 0 to ``time_s`` [s]."""
        return float(np.interp(time_s, self.time_s, self.integral_s))

    def time(self, integral_s: FloatArray) -> FloatArray:
        """Time at which the integral reaches each value [s]."""
        return np.interp(integral_s, self.integral_s, self.time_s)


def level_of(
    arrivals: Arrivals,
    history_s: float,
    window_s: float,
    forwards: np.random.Generator,
    backwards: np.random.Generator,
) -> Level:
    """Draw the level of the arrival rate over history and window.

    Parameters
    ----------
    arrivals : Arrivals
    history_s, window_s : float
        Time before and after the window's opening [s].
    forwards, backwards : Generator
        Streams for the two directions.

    Returns
    -------
    Level
    """
    if arrivals.kind == "diurnal":
        return _diurnal(arrivals, history_s, window_s)
    if arrivals.kind == "mmpp":
        return _modulated(arrivals, history_s, window_s, forwards, backwards)
    ends = np.array([-history_s - 1.0, window_s + 1.0])
    return Level(ends, ends)


def _diurnal(arrivals: Arrivals, history_s: float, window_s: float) -> Level:
    step = arrivals.period_s / _POINTS
    first = -math.ceil((history_s + 1.0) / step)
    last = math.ceil((window_s + 1.0) / step)
    time: FloatArray = np.arange(first, last + 1).astype(np.float64) * step
    turn = 2 * math.pi / arrivals.period_s

    def integral(at: FloatArray | float) -> FloatArray:
        wave = np.sin(turn * (np.asarray(at) - arrivals.peak_s)) / turn
        result: FloatArray = np.asarray(at + arrivals.amplitude_ratio * wave)
        return result

    return Level(time, integral(time) - integral(0.0))


def _modulated(
    arrivals: Arrivals,
    history_s: float,
    window_s: float,
    forwards: np.random.Generator,
    backwards: np.random.Generator,
) -> Level:
    dwell = np.array(arrivals.dwell_s)
    levels = np.array(arrivals.levels, dtype=np.float64)
    levels = levels / (levels @ dwell / dwell.sum())
    # The chain jumps to any other state alike: in equilibrium it is in a state in proportion to its
    # dwell time, and it looks the same backwards.  Dwell times have no memory.
    state = int(np.searchsorted(np.cumsum(dwell)[:-1], forwards.random() * dwell.sum(), "right"))

    def walk(rng: np.random.Generator, length_s: float) -> tuple[list[float], list[float]]:
        now, at, total = 0.0, state, 0.0
        times, totals = [], []
        while now <= length_s:
            stay = rng.standard_exponential() * dwell[at]
            now += stay
            total += stay * levels[at]
            times.append(now)
            totals.append(total)
            at = int((at + 1 + rng.integers(levels.size - 1)) % levels.size)
        return times, totals

    after, after_total = walk(forwards, window_s + 1.0)
    before, before_total = walk(backwards, history_s + 1.0)
    return Level(
        np.array([-t for t in reversed(before)] + [0.0] + after),
        np.array([-t for t in reversed(before_total)] + [0.0] + after_total),
    )


def starts_after(
    rng: np.random.Generator, level: Level, rate_rps: float, window_s: float
) -> FloatArray:
    """Draw the starts within the window, in order.

    Parameters
    ----------
    rng : Generator
    level : Level
    rate_rps : float
        Mean rate of starts [1/s].
    window_s : float
        Length of the window [s].

    Returns
    -------
    ndarray of float64
        In [0, window_s) [s].
    """
    end = level.integral(window_s) * rate_rps
    parts: list[FloatArray] = []
    reached = 0.0
    while reached <= end:
        size = 256 + int((end - reached) * 1.1)
        # an exact running sum, whatever the size of the parts
        part = rng.standard_exponential(size)
        part[0] += reached
        part = np.cumsum(part)
        parts.append(part)
        reached = float(part[-1])
    marks = np.concatenate(parts)
    starts = level.time(marks[marks < end] / rate_rps)
    result: FloatArray = starts[starts < window_s]
    return result


def starts_before(
    rng: np.random.Generator, level: Level, rate_rps: float, history_s: float
) -> FloatArray:
    """Draw the starts before the window's opening, the latest first.

    Parameters
    ----------
    rng : Generator
    level : Level
    rate_rps : float
        Mean rate of starts [1/s].
    history_s : float
        How far back [s].

    Returns
    -------
    ndarray of float64
        In (−history_s, 0) [s].
    """
    mirrored = Level(-level.time_s[::-1], -level.integral_s[::-1])
    return -starts_after(rng, mirrored, rate_rps, history_s)
