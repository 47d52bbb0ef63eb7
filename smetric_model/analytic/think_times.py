r"""Think times as a mixture of exponentials, the form the routing mean field takes them in.

A session thinks between the completion of a turn and the arrival of the next.  The chain of
:mod:`smetric_model.analytic.stickiness` needs the gap's law only through how fast sessions that
have just left an instance come back, and a mixture of exponentials (a thinking session is in one
of a few classes, each left at its own rate) keeps that linear.

Lognormal laws: an exponential variable times a lognormal factor is a mixture of exponentials, and
:math:`\log` of a standard exponential has variance :math:`\pi^2/6`.  So a lognormal gap with
:math:`\sigma^2 > \pi^2/6` is matched, in the variance of its logarithm, by an exponential whose
mean is lognormal with :math:`\sigma^2 - \pi^2/6`, on a few Gauss-Hermite nodes, rescaled to the
mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.analytic import _arrival_kernels
from smetric_model.errors import SpecError

__all__ = ["ThinkTime"]

_LOG_EXPONENTIAL_VARIANCE = np.pi**2 / 6


@dataclass(frozen=True, eq=False)
class ThinkTime:
    """Law of the time between a turn's completion and the next turn's arrival.

    Parameters
    ----------
    weights : ndarray of float, shape (classes,)
        Share of the gaps in each class; sums to 1.
    means_s : ndarray of float, shape (classes,)
        Mean gap of each class [s], above 0.

    Raises
    ------
    SpecError
        If the weights are no probabilities or a mean is not positive.
    """

    weights: NDArray[np.float64]
    means_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        weights, means = np.asarray(self.weights, float), np.asarray(self.means_s, float)
        if weights.ndim != 1 or weights.shape != means.shape or weights.size == 0:
            raise SpecError(
                f"think time: weights of shape {weights.shape} and means of shape {means.shape};"
                " one weight and one mean a class are needed"
            )
        if not (np.all(weights >= 0) and abs(weights.sum() - 1) < 1e-9):
            raise SpecError(f"think time: weights {weights} are no shares that sum to 1")
        if not np.all((means > 0) & np.isfinite(means)):
            raise SpecError(f"think time: means {means} s; finite numbers > 0 are needed")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "means_s", means)

    @classmethod
    def exponential(cls, mean_s: float) -> ThinkTime:
        """Return an exponential gap.

        Parameters
        ----------
        mean_s : float
            Its mean [s].
        """
        return cls(np.ones(1), np.array([float(mean_s)]))

    @classmethod
    def lognormal(cls, mean_s: float, sigma: float, nodes: int = 4) -> ThinkTime:
        """Return a lognormal gap.

        Parameters
        ----------
        mean_s : float
            Its mean [s].
        sigma : float
            Standard deviation of its logarithm.  At or below sqrt(pi^2/6) = 1.28 an exponential
            is returned: a mixture of exponentials is never narrower.
        nodes : int
            Classes.
        """
        extra = sigma**2 - _LOG_EXPONENTIAL_VARIANCE
        if extra <= 0:
            return cls.exponential(mean_s)
        points, weights = np.polynomial.hermite_e.hermegauss(nodes)
        weights = weights / weights.sum()
        means = np.exp(np.sqrt(extra) * points)
        return cls(weights, means * mean_s / float(weights @ means))

    @classmethod
    def fit(cls, gaps_s: ArrayLike, classes: int = 4, iterations: int = 60) -> ThinkTime:
        r"""Fit a mixture to observed gaps by expectation maximisation, keeping the mean.

        Starts from one class a quantile band.  Gaps shorter than a thousandth of the mean count
        as that, so that clipped zeros do not make a class of infinite rate.

        Parameters
        ----------
        gaps_s : array_like of float, shape (n,)
            Observed gaps [s], not negative.
        classes : int
            Classes at most; those that lose their weight are dropped.
        iterations : int
            Steps of the algorithm (its likelihood grows with each).

        Returns
        -------
        ThinkTime

        Raises
        ------
        SpecError
            If there are no gaps, or none above 0.
        """
        gaps = np.asarray(gaps_s, dtype=float)
        gaps = gaps[np.isfinite(gaps)]
        if gaps.size == 0 or not gaps.max() > 0 or gaps.min() < 0:
            raise SpecError("think time: gaps >= 0, some above 0, are needed to fit their law")
        mean = float(gaps.mean())
        ordered = np.sort(np.maximum(gaps, 1e-3 * mean))
        if ordered.size > 2048:  # representatives: the mean of each of equally many gaps
            edges = np.linspace(0, ordered.size, 2049).astype(int)
            ordered = np.add.reduceat(ordered, edges[:-1]) / np.diff(edges)
        bands = np.array_split(ordered, min(classes, ordered.size))
        means = np.array([band.mean() for band in bands])
        weights = np.array([band.size for band in bands]) / ordered.size
        for _ in range(iterations):
            density = weights / means * np.exp(-ordered[:, None] / means)
            share = density / np.maximum(density.sum(axis=1, keepdims=True), 1e-300)
            total = share.sum(axis=0)
            keep = total > 1e-6 * ordered.size
            share, total = share[:, keep], total[keep]
            weights = total / total.sum()
            means = (share * ordered[:, None]).sum(axis=0) / total
        return cls(weights, means * mean / float(weights @ means))

    @property
    def mean_s(self) -> float:
        """Mean gap [s]."""
        return float(self.weights @ self.means_s)

    @property
    def rates_per_s(self) -> NDArray[np.float64]:
        """Rate at which each class returns [1/s]."""
        return np.asarray(1.0 / self.means_s)

    def survival(self, time_s: ArrayLike) -> NDArray[np.float64]:
        """Return P(gap > t).

        Parameters
        ----------
        time_s : array_like of float
            t [s].
        """
        t = np.asarray(time_s, dtype=float)
        return np.asarray((self.weights * np.exp(-t[..., None] / self.means_s)).sum(axis=-1))

    def mean_within_s(self, time_s: float) -> float:
        """Return E[min(gap, t)] [s].

        Parameters
        ----------
        time_s : float
            t [s]; ``inf`` gives the mean.
        """
        if np.isinf(time_s):
            return self.mean_s
        return float(self.weights @ (self.means_s * -np.expm1(-time_s / self.means_s)))

    def memberships(self, gaps_s: ArrayLike) -> NDArray[np.float64]:
        """Return P(class | gap): to which class gaps may belong.

        Parameters
        ----------
        gaps_s : array_like of float, shape (n,)
            Gaps [s].

        Returns
        -------
        ndarray, shape (n, classes)
            Rows sum to 1.
        """
        gaps = np.asarray(gaps_s, dtype=float)[:, None]
        log = np.log(self.weights / self.means_s) - gaps / self.means_s
        share = np.exp(log - log.max(axis=1, keepdims=True))
        return np.asarray(share / share.sum(axis=1, keepdims=True))

    def met_ratio(self, stop_s: ArrayLike, weights: ArrayLike) -> float:
        r"""Return by how much fewer come during a stop than at other times, for what they wait.

        Sessions that are stopped do not think, so that those who come a time t after the
        beginning are those who were thinking then: P(gap > t) of the usual rate.  Who comes then
        waits for the rest,

        .. math:: \frac{E \int_0^w P(\mathrm{gap} > t)\, (w - t)\, dt}{E[w^2]/2}.

        Parameters
        ----------
        stop_s : array_like of float, shape (n,)
            Lengths w of the stops [s].
        weights : array_like of float, shape (n,)
            How often each occurs.

        Returns
        -------
        float
            Between 0 and 1; 1 for stops that are short against the gaps.
        """
        stop, share = np.asarray(stop_s, dtype=float), np.asarray(weights, dtype=float)
        return float(_arrival_kernels.met_ratio(stop, share, self.means_s, self.weights))
