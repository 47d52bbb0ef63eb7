r"""OVERLOAD* and HIT_RATIO*: from which load on leaving home pays, in closed form.

An instance with ``l`` requests in service gives each of them ``A + E l`` seconds, so that it
completes :math:`\mu(l) = l/(A + E l)`; :math:`S = A + E \bar l` is the sojourn at the mean load.
What a move costs and what it saves both outlast the request: an instance that is behind stays so
until the excess has been worked off, and sessions return to it.  Both are linear responses of the
cluster around its mean load.

*Cost.*  Engine work of Δ seconds costs Δ·λ completions.  Each of them is a request that is still
there, and the cluster works off excess at :math:`\mu'` per request, so that
:math:`\Delta\lambda/\mu'` request-seconds are lost, whoever thinks between turns and wherever the
excess lies.  :math:`\mu' = \mathrm{Cov}(l, \mu(l))/\mathrm{Var}\, l` is the slope that the load
law sees.  The slope at the mean load alone would do for an instance that never leaves it; where KV
is short, the latter tends to 0 as the instance fills, the former does not.

*Saving.*  A request that joins ``l_r`` in place of ``l_h`` lets the cluster complete
:math:`-\mu''\,(l_h - l_r) = 2 (E/S)\,\mu'\,(l_h - l_r)` more per second, and each is worth
:math:`1/\mu'` request-seconds.  How long it lasts is the *persistence*

.. math:: I = \int_0^\infty \rho(t)\, g(t)\, dt,

ρ the autocorrelation of a load (the difference of the two is still there) and g the excess that one
request leaves behind where it went, its session's later turns included.  With linear drift A and
covariance Σ of thinking sessions and load, :math:`I = e_l' P e_l` where
:math:`A P + P A' + e_l (\Sigma e_l/\Sigma_{ll})' = 0`.

Leaving costs

* the *fetch* of what home would have hit, or its *recomputation* where the global tier lacks it,
* the *links*: a transfer slows those that share its NIC,
* recomputation's delay of the other requests,
* the *dead copy* left at home, which takes room from KV that would have been hit.

All costs are in request-seconds.  With the cost D of a move and its saving
:math:`\sigma = 2 E I / S` for each request fewer,

.. math::

   \mathrm{OVERLOAD}^* = \max\!\left(1.25,\ \frac{l_r + D / \sigma}{\bar l}\right), \qquad
   \mathrm{HIT\_RATIO}^* = \mathrm{clip}\!\left(\frac{\sigma (l_h - l_r)}{D}, 0, 1\right),

the *social* optimum.  The *private* one is best for the request that decides: its own costs, and
its own stay only, of which the share :math:`\eta = S/(S + A)` sees the difference melt, so that
:math:`\sigma = E \eta`.  The second threshold is the first seen from the hit: a home that still
holds a share h of the expected hit asks D h for leaving, so both say that a follow-up stays where
:math:`\sigma (l_h - l_r) \le D h`.  ``l_r`` is the mean load that free requests join, ``l_h`` the
mean home load of follow-ups that OVERLOAD lets stay.

Below 1.25 OVERLOAD is a poor bet where moves cost anything: between 1.25 and 1 migration about
doubles.  ``docs/thresholds.md`` shows how good the formulas are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from smetric_model.errors import SpecError

__all__ = [
    "LEAST_OVERLOAD",
    "MoveCost",
    "ServiceLine",
    "hit_ratio_optimum",
    "least_load_quantile",
    "matching_hit_weight",
    "matching_overload",
    "overload_optimum",
    "persistence_s",
    "recompute_delay_s",
    "service_line",
    "shared_link_delay_s",
    "transfer_time_s",
]

#: OVERLOAD* is not set below this
LEAST_OVERLOAD = 1.25


@dataclass(frozen=True)
class ServiceLine:
    """Sojourn of a request as a line in the load of its instance, ``base_s + slope_s · load``.

    Attributes
    ----------
    base_s, slope_s : float
        A and E [s].
    mean_load : float
        Load at which the line was laid, the mean number present.
    """

    base_s: float
    slope_s: float
    mean_load: float

    @property
    def sojourn_s(self) -> float:
        """S: sojourn at the mean load [s]."""
        return self.base_s + self.slope_s * self.mean_load

    @property
    def persistence(self) -> float:
        """η = S/(S + A): share of a load difference that counts over a sojourn."""
        whole = self.sojourn_s + self.base_s
        return self.sojourn_s / whole if whole > 0 else 1.0

    @property
    def own_saving_s(self) -> float:
        """What a request spares itself by joining one request fewer, E η [s]."""
        return self.slope_s * self.persistence

    def saving_s(self, persistence_s: float) -> float:
        """Return what it spares all by joining one request fewer, 2 E I / S [request-seconds].

        Parameters
        ----------
        persistence_s : float
            I, of :func:`persistence_s` [s].
        """
        return 2.0 * self.slope_s * persistence_s / self.sojourn_s


@dataclass(frozen=True)
class MoveCost:
    """What one move costs, in request-seconds [s].

    Attributes
    ----------
    fetch_s : float
        The request waits for its KV from the global tier.
    recompute_s : float
        The request waits for the recomputation of what the tier lacks; its engine time.
    link_s : float
        Other transfers wait, on the links shared.
    others_recompute_s : float
        Other requests wait for the recomputation.
    dead_copy_s : float
        Other follow-ups fetch or recompute what the copy left behind displaces.
    """

    fetch_s: float = 0.0
    recompute_s: float = 0.0
    link_s: float = 0.0
    others_recompute_s: float = 0.0
    dead_copy_s: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value >= 0:
                raise SpecError(f"move cost: {item.name} = {value}: a number >= 0 is needed")

    @property
    def private_s(self) -> float:
        """What the request itself pays [s]."""
        return self.fetch_s + self.recompute_s

    @property
    def social_s(self) -> float:
        """What all pay together [request-seconds]."""
        return self.private_s + self.link_s + self.others_recompute_s + self.dead_copy_s


def service_line(completion_rate_rps: ArrayLike, mean_load: float) -> ServiceLine:
    r"""Lay the line ``A + E l`` through an instance's sojourns at its mean load.

    Parameters
    ----------
    completion_rate_rps : array_like of float, shape (b,)
        µ: total completions with 1, 2, …, b requests present; constant beyond [requests/s].
    mean_load : float
        Mean number present; above 0.

    Returns
    -------
    ServiceLine
        Slope of :math:`l / \mu(l)` from the mean load, at least 1, to one more, and the line that
        meets it there; where it is steeper than proportional (KV space is short, so that one more
        waits for all), the base is 0 at the least.

    Raises
    ------
    SpecError
        If the load or a rate is not above 0.
    """
    rate = np.atleast_1d(np.asarray(completion_rate_rps, dtype=float))
    if not (mean_load > 0 and np.all(rate > 0)):
        raise SpecError(f"mean_load = {mean_load} and completion rates: above 0 is needed")
    sojourns = np.arange(1.0, rate.size + 1.0) / rate

    def sojourn(at: float) -> float:
        if at >= rate.size:
            return at / float(rate[-1])
        return float(np.interp(at, np.arange(1.0, rate.size + 1.0), sojourns))

    at = max(mean_load, 1.0)
    slope = sojourn(at + 1.0) - sojourn(at)
    base = max(sojourn(at) - slope * at, 0.0)
    return ServiceLine(base, slope, mean_load)


def least_load_quantile(load_probability: ArrayLike, instances: int) -> float:
    """Return the load that one of N instances is below on average: the 1/N quantile of its law.

    Parameters
    ----------
    load_probability : array_like of float, shape (b,)
        P(0, 1, … present); normalised here.
    instances : int
        N.

    Returns
    -------
    float
        Interpolated between whole loads, 0 at the least.
    """
    p = np.asarray(load_probability, dtype=float)
    below = np.concatenate(([0.0], np.cumsum(p / p.sum())))
    # P(load < l) = 1/N, loads taken as intervals [l, l + 1)
    level = float(np.interp(1.0 / instances, below, np.arange(below.size)))
    return max(level - 0.5, 0.0)


def overload_optimum(
    move_cost_s: ArrayLike,
    saving_s: ArrayLike,
    receiver_load: ArrayLike,
    mean_load: ArrayLike,
    least: float = LEAST_OVERLOAD,
) -> Any:
    """Return OVERLOAD*; arguments broadcast.

    Parameters
    ----------
    move_cost_s : array_like of float
        D: what a move costs [request-seconds].
    saving_s : array_like of float
        What it saves for each request fewer (:meth:`ServiceLine.saving_s`,
        :attr:`ServiceLine.own_saving_s`).
    receiver_load : array_like of float
        l_r: mean load that free requests join.
    mean_load : array_like of float
        Mean load of an instance.
    least : float, default 1.25
        The optimum is not set below this.

    Returns
    -------
    float or ndarray
        ``inf`` where nothing is saved, NaN outside the domain (a cost below 0, a mean load of 0).
    """
    cost, saving, receiver, mean = (
        np.asarray(value, dtype=float)
        for value in (move_cost_s, saving_s, receiver_load, mean_load)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        pays = np.where(saving > 0, receiver + cost / saving, np.inf)
        result = np.maximum(pays / mean, least)
    result = np.where((cost >= 0) & (saving >= 0) & (receiver >= 0) & (mean > 0), result, np.nan)
    return result if result.ndim else float(result)


def hit_ratio_optimum(
    move_cost_s: ArrayLike,
    saving_s: ArrayLike,
    receiver_load: ArrayLike,
    home_load: ArrayLike,
    least: ArrayLike = 0.0,
) -> Any:
    """Return HIT_RATIO*; arguments broadcast.

    Parameters
    ----------
    move_cost_s, saving_s, receiver_load
        As of :func:`overload_optimum`.
    home_load : array_like of float
        l_h: mean home load of the follow-ups that OVERLOAD lets stay.
    least : array_like of float, default 0
        Drift of the expected hit, below which HIT_RATIO must stay: 1 less the drift caps it.

    Returns
    -------
    float or ndarray
        In [0, 1 - least]; NaN outside the domain.  Where moves cost nothing, the upper end.
    """
    cost, saving, receiver, home, drift = (
        np.asarray(value, dtype=float)
        for value in (move_cost_s, saving_s, receiver_load, home_load, least)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = saving * np.maximum(home - receiver, 0.0)
        result = np.where(cost > 0, gain / cost, np.where(gain > 0, np.inf, 0.0))
    result = np.clip(result, 0.0, 1.0 - drift)
    result = np.where((cost >= 0) & (saving >= 0) & (receiver >= 0) & (home >= 0), result, np.nan)
    return result if result.ndim else float(result)


def matching_hit_weight(
    overload: ArrayLike,
    home_hit_ratio: ArrayLike,
    receiver_load: ArrayLike,
    mean_load: ArrayLike,
    scale_load: ArrayLike | None = None,
) -> Any:
    r"""Return Bailian's ``hit_weight`` that lets go at the same home load as an OVERLOAD.

    A follow-up stays while :math:`\hat l_h \le \hat l_r + w/(1-w)\,\Delta \hat c`, loads over their
    scale; at ``l_h = OVERLOAD · mean`` that is an equality for

    .. math:: \frac{w}{1-w} = \frac{\mathrm{OVERLOAD}\,\bar l - l_r}{\Delta\hat c\ \mathrm{scale}}.

    Parameters
    ----------
    overload : array_like of float
        At least 0; ``inf``: never let go.
    home_hit_ratio : array_like of float
        Δĉ: share of its prompt that a follow-up hits at home, less what it would hit elsewhere.
    receiver_load, mean_load : array_like of float
        Least load of the others, and the mean load.
    scale_load : array_like of float, optional
        What Bailian divides loads by; the mean load by default (``load_normalisation = "mean"``),
        else the largest load, or largest less least.

    Returns
    -------
    float or ndarray
        In [0, 1]; NaN where nothing is hit at home (no weight matters).
    """
    over, hit, receiver, mean = (
        np.asarray(value, dtype=float)
        for value in (overload, home_hit_ratio, receiver_load, mean_load)
    )
    scale = mean if scale_load is None else np.asarray(scale_load, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.maximum(over * mean - receiver, 0.0) / (hit * scale)
        result = np.where(np.isinf(odds), 1.0, odds / (1.0 + odds))
    result = np.where((hit > 0) & (mean > 0) & (over >= 0), result, np.nan)
    return result if result.ndim else float(result)


def matching_overload(
    hit_weight: ArrayLike,
    home_hit_ratio: ArrayLike,
    receiver_load: ArrayLike,
    mean_load: ArrayLike,
    scale_load: ArrayLike | None = None,
) -> Any:
    """Return the OVERLOAD that lets go at the same home load as a ``hit_weight``: the inverse.

    Parameters
    ----------
    hit_weight : array_like of float
        In [0, 1]; 1: ``inf``.
    home_hit_ratio, receiver_load, mean_load, scale_load
        As of :func:`matching_hit_weight`.

    Returns
    -------
    float or ndarray
    """
    weight, hit, receiver, mean = (
        np.asarray(value, dtype=float)
        for value in (hit_weight, home_hit_ratio, receiver_load, mean_load)
    )
    scale = mean if scale_load is None else np.asarray(scale_load, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        limit = receiver + weight / (1.0 - weight) * hit * scale
        result = np.where(weight == 1.0, np.inf, limit / mean)
    result = np.where((weight >= 0) & (weight <= 1) & (hit > 0) & (mean > 0), result, np.nan)
    return result if result.ndim else float(result)


def recompute_delay_s(work_s: ArrayLike, rate_rps: float, service_slope_rps: float) -> Any:
    r"""Return what recomputation delays the other requests, all together.

    Parameters
    ----------
    work_s : array_like of float
        Engine time of the recomputation, Δ [s].
    rate_rps : float
        Arrivals at an instance, λ [requests/s].
    service_slope_rps : float
        µ': completions per second for one request more, by regression over the load law; above 0.

    Returns
    -------
    float or ndarray
        :math:`Δ\,λ/µ'` [request-seconds]: while the engine recomputes, Δλ requests are not
        completed, and excess is worked off at µ'.  Under Poisson arrivals it is Δ·Var l.

    Raises
    ------
    SpecError
        If the slope is not above 0.
    """
    if not service_slope_rps > 0:
        raise SpecError(f"service_slope_rps = {service_slope_rps}: above 0 is needed")
    result = np.asarray(work_s, dtype=float) * (rate_rps / service_slope_rps)
    return result if result.ndim else float(result)


def persistence_s(drift_per_s: ArrayLike, covariance: ArrayLike) -> float:
    r"""Return for how long a load difference and a request moved across it count together.

    Parameters
    ----------
    drift_per_s : array_like of float, shape (k, k)
        Linear drift A of an instance's deviations, the load last; stable [1/s].
    covariance : array_like of float, shape (k, k)
        Their stationary covariance Σ.

    Returns
    -------
    float
        :math:`I = \int_0^\infty ρ(t)\,(e^{At})_{ll}\,dt` with
        :math:`ρ(t) = (e^{At} Σ)_{ll}/Σ_{ll}` [s].

    Raises
    ------
    SpecError
        If the load does not vary.
    """
    from scipy.linalg import solve_continuous_lyapunov

    drift, spread = np.asarray(drift_per_s, float), np.asarray(covariance, float)
    if not spread[-1, -1] > 0:
        raise SpecError(f"variance of the load = {spread[-1, -1]}: above 0 is needed")
    joins = np.zeros(drift.shape[0])
    joins[-1] = 1.0
    source = np.outer(joins, spread[:, -1] / spread[-1, -1])
    return float(solve_continuous_lyapunov(drift, -source)[-1, -1])


def transfer_time_s(alone_s: ArrayLike, utilisation: ArrayLike, streams: int = 1) -> Any:
    r"""Return how long a transfer takes on links that all share, by Erlang's C.

    Parameters
    ----------
    alone_s : array_like of float
        x: duration on idle links [s].
    utilisation : array_like of float
        ρ of the links, below 1.
    streams : int, default 1
        c: transfers that run at full speed side by side.

    Returns
    -------
    float or ndarray
        :math:`x\,(1 + C(c, cρ)/(c(1-ρ)))`, for one stream :math:`x/(1-ρ)`; ``inf`` from ρ = 1 on.
    """
    x, rho = np.asarray(alone_s, dtype=float), np.asarray(utilisation, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        stretch = 1.0 + _erlang_c(streams, rho) / (streams * (1.0 - rho))
        result = np.where(rho < 1, x * stretch, np.where(x > 0, np.inf, 0.0))
    return result if result.ndim else float(result)


def shared_link_delay_s(alone_s: ArrayLike, utilisation: ArrayLike, streams: int = 1) -> Any:
    r"""Return what a transfer delays the others on links that all share equally.

    Links of c streams at utilisation ρ hold :math:`N(ρ) = cρ + C(c, cρ)\,ρ/(1-ρ)` transfers.  One
    more of duration x adds :math:`x\,N'(ρ)/c` transfer-seconds; what is not its own is others'.
    For one stream that is :math:`x ρ/(1-ρ)^2`.

    Parameters
    ----------
    alone_s : array_like of float
        x: duration on idle links [s].
    utilisation : array_like of float
        ρ of the links, below 1.
    streams : int, default 1
        c: transfers that run at full speed side by side.

    Returns
    -------
    float or ndarray
        Transfer-seconds; ``inf`` from ρ = 1 on.
    """
    x, rho = np.asarray(alone_s, dtype=float), np.asarray(utilisation, dtype=float)
    step = 1e-4 * np.maximum(1.0 - rho, 0.0)

    def number(load: Any) -> Any:
        return streams * load + _erlang_c(streams, load) * load / (1.0 - load)

    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (number(rho + step) - number(rho - step)) / (2 * step * streams)
        others = np.maximum(x * slope - np.asarray(transfer_time_s(x, rho, streams)), 0.0)
        result = np.where(rho < 1, others, np.where(x > 0, np.inf, 0.0))
    return result if result.ndim else float(result)


def _erlang_c(streams: int, utilisation: Any) -> Any:
    """Probability that a transfer finds all streams taken (Erlang's C)."""
    offered = streams * utilisation
    blocked = np.ones_like(np.asarray(utilisation, dtype=float))
    for count in range(1, streams + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1.0 - utilisation * (1.0 - blocked))
