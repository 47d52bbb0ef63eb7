"""Compiled transforms of busy periods and of sums of works, at all points side by side.

Real and imaginary parts lie apart, in two rows, so that the loops over points are vectors; loops
stand in place of array expressions, which take numba several times as long to compile.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["delay_transforms", "sum_transforms"]

_FAST = {"reassoc", "contract", "arcp", "nsz"}
_TERMS = 9  # of the series of an exponential
_SMALL = 0.25  # argument at which so many terms are exact
_NOTHING = -30.0  # exponent of what is left out
_SETTLED = 3e-4  # change at which a step of Newton's is the last: it leaves about its square
_MOST = 10  # steps of Newton's
_CAREFUL, _MANY = 22, 70  # where those lead astray: plain iterations up to here, and steps in all


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _exponential(power, size, result):  # type: ignore[no-untyped-def]
    """``e^v`` of the first few: the series of ``v / 2^k``, squared k times."""
    most = 0.0
    for i in range(size):
        most = max(most, abs(power[0, i]) + abs(power[1, i]))
    squares = 0
    while most > _SMALL:
        most *= 0.5
        squares += 1
    scale = 0.5**squares
    real, imaginary = result[0], result[1]
    for i in range(size):
        x, y = power[0, i] * scale, power[1, i] * scale
        a, b = 1.0, 0.0
        for k in range(_TERMS, 0, -1):
            a, b = 1.0 + (a * x - b * y) * (1.0 / k), (a * y + b * x) * (1.0 / k)
        real[i], imaginary[i] = a, b
    for _ in range(squares):
        for i in range(size):
            a, b = real[i], imaginary[i]
            real[i], imaginary[i] = a * a - b * b, 2.0 * a * b


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _times(left, right):  # type: ignore[no-untyped-def]
    """Product of complex numbers, in place of the first.

    (Few arrays a loop: of more the compiler does not check that they lie apart.)
    """
    lr, li, rr, ri = left[0], left[1], right[0], right[1]
    for i in range(lr.size):
        a, b = lr[i], li[i]
        lr[i], li[i] = a * rr[i] - b * ri[i], a * ri[i] + b * rr[i]


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _add(left, share, right):  # type: ignore[no-untyped-def]
    """Add a multiple of complex numbers to others, in place of these."""
    lr, li, rr, ri = left[0], left[1], right[0], right[1]
    for i in range(lr.size):
        lr[i] += share * rr[i]
        li[i] += share * ri[i]


@njit(cache=True, error_model="numpy")
def _squares(x, most):  # type: ignore[no-untyped-def]
    """``x, x^2, x^4, …`` up to a power, shape (bits, 2, n)."""
    bits = 1
    while most >> bits:
        bits += 1
    squares = np.empty((bits, 2, x.shape[1]))
    for bit in range(bits):
        before = squares[bit - 1] if bit else x
        for i in range(x.shape[1]):
            squares[bit, 0, i], squares[bit, 1, i] = before[0, i], before[1, i]
        if bit:
            _times(squares[bit], before)
    return squares


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def _series(pmf, x, value, weighted):  # type: ignore[no-untyped-def]
    """Sum of ``m x^k``, and of ``k m x^k``, over the powers ``k``."""
    largest, before = 1, 0
    for place in range(pmf.size):
        if pmf[place] != 0.0:
            largest, before = max(largest, place - before), place
    squares = _squares(x, largest)
    power = np.empty((2, x.shape[1]))
    for i in range(x.shape[1]):
        power[0, i], power[1, i] = 1.0, 0.0
        value[0, i] = value[1, i] = weighted[0, i] = weighted[1, i] = 0.0
    before = 0
    for place in range(pmf.size):
        if pmf[place] != 0.0:
            gap, before = place - before, place
            for bit in range(squares.shape[0]):
                if gap >> bit & 1:
                    _times(power, squares[bit])
            _add(value, pmf[place], power)
            _add(weighted, pmf[place] * place, power)


@njit(cache=True, error_model="numpy", fastmath=_FAST)
def delay_transforms(pmf, first, rate, z, arrivals, result):  # type: ignore[no-untyped-def]
    """Write the transforms ``e^{a (B - 1)}`` of the laws of delays.

    Parameters
    ----------
    pmf : ndarray, shape (m,)
        Law of the works on a grid, that of what comes meanwhile.
    first : ndarray, shape (m,) or (0,)
        The same for those that interrupt; empty where they are no others.
    rate : float
        Arrivals meanwhile during a step of the grid, λ h.
    z : ndarray, shape (2, n)
        Where, inside the unit circle.
    arrivals : ndarray, shape (k,)
        Mean number of interruptions, ``a``, of each law.
    result : ndarray of complex, shape (k, n)
        Filled in.
    """
    size = z.shape[1]
    power, x = np.empty((2, size)), np.empty((2, size))
    value, weighted = np.empty((2, size)), np.empty((2, size))
    busy = np.zeros((2, size))
    settled, careful = False, False
    for turn in range(_MANY):
        # x = z e^{λ h (B - 1)}, and B = F(x)
        for i in range(size):
            power[0, i], power[1, i] = rate * (busy[0, i] - 1.0), rate * busy[1, i]
        _exponential(power, size, x)
        _times(x, z)
        _series(first if settled else pmf, x, value, weighted)
        if settled:
            break
        change, largest = 0.0, 0.0
        newton = not careful or turn >= _CAREFUL
        for i in range(size):
            error = complex(busy[0, i] - value[0, i], busy[1, i] - value[1, i])
            if newton:
                error /= 1.0 - rate * complex(weighted[0, i], weighted[1, i])
            busy[0, i] -= error.real
            busy[1, i] -= error.imag
            change = max(change, abs(error.real) + abs(error.imag))
            largest = max(largest, busy[0, i] ** 2 + busy[1, i] ** 2)
        settled = newton and change < _SETTLED and (careful or largest <= 1.0 + 1e-6)
        if not settled and not careful and turn == _MOST - 1:
            # plain iteration contracts and keeps inside the unit circle; Newton finishes
            careful = True
            for i in range(size):
                busy[0, i] = busy[1, i] = 0.0
        if settled and not first.size:
            value = busy
            break
    for level in range(arrivals.size):
        for i in range(size):
            power[0, i] = arrivals[level] * (value[0, i] - 1.0)
            power[1, i] = arrivals[level] * value[1, i]
        end = size
        while end > 1 and power[0, end - 1] < _NOTHING:
            end -= 1
        _exponential(power, end, x)
        for i in range(end):
            result[level, i] = complex(x[0, i], x[1, i])
        for i in range(end, size):
            result[level, i] = 0.0


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
    size = work.shape[1]
    law, part = np.empty((2, size)), np.empty((2, size))
    for i in range(size):
        law[0, i], law[1, i] = 1.0, 0.0
    before = 0
    for level in range(counts.size):
        whole = int(counts[level])
        share = counts[level] - whole
        for bit in range(squares.shape[0]):
            if (whole - before) >> bit & 1:
                _times(law, squares[bit])
        before = whole
        for i in range(size):
            part[0, i], part[1, i] = 1.0 - share + share * work[0, i], share * work[1, i]
        _times(part, law)
        for i in range(size):
            result[level, i] = complex(part[0, i], part[1, i])
