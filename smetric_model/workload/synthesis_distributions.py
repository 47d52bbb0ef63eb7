"""Distributions of the generator's parameters: few, with names a reader can picture.

All draw by a fixed number of random numbers a value, so that the first values of a stream do not
depend on how many are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from smetric_model.errors import SpecError

__all__ = [
    "Constant",
    "Distribution",
    "LogNormal",
    "Mixture",
    "Quantiles",
    "Uniform",
    "distribution_from",
    "distribution_to",
    "mean_of",
    "mean_of_counts",
    "quantile_of",
    "scaled",
]

FloatArray: TypeAlias = npt.NDArray[np.float64]

#: Points at which a quantile function is averaged.
_GRID = 20_000
#: A log-normal narrower than this is a point.
_POINT_LIKE = 1e-9


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(message)


def _finite(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpecError(f"{name} = {value!r}: a finite number is needed")
    return float(value)


@dataclass(frozen=True)
class Constant:
    """Always the same value.

    Attributes
    ----------
    value : float
        At least 0.
    """

    value: float

    def __post_init__(self) -> None:
        _need(_finite(self.value, "value") >= 0, f"value = {self.value}: at least 0 is needed")

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw ``count`` values, shape (count,)."""
        return np.full(count, float(self.value))

    def quantile(self, share: npt.ArrayLike) -> FloatArray:
        """Value below which ``share`` of the mass lies; same shape."""
        return np.full(np.shape(share), float(self.value))

    def below(self, value: npt.ArrayLike) -> FloatArray:
        """Mass at or below each value; same shape."""
        return (np.asarray(value) >= self.value).astype(np.float64)


@dataclass(frozen=True)
class Uniform:
    """Evenly spread.

    Attributes
    ----------
    low, high : float
        Ends; 0 ≤ low < high.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = _finite(self.low, "low"), _finite(self.high, "high")
        _need(0 <= low < high, f"low = {low}, high = {high}: 0 <= low < high is needed")

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw ``count`` values, shape (count,)."""
        return self.quantile(rng.random(count))

    def quantile(self, share: npt.ArrayLike) -> FloatArray:
        """Value below which ``share`` of the mass lies; same shape."""
        result: FloatArray = self.low + (self.high - self.low) * np.asarray(share, np.float64)
        return result

    def below(self, value: npt.ArrayLike) -> FloatArray:
        """Mass at or below each value; same shape."""
        offset = np.asarray(value, np.float64) - self.low
        result: FloatArray = np.clip(offset / (self.high - self.low), 0.0, 1.0)
        return result


