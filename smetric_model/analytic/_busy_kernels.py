"""Compiled transforms of busy periods and of sums of works, at all points side by side.

Real and imaginary parts lie apart, in two rows, so that the loops over points are vectors.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["busy_transform", "delay_transforms", "sum_transforms", "work_transform"]

_FAST = {"reassoc", "contract", "arcp", "nsz"}
_TERMS = 9  # of the series of an exponential
_SMALL = 0.25  # argument at which so many terms are exact
_SETTLED = 1e-4  # change at which a step of Newton's is the last: it leaves about its square
_MOST = 10  # steps of Newton's
_CAREFUL, _MANY = 12, 52  # where those lead astray: plain iterations first, and steps in all


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _exponential(power, result):  # type: ignore[no-untyped-def]
    """``e^v``: the series of ``v / 2^k``, squared k times."""
    most = 0.0
    for i in range(power.shape[1]):
        most = max(most, abs(power[0, i]) + abs(power[1, i]))
    squares = 0
    while most > _SMALL:
        most *= 0.5
        squares += 1
    scale = 0.5**squares
    real, imaginary = result[0], result[1]
    for i in range(real.size):
        x, y = power[0, i] * scale, power[1, i] * scale
        a, b = 1.0, 0.0
        for k in range(_TERMS, 0, -1):
            a, b = 1.0 + (a * x - b * y) * (1.0 / k), (a * y + b * x) * (1.0 / k)
        real[i], imaginary[i] = a, b
    for _ in range(squares):
        for i in range(real.size):
            a, b = real[i], imaginary[i]
            real[i], imaginary[i] = a * a - b * b, 2.0 * a * b


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _times(left, right):  # type: ignore[no-untyped-def]
    """Product of complex numbers, in place of the first."""
    lr, li, rr, ri = left[0], left[1], right[0], right[1]
    for i in range(lr.size):
        a, b = lr[i], li[i]
        lr[i], li[i] = a * rr[i] - b * ri[i], a * ri[i] + b * rr[i]


@njit(cache=True, error_model="numpy")
def _squares(x, most):  # type: ignore[no-untyped-def]
    """``x, x^2, x^4, …`` up to a power."""
    bits = 1
    while most >> bits:
        bits += 1
    squares = np.empty((bits, *x.shape))
    squares[0] = x
    for bit in range(1, bits):
        squares[bit] = squares[bit - 1]
        _times(squares[bit], squares[bit - 1])
    return squares


@njit(cache=True, error_model="numpy")
def _raised(law, squares, power):  # type: ignore[no-untyped-def]
    """Multiply a law by a power of what the squares are of, in place."""
    for bit in range(squares.shape[0]):
        if power >> bit & 1:
            _times(law, squares[bit])


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _series(pmf, x, value, weighted):  # type: ignore[no-untyped-def]
    """Sum of ``m x^k``, and of ``k m x^k``, over the powers ``k``."""
    places = np.flatnonzero(pmf)
    gaps = places.copy()
    gaps[1:] -= places[:-1]
    squares = _squares(x, gaps.max())
    power = np.zeros(x.shape)
    power[0] = 1.0
    value[:] = 0.0
    weighted[:] = 0.0
    pr, pi, vr, vi, wr, wi = power[0], power[1], value[0], value[1], weighted[0], weighted[1]
    for gap, place in zip(gaps, places):  # noqa: B905 (numba knows no strict)
        _raised(power, squares, gap)
        share, moment = pmf[place], pmf[place] * place
        for i in range(pr.size):
            vr[i] += share * pr[i]
            vi[i] += share * pi[i]
            wr[i] += moment * pr[i]
            wi[i] += moment * pi[i]


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _shifted(busy, rate, z, x):  # type: ignore[no-untyped-def]
    """``x = z e^{λ h (B - 1)}``, ``rate`` being λ h."""
    power = np.empty(busy.shape)
    for i in range(busy.shape[1]):
        power[0, i] = rate * (busy[0, i] - 1.0)
        power[1, i] = rate * busy[1, i]
    _exponential(power, x)
    _times(x, z)


@njit(cache=True, error_model="numpy")
def _solve(pmf, z, rate, plain, most, busy):  # type: ignore[no-untyped-def]
    """Iterate ``B = F(z e^{λ h (B - 1)})``; returns whether all came to rest within the circle."""
    x, value, weighted = np.empty(z.shape), np.empty(z.shape), np.empty(z.shape)
    busy[:] = 0.0
    for turn in range(most):
        _shifted(busy, rate, z, x)
        _series(pmf, x, value, weighted)
        change, largest = 0.0, 0.0
        for i in range(z.shape[1]):
            error = complex(busy[0, i] - value[0, i], busy[1, i] - value[1, i])
            if turn >= plain:
                error /= 1.0 - rate * complex(weighted[0, i], weighted[1, i])
            busy[0, i] -= error.real
            busy[1, i] -= error.imag
            change = max(change, abs(error.real) + abs(error.imag))
            largest = max(largest, busy[0, i] ** 2 + busy[1, i] ** 2)
        if turn >= plain and change < _SETTLED:
            return largest <= 1.0 + 1e-6
    return False


@njit(cache=True, error_model="numpy")
def busy_transform(pmf, rate, z):  # type: ignore[no-untyped-def]
    """Return the generating function of a busy period at points inside the circle.

    Parameters
    ----------
    pmf : ndarray, shape (m,)
        Law of the works on a grid.
    rate : float
        Arrivals during a step of the grid, λ h.
    z : ndarray, shape (2, n)
        Where.

    Returns
    -------
    busy, x : ndarray, shape (2, n)
        ``B(z) = F(x)``, and ``x = z e^{-λ h (1 - B)}``.
    """
    busy, x = np.empty(z.shape), np.empty(z.shape)
    if not _solve(pmf, z, rate, 0, _MOST, busy):
        # plain iteration contracts and keeps inside the unit circle; Newton finishes
        _solve(pmf, z, rate, _CAREFUL, _MANY, busy)
    _shifted(busy, rate, z, x)
    return busy, x


@njit(cache=True, error_model="numpy")
def work_transform(pmf, x):  # type: ignore[no-untyped-def]
    """Return the generating function of a law on a grid at some points, shape (2, n)."""
    value = np.empty(x.shape)
    _series(pmf, x, value, np.empty(x.shape))
    return value


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def delay_transforms(arrivals, busy, result):  # type: ignore[no-untyped-def]
    """Write the transforms ``e^{a (B - 1)}`` of the laws of delays.

    Parameters
    ----------
    arrivals : ndarray, shape (k,)
        Mean number of interruptions, ``a``, of each.
    busy : ndarray, shape (2, n)
        B.
    result : ndarray of complex, shape (k, n)
        Filled in.
    """
    power, law = np.empty(busy.shape), np.empty(busy.shape)
    real, imaginary = law[0], law[1]
    for level in range(arrivals.size):
        for i in range(real.size):
            power[0, i] = arrivals[level] * (busy[0, i] - 1.0)
            power[1, i] = arrivals[level] * busy[1, i]
        _exponential(power, law)
        for i in range(real.size):
            result[level, i] = complex(real[i], imaginary[i])


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def sum_transforms(work, counts, result):  # type: ignore[no-untyped-def]
    """Write the transforms ``F^n (1 - p + p F)`` of sums of n works, or with p of one more.

    Parameters
    ----------
    work : ndarray, shape (2, n)
        F.
    counts : ndarray, shape (k,)
        ``n + p`` of each sum, ascending.
    result : ndarray of complex, shape (k, n)
        Filled in.
    """
    squares = _squares(work, int(counts[-1]))
    law, part = np.zeros(work.shape), np.empty(work.shape)
    law[0] = 1.0
    real, imaginary = part[0], part[1]
    before = 0
    for level in range(counts.size):
        whole = int(counts[level])
        share = counts[level] - whole
        _raised(law, squares, whole - before)
        before = whole
        for i in range(real.size):
            real[i] = 1.0 - share + share * work[0, i]
            imaginary[i] = share * work[1, i]
        _times(part, law)
        for i in range(real.size):
            result[level, i] = complex(real[i], imaginary[i])
