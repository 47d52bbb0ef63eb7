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
from numpy.typing import ArrayLike, NDArray

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
        same = self.busy_factor is None or np.array_equal(self.busy_factor, self.factor)
        return bool(np.ptp(self.factor) == 0 and same)

    def while_prefilling(self, load: ArrayLike) -> FloatArray:
        """Return ``m`` at loads while a prefill runs.

        Parameters
        ----------
        load : array_like of float
            Loads.
        """
        factor = self.factor if self.busy_factor is None else self.busy_factor
        levels = np.arange(factor.size)
        return np.asarray(np.interp(np.asarray(load, dtype=float), levels, factor))

    def free_at(self, load: ArrayLike, prefilling: bool = False) -> FloatArray:
        """Return the share of free arrivals at loads; all alike where nothing is known of them.

        Parameters
        ----------
        load : array_like of float
            Loads.
        prefilling : bool
            Whether a prefill runs.
        """
        share = self.busy_free_ratio if prefilling else self.free_ratio
        at = np.asarray(load, dtype=float)
        if share is None:
            return np.ones(at.shape)
        return np.asarray(np.interp(at, np.arange(share.size), share))

    def at(self, load: ArrayLike) -> FloatArray:
        """Return ``m`` at loads that need not be whole.

        Parameters
        ----------
        load : array_like of float
            Loads.
        """
        levels = np.arange(self.factor.size)
        return np.asarray(np.interp(np.asarray(load, dtype=float), levels, self.factor))


#: A rate that does not depend on the load.
POISSON = Arrivals(np.ones(1))