@dataclass(frozen=True)
class LogNormal:
    """Log-normal, values beyond the ends set to the ends.

    Attributes
    ----------
    median : float
        Median, before the ends; above 0.
    sigma : float
        Standard deviation of the logarithm, at least 0: 1 means that one value in six is more than
        2.7 times the median.
    low, high : float
        Ends; 0 ≤ low < high.
    """

    median: float
    sigma: float
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        _need(_finite(self.median, "median") > 0, f"median = {self.median}: above 0 is needed")
        _need(_finite(self.sigma, "sigma") >= 0, f"sigma = {self.sigma}: at least 0 is needed")
        _need(
            0 <= self.low < self.high,
            f"low = {self.low}, high = {self.high}: 0 <= low < high is needed",
        )

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw ``count`` values, shape (count,)."""
        return self._of(rng.standard_normal(count))

    def _of(self, normal: FloatArray) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            spread = (
                np.exp(self.sigma * normal) if self.sigma > _POINT_LIKE else np.ones_like(normal)
            )
        result: FloatArray = np.clip(self.median * spread, self.low, self.high)
        return result

    def quantile(self, share: npt.ArrayLike) -> FloatArray:
        """Value below which ``share`` of the mass lies; same shape."""
        from scipy.special import ndtri

        return self._of(np.asarray(ndtri(np.asarray(share, np.float64))))

    def below(self, value: npt.ArrayLike) -> FloatArray:
        """Mass at or below each value; same shape."""
        from scipy.special import ndtr

        at = np.asarray(value, np.float64)
        with np.errstate(divide="ignore"):
            logarithm = np.log(np.maximum(at, 0.0)) - math.log(self.median)
        inside = (
            np.asarray(ndtr(logarithm / self.sigma))
            if self.sigma > _POINT_LIKE
            else (logarithm >= 0).astype(np.float64)
        )
        result: FloatArray = np.where(at < self.low, 0.0, np.where(at >= self.high, 1.0, inside))
        return result


@dataclass(frozen=True)
class Quantiles:
    """Given by some of its quantiles, even between them (on a logarithmic scale where possible).

    Attributes
    ----------
    points : tuple of (float, float)
        Share of the mass and value, both growing; the first share is 0, the last 1.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        shares = [_finite(share, "a share of quantiles") for share, _ in self.points]
        values = [_finite(value, "a value of quantiles") for _, value in self.points]
        _need(len(shares) >= 2, f"quantiles holds {len(shares)} points: at least 2 are needed")
        _need(
            shares[0] == 0 and shares[-1] == 1 and all(np.diff(shares) > 0),
            f"shares of quantiles are {shares}: growing from 0 to 1 is needed",
        )
        _need(
            values[0] >= 0 and all(np.diff(values) >= 0),
            f"values of quantiles are {values}: growing, at least 0 is needed",
        )

    def _log(self) -> bool:
        return self.points[0][1] > 0

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw ``count`` values, shape (count,)."""
        return self.quantile(rng.random(count))

    def quantile(self, share: npt.ArrayLike) -> FloatArray:
        """Value below which ``share`` of the mass lies; same shape."""
        shares, values = np.array(self.points, np.float64).T
        at = np.asarray(share, np.float64)
        if self._log():
            result: FloatArray = np.exp(np.interp(at, shares, np.log(values)))
            return result
        straight: FloatArray = np.interp(at, shares, values)
        return straight

    def below(self, value: npt.ArrayLike) -> FloatArray:
        """Mass at or below each value; same shape."""
        shares, values = np.array(self.points, np.float64).T
        at = np.asarray(value, np.float64)
        # several shares at one value are an atom: the highest counts
        last = np.append(np.diff(values) > 0, True)
        if self._log():
            at, values = np.log(np.maximum(at, 1e-300)), np.log(values)
        upper = np.interp(at, values[last], shares[last])
        exact = np.isin(at, values)
        inside = np.where(exact, upper, _between(at, values, shares))
        result: FloatArray = np.where(at < values[0], 0.0, np.where(at >= values[-1], 1.0, inside))
        return result


def _between(at: FloatArray, values: FloatArray, shares: FloatArray) -> FloatArray:
    """Interpolate from the highest share of the value below to the lowest share of that above."""
    above = np.clip(np.searchsorted(values, at, side="right"), 1, values.size - 1)
    width = values[above] - values[above - 1]
    part = np.where(width > 0, (at - values[above - 1]) / np.where(width > 0, width, 1.0), 0.0)
    result: FloatArray = shares[above - 1] + part * (shares[above] - shares[above - 1])
    return result


@dataclass(frozen=True)
class Mixture:
    """One of several distributions, each with a weight.

    Attributes
    ----------
    weights : tuple of float
        Weights, above 0; they are divided by their sum.
    parts : tuple of Distribution
        The distributions, none of them a mixture.
    """

    weights: tuple[float, ...]
    parts: tuple[Constant | Uniform | LogNormal | Quantiles, ...]

    def __post_init__(self) -> None:
        _need(len(self.parts) >= 1, "mixture holds no part: at least 1 is needed")
        _need(
            len(self.weights) == len(self.parts),
            f"mixture holds {len(self.weights)} weights and {len(self.parts)} parts",
        )
        for weight in self.weights:
            _need(_finite(weight, "weight") > 0, f"weight = {weight}: above 0 is needed")

    def _shares(self) -> FloatArray:
        weights = np.array(self.weights, np.float64)
        result: FloatArray = weights / weights.sum()
        return result

    def draw(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw ``count`` values, shape (count,)."""
        # choice and value of one draw lie side by side, so that the first draws of a stream do not
        # depend on how many follow
        uniform = rng.random((count, 2))
        choice = np.searchsorted(np.cumsum(self._shares())[:-1], uniform[:, 0], side="right")
        result = np.empty(count)
        for index, part in enumerate(self.parts):
            chosen = choice == index
            result[chosen] = part.quantile(uniform[chosen, 1])
        return result

    def quantile(self, share: npt.ArrayLike) -> FloatArray:
        """Value below which ``share`` of the mass lies; same shape."""
        wanted = np.asarray(share, np.float64)
        ends = np.stack([part.quantile(wanted) for part in self.parts])
        low, high = ends.min(axis=0), ends.max(axis=0)
        for _ in range(60):
            middle = (low + high) / 2
            short = self.below(middle) < wanted
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        result: FloatArray = high
        return result

    def below(self, value: npt.ArrayLike) -> FloatArray:
        """Mass at or below each value; same shape."""
        parts = np.stack([part.below(value) for part in self.parts])
        result: FloatArray = np.tensordot(self._shares(), parts, axes=1)
        return result


Distribution: TypeAlias = Constant | Uniform | LogNormal | Quantiles | Mixture


def quantile_of(distribution: Distribution, share: float) -> float:
    """Quantile of a distribution as a number.

    Parameters
    ----------
    distribution : Distribution
    share : float
        In (0, 1).

    Returns
    -------
    float
    """
    return float(distribution.quantile(np.array([share]))[0])


def mean_of(distribution: Distribution) -> float:
    """Mean of a distribution, numerically.

    Parameters
    ----------
    distribution : Distribution

    Returns
    -------
    float
        Average of the quantile function at 20,000 mid-points; closed where it is simple.
    """
    if isinstance(distribution, Constant):
        return float(distribution.value)
    if isinstance(distribution, Uniform):
        return (distribution.low + distribution.high) / 2
    if isinstance(distribution, Mixture):
        weights = np.array(distribution.weights)
        return float(weights @ [mean_of(part) for part in distribution.parts] / weights.sum())
    return float(distribution.quantile((np.arange(_GRID) + 0.5) / _GRID).mean())


