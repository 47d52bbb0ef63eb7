r"""Arrivals at one instance that depend on how busy it is: what a router makes of a Poisson stream.

Behind a router an instance gets requests at ``λ m(l)`` while ``l`` are present, λ being its mean
rate.  Least-load rules make ``m`` fall steeply, so that far fewer requests meet others than in
M/G/1; sticky rules leave it near 1.  The instance model needs three consequences:

* ``m`` with ``j`` decoding and nobody in prefill: the rate of bursts,
* the rate while prefills run, ``λ_b = λ E[m | prefill busy]``: with it a busy period is that of
  M/G/1 at ``λ_b`` (exactly, if ``m`` takes two values: the first of a busy period may come at any
  rate), and an arrival finds prefill busy with probability ``ρ λ_b/λ``,
* the rate while others decode, for the prefills that a decoding request meets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["POISSON", "Arrivals"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Arrival rate of an instance by its load.

    Attributes
    ----------
    factor : ndarray, shape (levels,)
        ``m(0), m(1), …``: arrival rate at each load ÷ its mean; the last value holds beyond.
    delayed : float
        Of those present, the mean number that is with the host or fetches and not in the engine.
    busy_factor : ndarray, shape (levels,), optional
        The same as ``factor`` while a prefill runs, where the router avoids that; an instance that
        prefills has got its last request just now, and others are next in turn.
    free_ratio, busy_free_ratio : ndarray, shape (levels,), optional
        Share of the arrivals at each load that could have gone anywhere (first turns, follow-ups
        without a home), and the same while a prefill runs.
    is_free : ndarray of bool, shape (n,), optional
        Which requests of the instance's mix these are.  They compute more than those that come
        back to their context, and go where little is under way.
    scale : float
        Factor by which rates are expected to be scaled so that their mean is right.
    """

    factor: FloatArray
    delayed: float = 0.0
    busy_factor: FloatArray | None = None
    free_ratio: FloatArray | None = None
    busy_free_ratio: FloatArray | None = None
    is_free: NDArray[np.bool_] | None = None
    scale: float = 1.0

    @property
    def is_poisson(self) -> bool:
        """Whether the rate depends neither on the load nor on a prefill that runs."""
        factor, busy = self.factor, self.busy_factor
        if factor[0] != factor[-1] or (factor != factor[0]).any():
            return False
        return busy is None or bool((busy == factor[0]).all())


#: A rate that does not depend on the load.
POISSON = Arrivals(np.ones(1))
