"""Compiled incomplete gamma and beta functions, for kernels that cannot call a library's."""

from __future__ import annotations

import math
from typing import Any

from numba import njit

__all__ = ["beta_ratio", "gamma_ratio"]

_HALF_LOG_2PI = 0.9189385332046727
_NOTHING = 1e-18  # densities below this leave 0 or 1
_EXACT = 1e-16
_MOST = 20_000  # terms


@njit(cache=True, error_model="numpy")
def _remainder(x: float) -> Any:
    """Return log Γ(x + 1) less Stirling's (x + 1/2) log x - x + log(2π)/2, x > 0."""
    if x < 12.0:
        return math.lgamma(x + 1.0) - (x + 0.5) * math.log(x) + x - _HALF_LOG_2PI
    s = 1.0 / (x * x)
    return (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s / 1188)))) / x


@njit(cache=True, error_model="numpy")
def _deviance(x: float, mean: float) -> Any:
    """Return x log(x / mean) + mean - x, also where the two are near each other."""
    gap = x - mean
    if abs(gap) >= 0.1 * (x + mean):
        return x * math.log(x / mean) - gap
    # x log((1 + v)/(1 - v)) - gap, v = gap/(x + mean): the series of the logarithm
    v = gap / (x + mean)
    total, term, square = gap * v, 2.0 * x * v, v * v
    for k in range(3, 200, 2):
        term *= square
        before = total
        total += term / k
        if total == before:
            break
    return total


@njit(cache=True, error_model="numpy")
def gamma_ratio(shape: float, x: float) -> Any:
    r"""Return the regularised lower incomplete gamma function P(a, x).

    .. math:: P(a, x) = \frac{1}{\Gamma(a)} \int_0^x t^{a-1} e^{-t}\, dt,

    for a whole a the probability that a Poisson variable of mean x is at least a.  Series below the
    mean, continued fraction above (Abramowitz and Stegun, 6.5.29 and 6.5.31); the factor before
    them in the saddle-point form of Loader (2000), which does not cancel.

    Parameters
    ----------
    shape : float
        a > 0.
    x : float
        x >= 0.
    """
    if x <= 0.0:
        return 0.0
    exponent = _remainder(shape) + _deviance(shape, x)
    density = math.exp(-exponent) / math.sqrt(2.0 * math.pi * shape) if exponent < 700.0 else 0.0
    if density < _NOTHING:
        return 0.0 if x < shape else 1.0
    if x < shape + 1.0:
        total = term = 1.0
        at = shape
        for _ in range(_MOST):
            at += 1.0
            term *= x / at
            total += term
            if term < _EXACT * total:
                break
        return min(density * total, 1.0)
    # Lentz's evaluation of 1/(x + 1 - a - 1(1 - a)/(x + 3 - a - …))
    b = x + 1.0 - shape
    c, d = 1e300, 1.0 / b
    value = d
    for k in range(1, _MOST):
        a = -k * (k - shape)
        b += 2.0
        d = 1.0 / (a * d + b)
        c = b + a / c
        step = c * d
        value *= step
        if abs(step - 1.0) < _EXACT:
            break
    return max(1.0 - density * shape * value, 0.0)


@njit(cache=True, error_model="numpy")
def _fraction(a: float, b: float, x: float) -> Any:
    """Continued fraction of the incomplete beta function (Abramowitz and Stegun, 26.5.8)."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _MOST):
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        d = 1.0 / (1.0 + even * d)
        c = 1.0 + even / c
        value *= c * d
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        d = 1.0 / (1.0 + odd * d)
        c = 1.0 + odd / c
        step = c * d
        value *= step
        if abs(step - 1.0) < 3.0 * _EXACT:
            break
    return value


@njit(cache=True, error_model="numpy")
def beta_ratio(a: float, b: float, x: float, rest: float) -> Any:
    r"""Return the regularised incomplete beta function I_x(a, b).

    .. math:: I_x(a, b) = \frac{1}{B(a, b)} \int_0^x t^{a-1} (1 - t)^{b-1}\, dt,

    for a whole a the probability that a negative binomial variable of size b and mean
    ``b x/(1 - x)`` is at least a.

    Parameters
    ----------
    a, b : float
        Above 0.
    x, rest : float
        x and 1 - x, both given since one of them may be tiny.
    """
    if x <= 0.0:
        return 0.0
    if rest <= 0.0:
        return 1.0
    n = a + b
    exponent = _remainder(a) + _remainder(b) - _remainder(n)
    exponent += _deviance(a, n * x) + _deviance(b, n * rest)
    density = math.sqrt(a * b / (2.0 * math.pi * n)) * math.exp(-exponent)
    below = x < (a + 1.0) / (n + 2.0)
    if density < _NOTHING * min(a, b):
        return 0.0 if below else 1.0
    if below:
        return min(density * _fraction(a, b, x) / a, 1.0)
    return max(1.0 - density * _fraction(b, a, rest) / b, 0.0)