def mean_of_counts(distribution: Distribution) -> float:
    """Mean of a distribution whose draws are rounded to whole numbers of at least 1.

    Parameters
    ----------
    distribution : Distribution
        With a finite upper end.

    Returns
    -------
    float
        Σ over n ≥ 1 of P(count ≥ n), with P(count ≥ 1) = 1.
    """
    top = math.ceil(quantile_of(distribution, 1.0))
    _need(top <= 10_000_000, f"a count may reach {top}: set high to at most 10,000,000")
    return 1.0 + float((1.0 - distribution.below(np.arange(2, top + 2) - 0.5)).sum())


def scaled(distribution: Distribution, factor: float) -> Distribution:
    """Distribution of ``factor`` times the value, ends included.

    Parameters
    ----------
    distribution : Distribution
    factor : float
        Above 0.

    Returns
    -------
    Distribution
    """
    _need(_finite(factor, "factor") > 0, f"factor = {factor}: above 0 is needed")
    if isinstance(distribution, Constant):
        return Constant(distribution.value * factor)
    if isinstance(distribution, Uniform):
        return Uniform(distribution.low * factor, distribution.high * factor)
    if isinstance(distribution, LogNormal):
        return LogNormal(
            distribution.median * factor,
            distribution.sigma,
            distribution.low * factor,
            distribution.high * factor,
        )
    if isinstance(distribution, Quantiles):
        return Quantiles(tuple((share, value * factor) for share, value in distribution.points))
    parts: list[Any] = [scaled(part, factor) for part in distribution.parts]
    return Mixture(distribution.weights, tuple(parts))


def distribution_from(value: Any, where: str) -> Distribution:
    """Distribution as it stands in a TOML file.

    Parameters
    ----------
    value : number, dict or list
        A number (constant); ``{low, high}`` (uniform); ``{median, sigma}``, with ``low`` and
        ``high`` if wanted (log-normal); ``{quantiles = [[share, value], …]}``; a list of any of
        these with a ``weight`` each (mixture).
    where : str
        Dotted key, for messages.

    Returns
    -------
    Distribution

    Raises
    ------
    SpecError
        If it is none of these, or a value is not allowed.
    """
    try:
        if isinstance(value, list):
            _need(bool(value), "an empty list: at least 1 part is needed")
            weights, parts = [], []
            for part in value:
                if not isinstance(part, dict) or "weight" not in part:
                    raise SpecError(f"{part!r}: each part of a mixture is a table with a weight")
                weights.append(_finite(part["weight"], "weight"))
                rest = {key: item for key, item in part.items() if key != "weight"}
                parts.append(_simple(rest))
            return Mixture(tuple(weights), tuple(parts))
        return _simple(value)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _simple(value: Any) -> Constant | Uniform | LogNormal | Quantiles:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Constant(float(value))
    if isinstance(value, dict):
        keys = set(value)
        if keys == {"value"}:
            return Constant(_finite(value["value"], "value"))
        if keys == {"low", "high"}:
            return Uniform(_finite(value["low"], "low"), _finite(value["high"], "high"))
        if {"median", "sigma"} <= keys <= {"median", "sigma", "low", "high"}:
            return LogNormal(**{key: float(_number(item, key)) for key, item in value.items()})
        if keys == {"quantiles"}:
            return Quantiles(_points(value["quantiles"]))
    raise SpecError(
        f"{value!r}: a number, {{low, high}}, {{median, sigma[, low, high]}}, "
        "{quantiles = [[share, value], ...]} or a list of them with weights is needed"
    )


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise SpecError(f"{name} = {value!r}: a number is needed")
    return float(value)


def _points(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or any(
        not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2
        for point in value
    ):
        raise SpecError("quantiles is not a list of pairs [share, value]")
    return tuple((_number(share, "share"), _number(item, "value")) for share, item in value)


def distribution_to(distribution: Distribution) -> Any:
    """Write a distribution as :func:`distribution_from` reads it.

    Parameters
    ----------
    distribution : Distribution

    Returns
    -------
    float, dict or list
    """
    if isinstance(distribution, Constant):
        return distribution.value
    if isinstance(distribution, Uniform):
        return {"low": distribution.low, "high": distribution.high}
    if isinstance(distribution, LogNormal):
        table = {"median": distribution.median, "sigma": distribution.sigma}
        if distribution.low > 0:
            table["low"] = distribution.low
        if math.isfinite(distribution.high):
            table["high"] = distribution.high
        return table
    if isinstance(distribution, Quantiles):
        return {"quantiles": [list(point) for point in distribution.points]}
    return [
        {"weight": weight} | _as_table(part)
        for weight, part in zip(distribution.weights, distribution.parts, strict=True)
    ]


def _as_table(part: Distribution) -> dict[str, Any]:
    written = distribution_to(part)
    return written if isinstance(written, dict) else {"value": written}
