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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from smetric_model.analytic.stickiness import Stickiness
from smetric_model.errors import SpecError
from smetric_model.schema import imbalance_column

__all__ = [
    "Imbalance",
    "Quantity",
    "RequestWeights",
    "imbalance",
    "imbalance_columns",
    "largest_over_mean",
]

FloatArray = NDArray[np.float64]
Quantity = Literal["processed_tokens", "inflight_tokens", "unprefilled_tokens", "requests"]

_PULSES = 16  # lengths of prefills told apart
_LEVELS = {"median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}
_POINTS, _POINT_WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class RequestWeights:
    """How unequal the amounts are that requests add to a quantity.

    Parameters
    ----------
    squared_variation : float
        Variance ÷ squared mean over requests; for what is in flight, over the requests found in
        flight at a time (long ones count more).
    session_ratio : float
        Share of that variance that is between sessions, the rest being between turns of one.
    duration_s : float, optional
        Mean time for which a request adds to the quantity [s]; the whole time at its instance by
        default.
    engine_ratio : float
        ρ: share of the time in which the engine prefills them, beside decode.
    engine_variation, engine_covariation : float
        Of the prefill times: variance ÷ squared mean, and covariance with the amounts ÷ means.
    pulses : tuple of (float, float, float)
        Prefills by length: their length [s], and what they add to the mean square of the amounts,
        crossed with what is reused, and by themselves, ÷ that mean square.
    """

    squared_variation: float
    session_ratio: float = 1.0
    duration_s: float | None = None
    engine_ratio: float = 0.0
    engine_variation: float = 0.0
    engine_covariation: float = 0.0
    pulses: tuple[tuple[float, float, float], ...] = ()

    def __post_init__(self) -> None:
        if not (self.squared_variation >= 0 and np.isfinite(self.squared_variation)):
            raise SpecError(
                f"weights: squared_variation = {self.squared_variation}; a finite number >= 0"
                " is needed"
            )
        if not 0 <= self.session_ratio <= 1:
            raise SpecError(f"weights: session_ratio = {self.session_ratio}; it lies in [0, 1]")

    @classmethod
    def of(
        cls,
        tokens: ArrayLike,
        session: ArrayLike | None = None,
        present_s: ArrayLike | None = None,
        duration_s: float | None = None,
    ) -> RequestWeights:
        """Return the weights of a sample of requests.

        Parameters
        ----------
        tokens : array_like of float, shape (n,)
            What each adds [tokens].
        session : array_like of int, shape (n,), optional
            Session of each; without it all variance counts as between sessions.
        present_s : array_like of float, shape (n,), optional
            How long each is present [s], to weigh the sample as it is found in flight.
        duration_s : float, optional
            See the class.
        """
        amount = np.asarray(tokens, dtype=float)
        share = np.ones(amount.size) if present_s is None else np.asarray(present_s, dtype=float)
        share = share / share.sum()
        mean = float(share @ amount)
        variance = float(share @ (amount - mean) ** 2)
        if variance <= 1e-20 * mean * mean:
            return cls(0.0, 1.0, duration_s)
        ratio = 1.0
        if session is not None:
            index = np.asarray(session)
            if index.min() < 0 or index.max() > 4 * index.size:
                _, index = np.unique(index, return_inverse=True)
            total = np.bincount(index, share)
            centre = np.bincount(index, share * amount) / np.maximum(total, 1e-300)
            ratio = float(total @ (centre - mean) ** 2) / variance
        return cls(variance / mean**2, min(ratio, 1.0), duration_s)

    def of_engine(
        self, tokens: ArrayLike, computed: ArrayLike, prefill_s: ArrayLike, engine_ratio: float
    ) -> RequestWeights:
        """Return the weights of what engines process: computed as prefills last, the rest at once.

        Parameters
        ----------
        tokens, computed : array_like of float, shape (n,)
            What each request adds, and how much of it is computed [tokens].
        prefill_s : array_like of float, shape (n,)
            How long each prefill lasts [s].
        engine_ratio : float
            Share of the time that prefills take beside decode.
        """
        amount, work = np.asarray(tokens, dtype=float), np.asarray(prefill_s, dtype=float)
        own = np.asarray(computed, dtype=float)
        square = float(np.mean(amount**2))
        groups = np.array_split(np.argsort(work, kind="stable"), min(_PULSES, work.size))
        pulses = tuple(
            (
                float(work[rows].mean()),
                2 * float(((amount - own) * own)[rows].sum()) / work.size / square,
                float((own[rows] ** 2).sum()) / work.size / square,
            )
            for rows in groups
        )
        amount, work = amount / amount.mean() - 1.0, work / work.mean() - 1.0
        return replace(
            self,
            engine_ratio=engine_ratio,
            engine_variation=float(np.mean(work * work)),
            engine_covariation=float(np.mean(amount * work)),
            pulses=pulses,
        )

    def seen_ratio(self, window_s: float) -> float:
        """Return the share of the amounts' mean square that a window sees at once.

        Parameters
        ----------
        window_s : float
            T [s].
        """
        lost = 0.0
        for length, crossed, own in self.pulses:
            y = length / window_s
            lost += crossed * (0.5 * y if y < 1 else 1 - 0.5 / y)
            lost += own * (y / 3 if y < 1 else 1 - (1 - 1 / (3 * y)) / y)
        return 1.0 - lost

    def variation_beside(self, share: float) -> float:
        """Return the squared variation of ``x - share E[x] w/E[w]``.

        Parameters
        ----------
        share : float
            Of the engine's time.
        """
        left = self.squared_variation - 2 * share * self.engine_covariation
        return max(left + share**2 * self.engine_variation, 0.0)


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
    if quantity == "requests" or weights is None:
        weights = RequestWeights(0.0, duration_s=weights.duration_s if weights else None)
    cluster = solved.cluster
    rate, share, seen = cluster.rate_per_instance_rps, 0.0, 1.0
    if quantity in ("processed_tokens", "unprefilled_tokens"):
        counts = _count_variance(solved, window_s) / (rate * window_s) ** 2
        share = _replaced(solved) * weights.engine_ratio
        seen = weights.seen_ratio(window_s)
        counts *= (1.0 - share) ** 2 * seen
        again = _served_again(solved, window_s)
        each = 1 / (rate * window_s)
        if quantity == "unprefilled_tokens" and weights.duration_s:
            # a request's area is spread over its duration
            ratio = window_s / weights.duration_s
            each *= 1 + np.expm1(-ratio) / ratio
        spread = each * (1 + weights.session_ratio * (again - 1))
    elif quantity in ("inflight_tokens", "requests"):
        counts = _mean_load_variance(solved, window_s) / solved.mean_load**2
        own, again = _present_again(solved, window_s)
        spread = (own + weights.session_ratio * (again - own)) / solved.mean_load
    else:
        raise SpecError(
            f"quantity {quantity!r}: one of processed_tokens, inflight_tokens,"
            " unprefilled_tokens, requests"
        )
    by_weight = weights.variation_beside(share) * seen * float(spread)
    lasting = lasting_squared_variation
    if lasting is None:
        served = quantity in ("processed_tokens", "unprefilled_tokens")
        lasting = solved.lasting_rate_variation if served else solved.lasting_load_variation
    total = float(counts + by_weight + lasting)
    return Imbalance(cluster.instances, total, float(counts), by_weight, lasting)


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
    quantities: tuple[Quantity, ...] = (
        "processed_tokens",
        "inflight_tokens",
        "unprefilled_tokens",
        "requests",
    )
    asked = [
        (quantity, window_s)
        for quantity in quantities
        if quantity in weights or quantity == "requests"
        for window_s in windows_s
    ]
    spreads = np.array(
        [
            imbalance(
                solved, quantity, window_s, weights.get(quantity), lasting_squared_variation
            ).squared_variation
            for quantity, window_s in asked
        ]
    )
    instances = solved.cluster.instances
    means = _largest_over_mean(spreads, instances)
    counts = [max(int(observed_s / window_s), 1) for _, window_s in asked]
    levels = np.array([[*_LEVELS.values(), _of_largest(count)] for count in counts])
    values = np.column_stack((means, _quantiles(spreads, means, levels, instances)))
    return {
        imbalance_column(quantity, window_s, name): float(value)
        for (quantity, window_s), row in zip(asked, values, strict=True)
        for name, value in zip(("mean", *_LEVELS, "max"), row, strict=True)
    }


def _replaced(solved: Stickiness) -> float:
    """θ: of a request that completes, how much another replaces at once."""
    if solved.rule.kind not in ("never", "blind"):
        return 0.0
    service = solved.noise.service_slope
    back = -float(solved.noise.drift[-1, -1])
    return min(max(1.0 - service / back, 0.0), 1.0) if back > 0 else 0.0


def _window_integral(matrix: FloatArray, window_s: float) -> FloatArray:
    r"""∫_0^T (T - u) exp(A u) du, by eigenvalues."""
    return _integral_of(matrix.tobytes(), matrix.shape[0], window_s)


@lru_cache(maxsize=64)
def _integral_of(content: bytes, size: int, window_s: float) -> FloatArray:
    """Work it out once for the quantities that need it."""
    values, vectors, inverse = _eigen(content, size)
    x = values * window_s
    small = np.abs(x) < 1e-4
    safe = np.where(small, 1.0, values)
    inside = np.where(small, 0.5 * window_s**2 * (1 + x / 3), (np.expm1(x) - x) / safe**2)
    return np.asarray(np.real((vectors * inside) @ inverse))


@lru_cache(maxsize=16)
def _eigen(
    content: bytes, size: int
) -> tuple[NDArray[np.complex128], NDArray[np.complex128], NDArray[np.complex128]]:
    values, vectors = np.linalg.eig(np.frombuffer(content).reshape(size, size))
    return values, vectors, np.linalg.inv(vectors)


def _count_variance(solved: Stickiness, window_s: float) -> float:
    r"""Variance of the completions of an instance in a window.

    ``Var C = λT + 2 ∫ (T-u) h(u) du``, ``h(u) = µ'e' exp(Au)(Σ e µ' + (λ(1-q)α, -λ))``: a
    completion tells of the load before it, sends a session thinking and leaves one less.
    """
    noise, cluster = solved.noise, solved.cluster
    rate, follow = cluster.rate_per_instance_rps, cluster.turns.follow_up_ratio
    size = noise.drift.shape[0]
    jump = np.append(rate * follow * cluster.think_time.weights, -rate)
    if solved.rule.kind in ("never", "blind"):
        jump[:-1] = 0.0  # sessions that leave do not come back here
    start = noise.covariance[:, size - 1] * noise.service_slope + jump
    drift = noise.drift
    later = _window_integral(drift, window_s)[size - 1] @ start
    variance = rate * window_s + 2 * noise.service_slope * float(later)
    return max(variance, 0.02 * rate * window_s)


def _mean_load_variance(solved: Stickiness, window_s: float) -> float:
    """Variance of an instance's load averaged over a window."""
    noise = solved.noise
    size = noise.drift.shape[0]
    correlated = _window_integral(noise.drift, window_s)[size - 1] @ noise.covariance[:, size - 1]
    scale = solved.load_variance / max(float(noise.covariance[-1, -1]), 1e-300)
    return max(2 * float(correlated) * scale / window_s**2, 0.0)


def _session_cycle(solved: Stickiness) -> FloatArray:
    """Return the generator of one session at one instance: thinking classes, then present."""
    cluster = solved.cluster
    think = cluster.think_time
    back = cluster.turns.follow_up_ratio * max(solved.return_to_previous_ratio, 0.0)
    if not np.isfinite(back):
        back = 0.0
    size = think.weights.size
    leave = 1 / max(solved.sojourn_s, 1e-12)
    matrix = np.zeros((size + 1, size + 1))
    matrix[:size, :size] = -np.diag(think.rates_per_s)
    matrix[size, :size] = think.rates_per_s
    matrix[size, size] = -leave
    matrix[:size, size] = back * leave * think.weights
    return matrix


def _served_again(solved: Stickiness, window_s: float) -> float:
    """χ: mean number of turns of a request's session in its window here, itself included."""
    matrix = _session_cycle(solved)
    start = matrix[:, -1].copy()
    start[-1] = 0.0  # just completed: thinking, if it comes back
    leave = -matrix[-1, -1]
    rate = start / leave
    density = _window_integral(matrix, window_s)[-1] @ rate * leave
    return 1 + 2 * float(density) / window_s


def _present_again(solved: Stickiness, window_s: float) -> tuple[float, float]:
    """Correlation over a window of a request's presence with itself, and with its session's."""
    matrix = _session_cycle(solved)
    again = 2 * float(_window_integral(matrix, window_s)[-1, -1]) / window_s**2
    alone = 2 * float(_window_integral(matrix[-1:, -1:], window_s)[0, 0]) / window_s**2
    return alone, again
