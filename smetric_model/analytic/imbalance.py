r"""Imbalance between instances: the largest over the mean, per window, for finitely many.

What an instance processes or holds in a window of ``T`` seconds has a coefficient of variation
with three sources:

* how many requests it has, from the linear noise around the fixed point
  (:class:`~smetric_model.analytic.stickiness.LinearNoise`): a router that balances keeps it small;
* how unequal requests are.  A session's turns are alike, and come back to the same instance within
  the window, so that the variance is that of independent requests times

  .. math:: \chi = 1 + 2 \int_0^T (1 - u/T)\, h_s(u)\, du,

  ``h_s`` the density at which a request's session is served here again, a time ``u`` later;
* lasting differences between instances (where first turns crowd).

A router that balances keeps an instance full: whoever completes is replaced, and the prefill of the
new one stops the decode that completes others.  Completions are random (``ε``) on decode's clock,
which stands still during prefills of w that take ρ of the time in all, so that
``δN = (1 - ρ) ε - ρ Σ δw / E[w]`` and, for N requests of x tokens each,

.. math:: \mathrm{Var}\, X = N E[x]^2 (1 - ρ)^2 + N\, \mathrm{Var}(x - ρ E[x]\, w/E[w])

That holds where every request joins the least loaded; of ρ the share θ = -f/(µ' - f) counts, f the
slope of the arrivals in the load.  Where sessions stay, follow-ups come whether their instance is
full or not, and none of it is applied (measured: ``docs/cluster-model.md``).

What is computed is processed as long as its prefill lasts, what is reused at once: a prompt of r
and c tokens is a point and a pulse of length w, of which a window sees

.. math:: r^2 + 2 r c\, h(w/T) + c^2 g(w/T), \qquad g(y) = 1 - y/3, \quad h(y) = 1 - y/2

(``(1 - 1/(3y))/y`` and ``1/(2y)`` above 1) in place of (r + c)².

Instances are taken as independent and gamma distributed.  For gammas the largest share is
independent of the sum, so that ``E[max / mean] = E[max] / E[mean]`` holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from smetric_model.analytic import _imbalance_kernels as kernels
from smetric_model.analytic.request_weights import RequestWeights
from smetric_model.analytic.stickiness import Stickiness
from smetric_model.errors import SpecError
from smetric_model.schema import imbalance_column

__all__ = [
    "Imbalance",
    "Quantity",
    "imbalance",
    "imbalance_columns",
    "largest_over_mean",
]

FloatArray = NDArray[np.float64]
Quantity = Literal["processed_tokens", "inflight_tokens", "unprefilled_tokens", "requests"]

_QUANTITIES: tuple[Quantity, ...] = (
    "processed_tokens",
    "inflight_tokens",
    "unprefilled_tokens",
    "requests",
)
_LEVELS = {"median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}
_POINTS, _POINT_WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class Imbalance:
    """Law of an instance's share of a quantity in a window, and of the largest among N.

    Attributes
    ----------
    instances : int
        N.
    squared_variation : float
        Variance ÷ squared mean of one instance, its parts added up.
    from_counts, from_weights, lasting : float
        The parts; see the module.
    """

    instances: int
    squared_variation: float
    from_counts: float
    from_weights: float
    lasting: float

    @cached_property
    def mean(self) -> float:
        """E[largest ÷ mean] over windows."""
        return largest_over_mean(self.squared_variation, self.instances)

    def quantile(self, level: float) -> float:
        """Return a quantile over windows of largest ÷ mean.

        The quantiles of the largest alone are drawn together by what the mean shares with it: the
        share of the largest is independent of the sum, so that variances of logarithms add up.

        Parameters
        ----------
        level : float
            In (0, 1).
        """
        return float(self.quantiles([level])[0])

    def quantiles(self, levels: ArrayLike) -> FloatArray:
        """Return several quantiles, as :meth:`quantile`.

        Parameters
        ----------
        levels : array_like of float, shape (k,)
            Each in (0, 1).

        Returns
        -------
        ndarray, shape (k,)
        """
        asked = np.asarray(levels, dtype=float)[None, :]
        spread, mean = np.array([self.squared_variation]), np.array([self.mean])
        return np.asarray(_quantiles(spread, mean, asked, self.instances)[0])

    def statistic(self, name: str, windows: int = 30) -> float:
        """Return a statistic of the schema.

        Parameters
        ----------
        name : {"mean", "median", "p75", "p90", "p99", "max"}
            Statistic over windows.
        windows : int
            Number of windows, for the largest over them.
        """
        if name == "mean":
            return self.mean
        if name == "max":
            return self.quantile(_of_largest(windows))
        if name not in _LEVELS:
            raise SpecError(f"statistic {name!r}: one of mean, {', '.join(_LEVELS)}, max")
        return self.quantile(_LEVELS[name])


def _of_largest(windows: int) -> float:
    """Level of one window's law at which the largest over so many has its median."""
    return float(0.5 ** (1 / max(windows, 1)))


