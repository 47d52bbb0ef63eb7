"""Searches over rates that live with noise: all seeds at every rate, and the noise is stated."""

from __future__ import annotations

import math

import numpy as np

from smetric_model.capacity.samples import Samples, standard_error
from smetric_model.errors import SolveError

__all__ = ["Attained", "attained_rate", "best_rate", "plateau"]

#: first step of the search for a bracket; each one further in the same direction is larger
_STEP = 1.3
_GROWTH = 1.5
#: rates further than this from where the search begins are not tried
_MOST = 256.0
#: a share of fewer requests says nothing
_LEAST_REQUESTS = 30
#: first step of the climb to the peak, and how often goodput must fall before it ends
_CLIMB = 1.25
_FALLS = 2
#: rates within this factor tell the slope of the share
_NEAR = 1.35

_SHARE, _GOODPUT = "within_slo_ratio", "total_within_slo_tps"


class Attained:
    """A bracket: the last rate that is good enough, the next one that is not.

    Parameters
    ----------
    low_rps : float or None
        None: no rate is.
    high_rps : float
        [requests/s].
    noise_rps : float
        Standard error of the rate over seeds [requests/s].
    """

    def __init__(self, low_rps: float | None, high_rps: float, noise_rps: float):
        self.low_rps, self.high_rps, self.noise_rps = low_rps, high_rps, noise_rps


def attained_rate(samples: Samples, wanted: float, start_rps: float, tolerance: float) -> Attained:
    """Bracket the rate at which the mean share within SLO falls below what is wanted.

    Parameters
    ----------
    samples : Samples
        Answers by rate.
    wanted : float
        Share of the servable requests [ratio].
    start_rps : float
        Where the search begins [requests/s].
    tolerance : float
        Relative width at which it ends.

    Returns
    -------
    Attained

    Raises
    ------
    SolveError
        If the share is still met at 256 times the first rate.

    Notes
    -----
    The share falls with the rate, but for noise; the first crossing found counts.
    """

    def enough(rate: float) -> bool:
        return samples.mean(rate, _SHARE) >= wanted

    window_s = samples.scenario.workload.window_s
    low = high = None
    rate, step = start_rps, _STEP
    while low is None or high is None:
        if enough(rate):
            low, rate = rate, rate * step
            if high is None and rate > _MOST * start_rps:
                raise SolveError(
                    f"capacity: {wanted:.0%} of the requests are within SLO at"
                    f" {low:.4g} requests/s: the SLO limits no rate"
                )
        else:
            high, rate = rate, rate / step
            too_few = rate * window_s < _LEAST_REQUESTS
            if low is None and (too_few or rate * _MOST < start_rps):
                return Attained(None, high, math.nan)
        step = 1 + (step - 1) * _GROWTH
    while high / low - 1 > tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return Attained(low, high, _rate_noise(samples, low, high))


def _rate_noise(samples: Samples, low: float, high: float) -> float:
    """Return the standard error of the crossing: the share's, over the share's slope."""
    at_crossing = 0.5 * (samples.values(low, _SHARE) + samples.values(high, _SHARE))
    error = standard_error(at_crossing)
    near = [rate for rate in samples.rates if high / _NEAR <= rate <= low * _NEAR]
    slope = np.polyfit(np.log(near), [samples.mean(rate, _SHARE) for rate in near], 1)[0]
    return float(low * error / -slope) if slope < 0 else math.nan


def best_rate(samples: Samples, start_rps: float, tolerance: float) -> float:
    """Find the rate with the most tokens within SLO, in the mean over seeds.

    From a first rate upwards until goodput has fallen twice, and downwards likewise; then the
    distance to both neighbours of the best is halved until it is small.

    Parameters
    ----------
    samples : Samples
        Answers by rate.
    start_rps : float
        Where the search begins [requests/s].
    tolerance : float
        Relative distance of the neighbours at which it ends.

    Returns
    -------
    float
        [requests/s].

    Raises
    ------
    SolveError
        If goodput still rises at 256 times the first rate.
    """

    def best() -> float:
        return max(samples.rates, key=lambda rate: samples.mean(rate, _GOODPUT))

    least = _LEAST_REQUESTS / samples.scenario.workload.window_s
    samples.at(start_rps)
    for direction in (_CLIMB, 1 / _CLIMB):
        rate, falls = start_rps, 0
        while falls < _FALLS:
            rate *= direction
            if rate < least:
                break
            if rate > _MOST * start_rps:
                raise SolveError(f"capacity: tokens within SLO still rise at {rate:.4g} requests/s")
            before = best()
            samples.at(rate)
            falls = 0 if best() != before else falls + 1
    step = _CLIMB
    while step - 1 > tolerance:
        step = math.sqrt(step)
        centre = best()
        samples.at(centre * step)
        samples.at(centre / step)
    return best()


def plateau(samples: Samples, best_rps: float) -> tuple[float, float]:
    """Rates around the best that cannot be told from it.

    Parameters
    ----------
    samples : Samples
        Answers by rate.
    best_rps : float
        [requests/s].

    Returns
    -------
    low_rps, high_rps : float
        Ends of the run of rates tried whose goodput is not lower, by a paired t test over seeds
        at 95 % [requests/s].  With one seed: the neighbours.
    """
    from scipy.stats import t

    rates = samples.rates
    place = rates.index(best_rps)
    count = len(samples.seeds)
    if count == 1:
        return rates[max(place - 1, 0)], rates[min(place + 1, len(rates) - 1)]
    top = samples.values(best_rps, _GOODPUT)
    quantile = float(t.ppf(0.95, count - 1))

    def alike(rate: float) -> bool:
        lower = top - samples.values(rate, _GOODPUT)
        return bool(lower.mean() <= quantile * standard_error(lower))

    low = high = place
    while low > 0 and alike(rates[low - 1]):
        low -= 1
    while high + 1 < len(rates) and alike(rates[high + 1]):
        high += 1
    return rates[low], rates[high]
