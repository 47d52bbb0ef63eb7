r"""The wait of an arrival for the prefill work ahead of it, and the step that it ends in.

The law of M/G/1 of the mix's own prefill times, stretched by the decodes that every step carries
along; :mod:`smetric_model.analytic.loaded` derives what steps add.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smetric_model.analytic._stall_kernels import LastStep
from smetric_model.analytic.busy_periods import condensed
from smetric_model.analytic.queueing import waiting_law

__all__ = ["BIN_EDGES", "PrefillWait"]

_Array = NDArray[np.float64]

#: waits told apart where TPOT depends on them
BIN_EDGES = np.array([0.0, 0.5, 0.8, 0.95, 1.0])
_POINTS = 400  # equally likely waits behind those bins
_CUTS = (BIN_EDGES * _POINTS).round().astype(int)
_WIDTHS = np.diff(_CUTS)
_GRID = 1 << 10  # points behind the law


@njit(cache=True, error_model="numpy")
def _ahead(work, sample, share, rate, chunk_s, decode_s, most_s):  # type: ignore[no-untyped-def]
    """Mean work, share of it that fits the last step, stretch, moments once stretched, horizon."""
    total, below = 0.0, 0.0
    for i in range(work.size):
        total += work[i]
        below += min(work[i], most_s)
    stretch = 1.0 + decode_s / chunk_s if chunk_s > 0.0 else 1.0
    if rate * total > 0.0:
        stretch = min(stretch, max(0.999 * work.size / (rate * total), 1.0))
    mean, second = 0.0, 0.0
    for i in range(sample.size):
        ahead = sample[i] * stretch
        mean += share[i] * ahead
        second += share[i] * ahead * ahead
    decay = second / (2.0 * mean) / max(1.0 - rate * mean, 1e-3) if mean > 0.0 else 1.0
    horizon = max(1.5 * sample[-1] * stretch, 25.0 * decay)
    fills = below / max(total, 1e-12 * work.size)
    return total / work.size, fills, stretch, mean, second, horizon


@njit(cache=True, error_model="numpy")
def _quantiles(cdf, step, count):  # type: ignore[no-untyped-def]
    """Equally likely values of a law on a grid."""
    values = np.empty(count)
    k = 0
    for i in range(count):
        share = (i + 0.5) / count
        while k < cdf.size and cdf[k] < share:
            k += 1
        if k == 0 or k == cdf.size:
            values[i] = max(k - 1, 0) * step
        else:
            values[i] = (k - (cdf[k] - share) / (cdf[k] - cdf[k - 1])) * step
    return values


class PrefillWait:
    """Wait for prefill at an instance.

    Parameters
    ----------
    work_s : ndarray, shape (n,)
        Marginal prefill time of each request [s].
    busy_rate_rps : float
        Arrival rate while prefills run [requests/s].
    chunk_s, decode_s : float
        Marginal time of a full token budget, and mean decode step that an arrival finds [s].
    wait_steps : float
        Further steps of the engine that an arrival waits for.

    Attributes
    ----------
    load : float
        Share of time that arrivals at that rate would keep the engine in prefill.
    last_step : LastStep
        What an arrival meets besides the work ahead.
    stretched_prefill_s : float
        Mean time that the engine is busy with a request's prefill, decodes beside it [s].
    law : ndarray
        P(wait <= k step_s), k = 0, 1, ….
    step_s, horizon_s : float
        Step and end of its grid [s].
    """

    load: float
    stretched_prefill_s: float
    horizon_s: float

    def __init__(
        self,
        work_s: _Array,
        busy_rate_rps: float,
        chunk_s: float,
        decode_s: float,
        wait_steps: float,
    ):
        self.busy_rate_rps = busy_rate_rps
        sample, share = condensed(work_s, 128)
        most_s = 0.5 * (chunk_s + decode_s)  # that later arrivals add
        mean_work, fills, stretch, self.stretched_prefill_s, self._second_s2, self.horizon_s = (
            _ahead(work_s, sample, share, busy_rate_rps, chunk_s, decode_s, most_s)
        )
        self.load = busy_rate_rps * mean_work
        load = min(self.load, 0.999)
        self.last_step = LastStep(
            (1 + 2 * load) * decode_s / (2 * (1 - load)) + wait_steps * decode_s,
            fills * load,
            fills * load / (1 + load),
            most_s,
        )
        # Prefill is busy for the share λ w of the time, and arrivals come at the busy rate
        # meanwhile: λ_b w of them find it busy.  Theirs is the wait of M/G/1 at that rate, in
        # which as many are delayed; nothing changes but what the busy rate is.
        self.law, self.step_s = waiting_law(
            sample * stretch, share, busy_rate_rps, self.horizon_s, _GRID
        )
        #: equally likely waits, and their means by bin [s]
        self.waits_s = _quantiles(self.law, self.step_s, _POINTS)
        self.bin_wait_s = np.add.reduceat(self.waits_s, _CUTS[:-1]) / _WIDTHS

    @property
    def mean_s(self) -> float:
        """Mean of the work ahead of an arrival [s]."""
        free = max(1 - self.busy_rate_rps * self.stretched_prefill_s, 1e-9)
        return float(self.busy_rate_rps * self._second_s2 / (2 * free))

    @property
    def per_load(self) -> float:
        """One over the load, of which the work shared in the last step is over by then."""
        return 1.0 / self.load if self.load > 0 else 1.0

    def within(self, wait_s: _Array) -> _Array:
        """Return P(wait <= x) at times x [s]."""
        return np.interp(wait_s, np.arange(self.law.size) * self.step_s, self.law, left=0.0)