def largest_over_mean(squared_variation: float, instances: int) -> float:
    r"""Return E[max ÷ mean] of N independent gamma variables.

    .. math:: E[\max] = \int_0^\infty 1 - F(x)^N\, dx

    Parameters
    ----------
    squared_variation : float
        Variance ÷ squared mean of each.
    instances : int
        N.

    Returns
    -------
    float
        Between 1 and N.
    """
    return float(_largest_over_mean(np.array([squared_variation]), instances)[0])


def _largest_over_mean(squared_variations: FloatArray, instances: int) -> FloatArray:
    """As :func:`largest_over_mean`, of several such laws."""
    result = np.ones(squared_variations.size)
    some = squared_variations >= 1e-12
    if instances == 1 or not some.any():
        return result
    shape = 1 / squared_variations[some]
    top = special.gammaincinv(shape, 1 - 1e-12 / instances) / shape
    # split where the integrand falls, so that few points suffice
    low = special.gammaincinv(shape, 1e-9 ** (1 / instances)) / shape
    x = low[:, None] + (top - low)[:, None] * (0.5 * (1 + _POINTS))
    below = special.gammainc(shape[:, None], shape[:, None] * x)
    result[some] = low + (1 - below**instances) @ _POINT_WEIGHTS * 0.5 * (top - low)
    return result


def _quantiles(
    squared_variations: FloatArray, means: FloatArray, levels: FloatArray, instances: int
) -> FloatArray:
    """Quantiles over windows of largest ÷ mean of several laws (k,), at levels of each (k, m)."""
    result = np.ones(levels.shape)
    some = squared_variations >= 1e-12
    if instances == 1 or not some.any():
        return result
    shape = 1 / squared_variations[some]
    marks = np.broadcast_to((0.159, 0.841, 0.55), (shape.size, 3))
    marks = np.concatenate((levels[some], marks), axis=1)
    # hardly any requests: quantiles below the smallest number
    at = np.maximum(special.gammaincinv(shape[:, None], marks ** (1 / instances)), 1e-300)
    log = np.log(at / shape[:, None])
    variance = np.maximum((0.5 * (log[:, -2] - log[:, -3])) ** 2, 1e-12)
    # (the trigamma function as a Hurwitz zeta)
    narrow = np.sqrt(np.maximum(1 - special.zeta(2.0, instances * shape) / variance, 0.05))
    # one instance may have it all, not more
    above = np.minimum(narrow[:, None] * (log[:, :-3] - log[:, -1:]), np.log(instances))
    result[some] = np.clip(means[some, None] * np.exp(above), 1.0, instances)
    return result


def imbalance(
    solved: Stickiness,
    quantity: Quantity,
    window_s: float,
    weights: RequestWeights | None = None,
    lasting_squared_variation: float | None = None,
) -> Imbalance:
    """Return the imbalance of a quantity.

    Parameters
    ----------
    solved : Stickiness
        The routed cluster.
    quantity : {"processed_tokens", "inflight_tokens", "unprefilled_tokens", "requests"}
        As in the schema: tokens processed, or tokens or requests in flight averaged over a window.
    window_s : float
        T [s].
    weights : RequestWeights, optional
        What requests add; equal amounts by default, and always for ``requests``.
    lasting_squared_variation : float, optional
        Variance ÷ squared mean of lasting differences between instances; by default what crowded
        first turns bring.

    Returns
    -------
    Imbalance
    """
    if not window_s > 0:
        raise SpecError(f"window_s = {window_s}: a number > 0 is needed")
    if quantity not in _QUANTITIES:
        raise SpecError(f"quantity {quantity!r}: one of {', '.join(_QUANTITIES)}")
    (seen,) = _windows(solved, (window_s,))
    return _imbalance(solved, quantity, seen, weights, lasting_squared_variation)


