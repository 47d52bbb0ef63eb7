r"""The wait of an arrival for the prefill work ahead of it, and the step that it ends in.

The law of M/G/1 of the mix's own prefill times, stretched by the decodes that every step carries
along; :mod:`smetric_model.analytic.loaded` derives what steps add.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic._stall_kernels import LastStep
from smetric_model.analytic.busy_periods import condensed
from smetric_model.analytic.queueing import DiscreteWork

__all__ = ["BIN_EDGES", "PrefillWait"]

_Array = NDArray[np.float64]

#: waits told apart where TPOT depends on them
BIN_EDGES = np.array([0.0, 0.5, 0.8, 0.95, 1.0])
_POINTS = 400  # equally likely waits behind those bins
_CUTS = (BIN_EDGES * _POINTS).round().astype(int)
_SHARES = (np.arange(_POINTS) + 0.5) / _POINTS
_GRID = 1 << 12  # points behind the law


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
    ahead : DiscreteWork
        Prefill work of a request, decodes beside it.
    law : ndarray
        P(wait <= k ahead.step_s), k = 0, 1, ….
    """

    def __init__(
        self,
        work_s: _Array,
        busy_rate_rps: float,
        chunk_s: float,
        decode_s: float,
        wait_steps: float,
    ):
        mean_work = float(work_s.mean())
        self.load = busy_rate_rps * mean_work
        self.busy_rate_rps = busy_rate_rps
        stretch = 1.0 + decode_s / chunk_s if chunk_s > 0 else 1.0
        if self.load > 0:
            stretch = min(stretch, max(0.999 / self.load, 1.0))
        load = min(self.load, 0.999)
        most_s = 0.5 * (chunk_s + decode_s)  # that later arrivals add
        # of an arrival's work no more than the rest of the budget is shared
        fills = float(np.minimum(work_s, most_s).mean()) / max(mean_work, 1e-12)
        self.last_step = LastStep(
            (1 + 2 * load) * decode_s / (2 * (1 - load)) + wait_steps * decode_s,
            fills * load,
            fills * load / (1 + load),
            most_s,
        )
        sample, share = condensed(work_s, 128)
        ahead = sample * stretch
        mean, second = float(ahead @ share), float((ahead * ahead) @ share)
        decay = second / (2 * mean) / max(1 - busy_rate_rps * mean, 1e-3) if mean > 0 else 1.0
        self.ahead = DiscreteWork(ahead, max(1.5 * float(ahead[-1]), 25 * decay), share, _GRID)
        # Prefill is busy for the share λ w of the time, and arrivals come at the busy rate
        # meanwhile: λ_b w of them find it busy.  Theirs is the wait of M/G/1 at that rate, in
        # which as many are delayed; nothing changes but what the busy rate is.
        self.law = self.ahead.waiting_cdf(busy_rate_rps)
        #: equally likely waits, and their means by bin [s]
        self.waits_s = np.interp(_SHARES, self.law, np.arange(self.law.size) * self.ahead.step_s)
        self.bin_wait_s = np.add.reduceat(self.waits_s, _CUTS[:-1]) / np.diff(_CUTS)

    @property
    def mean_s(self) -> float:
        """Mean of the work ahead of an arrival [s]."""
        free = max(1 - self.busy_rate_rps * self.ahead.mean_s, 1e-9)
        return self.busy_rate_rps * self.ahead.second_moment_s2 / (2 * free)

    @property
    def per_load(self) -> float:
        """One over the load, of which the work shared in the last step is over by then."""
        return 1.0 / self.load if self.load > 0 else 1.0

    def within(self, wait_s: _Array) -> _Array:
        """Return P(wait <= x) at times x [s]."""
        return np.asarray(self.ahead.at(self.law, wait_s))