def _imbalance(
    solved: Stickiness,
    quantity: Quantity,
    seen: _Window,
    weights: RequestWeights | None,
    lasting: float | None,
) -> Imbalance:
    if quantity == "requests" or weights is None:
        weights = RequestWeights(0.0, duration_s=weights.duration_s if weights else None)
    rate, share, visible = solved.cluster.rate_per_instance_rps, 0.0, 1.0
    served = quantity in ("processed_tokens", "unprefilled_tokens")
    if served:
        expected = rate * seen.window_s
        share = _replaced(solved) * weights.engine_ratio
        visible = weights.seen_ratio(seen.window_s)
        counts = seen.completions_variance / expected**2 * (1.0 - share) ** 2 * visible
        each = 1 / expected
        if quantity == "unprefilled_tokens" and weights.duration_s:
            # a request's area is spread over its duration
            ratio = seen.window_s / weights.duration_s
            each *= 1 + math.expm1(-ratio) / ratio
        spread = each * (1 + weights.session_ratio * (seen.served_again - 1))
    else:
        counts = seen.load_squared_variation
        own, again = seen.present_alone, seen.present_again
        spread = (own + weights.session_ratio * (again - own)) / seen.mean_load
    by_weight = weights.variation_beside(share) * visible * spread
    if lasting is None:
        lasting = solved.lasting_rate_variation if served else solved.lasting_load_variation
    total = float(counts + by_weight + lasting)
    return Imbalance(solved.cluster.instances, total, float(counts), float(by_weight), lasting)


class _Window(NamedTuple):
    """What a window of an instance sees, whatever requests weigh; see ``window_moments``."""

    window_s: float
    mean_load: float
    load_squared_variation: float
    completions_variance: float
    served_again: float
    present_alone: float
    present_again: float


def _windows(solved: Stickiness, windows_s: tuple[float, ...]) -> list[_Window]:
    noise, cluster = solved.noise, solved.cluster
    think, follow = cluster.think_time, cluster.turns.follow_up_ratio
    back = solved.return_to_previous_ratio
    scattered = solved.rule.kind in ("never", "blind")
    load = solved.mean_load
    found = kernels.window_moments(
        noise.drift,
        noise.covariance,
        noise.service_slope,
        cluster.rate_per_instance_rps,
        # sessions that leave do not come back here
        0.0 if scattered else follow,
        think.weights,
        think.rates_per_s,
        follow * max(back, 0.0) if math.isfinite(back) else 0.0,
        cluster.rate_per_instance_rps / max(load, 1e-12),
        np.array(windows_s),
    )
    variation = solved.load_variance / load**2
    return [
        _Window(window_s, load, averaged * variation, completed, *again)
        for window_s, (completed, averaged, *again) in zip(windows_s, found.tolist(), strict=True)
    ]


def imbalance_columns(
    solved: Stickiness,
    weights: Mapping[str, RequestWeights],
    windows_s: tuple[float, ...] = (30.0, 60.0),
    observed_s: float = 1800.0,
    lasting_squared_variation: float | None = None,
) -> dict[str, float]:
    """Return the imbalance columns of the schema.

    Parameters
    ----------
    solved : Stickiness
        The routed cluster.
    weights : mapping of str to RequestWeights
        For each quantity that is wanted; ``requests`` needs none and is always given.
    windows_s : tuple of float
        Widths of the windows [s].
    observed_s : float
        Time over which the windows are taken [s], for the largest over them.
    lasting_squared_variation : float, optional
        See :func:`imbalance`.

    Returns
    -------
    dict of str to float
        By column name.
    """
    windows = _windows(solved, windows_s)
    asked = [
        (quantity, seen)
        for quantity in _QUANTITIES
        if quantity in weights or quantity == "requests"
        for seen in windows
    ]
    spreads = np.array(
        [
            _imbalance(
                solved, quantity, seen, weights.get(quantity), lasting_squared_variation
            ).squared_variation
            for quantity, seen in asked
        ]
    )
    instances = solved.cluster.instances
    means = _largest_over_mean(spreads, instances)
    counts = [max(int(observed_s / seen.window_s), 1) for _, seen in asked]
    # a run of few windows has no quantile beyond its largest
    largest = np.array([_of_largest(count) for count in counts])
    levels = np.minimum([*_LEVELS.values(), 1.0], largest[:, None])
    values = np.column_stack((means, _quantiles(spreads, means, levels, instances)))
    names = _names(tuple((quantity, seen.window_s) for quantity, seen in asked))
    return dict(zip(names, values.reshape(-1).tolist(), strict=True))


@lru_cache(maxsize=64)
def _names(asked: tuple[tuple[str, float], ...]) -> tuple[str, ...]:
    return tuple(
        imbalance_column(quantity, window_s, name)
        for quantity, window_s in asked
        for name in ("mean", *_LEVELS, "max")
    )


def _replaced(solved: Stickiness) -> float:
    """θ: of a request that completes, how much another replaces at once."""
    if solved.rule.kind not in ("never", "blind"):
        return 0.0
    service = solved.noise.service_slope
    back = -float(solved.noise.drift[-1, -1])
    return min(max(1.0 - service / back, 0.0), 1.0) if back > 0 else 0.0
