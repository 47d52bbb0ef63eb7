"""Compiled sums behind :mod:`smetric_model.analytic.imbalance`."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["engine_spread", "spread", "unseen_ratio", "window_moments"]

_TERMS = 12  # of a series in matrices of norm below 1/2


@njit(cache=True, error_model="numpy")
def spread(amount, present, session, sessions):  # type: ignore[no-untyped-def]
    """Mean and variance of amounts (n,), and of that variance the part between sessions.

    Each counts by ``present`` (n,), all alike if that is empty; ``session`` (n,) lies in
    [0, ``sessions``).
    """
    n = amount.size
    total, first = 0.0, 0.0
    for i in range(n):
        share = present[i] if present.size else 1.0
        total += share
        first += share * amount[i]
    mean = first / total
    weight, moment = np.zeros(sessions), np.zeros(sessions)
    variance = 0.0
    for i in range(n):
        share = present[i] if present.size else 1.0
        off = amount[i] - mean
        variance += share * off * off
        weight[session[i]] += share
        moment[session[i]] += share * off
    between = 0.0
    for k in range(sessions):
        if weight[k] > 0:
            between += moment[k] * moment[k] / weight[k]
    return mean, variance / total, between / total


@njit(cache=True, error_model="numpy")
def engine_spread(amount, work):  # type: ignore[no-untyped-def]
    """Variance ÷ squared mean of work (n,), and its covariance with amounts (n,) ÷ both means."""
    a, b = amount.mean(), work.mean()
    square, cross = 0.0, 0.0
    for i in range(work.size):
        off = work[i] / b - 1.0
        square += off * off
        cross += off * (amount[i] / a - 1.0)
    return square / work.size, cross / work.size


@njit(cache=True, error_model="numpy")
def unseen_ratio(amount, computed, length_s, window_s):  # type: ignore[no-untyped-def]
    """Share of the mean square of amounts (n,) that a window does not see at once.

    Of them ``computed`` (n,) is a pulse of ``length_s`` (n,), the rest a point: ``1 - h`` of the
    product of the two and ``1 - g`` of the pulse's square are lost, ``y = length ÷ window``.
    """
    lost, whole = 0.0, 0.0
    for i in range(amount.size):
        y, own = length_s[i] / window_s, computed[i]
        if y < 1:
            crossed, alone = 0.5 * y, y / 3
        else:
            crossed, alone = 1 - 0.5 / y, 1 - (1 - 1 / (3 * y)) / y
        lost += own * (2 * (amount[i] - own) * crossed + own * alone)
        whole += amount[i] * amount[i]
    return lost / whole


@njit(cache=True, error_model="numpy")
def _multiplied(a, b, factor, c, share, diagonal, out):  # type: ignore[no-untyped-def]
    """``out = factor a b + share c + diagonal 1``, all (n, n); ``out`` is none of the others."""
    n = a.shape[0]
    for i in range(n):
        for j in range(n):
            total = share * c[i, j]
            if i == j:
                total += diagonal
            for k in range(n):
                total += factor * a[i, k] * b[k, j]
            out[i, j] = total


@njit(cache=True, error_model="numpy")
def _window_integral(matrix, window_s):  # type: ignore[no-untyped-def]
    """∫_0^T (T - u) exp(A u) du ÷ T² = φ₂(A T): a series for a short time, which is doubled.

    ``φ₀(2z) = φ₀(z)²``, ``2 φ₁(2z) = φ₀(z) φ₁(z) + φ₁(z)``, ``4 φ₂(2z) = φ₁(z)² + 2 φ₂(z)``, with
    ``φ₀ = exp`` and ``φ_k(z) = 1/k! + z φ_{k+1}(z)`` (Higham, Functions of Matrices, §10.7.4).
    """
    n = matrix.shape[0]
    norm = 0.0
    for i in range(n):
        row = 0.0
        for j in range(n):
            row += abs(matrix[i, j])
        norm = max(norm, row * window_s)
    doublings, step = 0, window_s
    while norm > 0.5 and doublings < 1000:
        norm, step, doublings = 0.5 * norm, 0.5 * step, doublings + 1
    zero, free = np.zeros((n, n)), np.zeros((n, n))
    whole, first, second = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    _multiplied(zero, zero, 0.0, zero, 0.0, 1.0, second)
    for k in range(_TERMS, 0, -1):  # 2 φ₂ by Horner
        _multiplied(matrix, second, step / (k + 2), zero, 0.0, 1.0, free)
        second, free = free, second
    _multiplied(zero, zero, 0.0, second, 0.5, 0.0, free)
    second, free = free, second
    _multiplied(matrix, second, step, zero, 0.0, 1.0, first)
    _multiplied(matrix, first, step, zero, 0.0, 1.0, whole)
    for _ in range(doublings):
        _multiplied(first, first, 0.25, second, 0.5, 0.0, free)
        second, free = free, second
        _multiplied(whole, first, 0.5, first, 0.5, 0.0, free)
        first, free = free, first
        _multiplied(whole, whole, 1.0, zero, 0.0, 0.0, free)
        whole, free = free, whole
    return second


@njit(cache=True, error_model="numpy")
def window_moments(  # type: ignore[no-untyped-def]
    drift, covariance, service_slope, rate, follow, think_weights, think_rates, back, leave, windows
):
    r"""Return what windows of an instance see: a row for each of ``windows`` (k,), 5 columns.

    0. Variance of its completions. ``Var C = λT + 2 ∫ (T-u) h(u) du``,
       ``h(u) = µ'e' exp(Au)(Σ e µ' + (λ(1-q)α, -λ))``: a completion tells of the load before it,
       sends a session thinking and leaves one less.
    1. Variance of its load averaged over the window ÷ that of its load.
    2. χ: mean turns of a request's session in its window here, itself included.
    3. Correlation over the window of a request's presence with itself,
    4. and with that of its session.

    ``drift`` and ``covariance`` (c+1, c+1) are those of the linear noise, thinking classes first,
    with ``think_weights`` and ``think_rates`` (c,); ``follow``: share of the completions after
    which a session thinks and comes back by the noise, ``back``: by its own cycle here, of which
    it is present for 1 ÷ ``leave``.
    """
    last = drift.shape[0] - 1
    # one session: thinking by class, then present
    cycle = np.zeros((last + 1, last + 1))
    for i in range(last):
        cycle[i, i] = -think_rates[i]
        cycle[last, i] = think_rates[i]
        cycle[i, last] = back * leave * think_weights[i]
    cycle[last, last] = -leave
    out = np.empty((windows.size, 5))
    for row in range(windows.size):
        window = windows[row]
        later, met = _window_integral(drift, window), _window_integral(cycle, window)
        completed, seen, density = 0.0, 0.0, 0.0
        for i in range(last + 1):
            start = covariance[i, last] * service_slope
            seen += later[last, i] * covariance[i, last]
            if i < last:
                start += rate * follow * think_weights[i]
                # just completed: thinking, if it comes back
                density += met[last, i] * cycle[i, last]
            else:
                start -= rate
            completed += later[last, i] * start
        counted = rate * window + 2 * service_slope * completed * window**2
        x = leave * window
        out[row, 0] = max(counted, 0.02 * rate * window)
        out[row, 1] = max(2 * seen / max(covariance[last, last], 1e-300), 0.0)
        out[row, 2] = 1 + 2 * density * window
        out[row, 3] = 1 - x / 3 if x < 1e-4 else 2 * (np.expm1(-x) + x) / (x * x)
        out[row, 4] = 2 * met[last, last]
    return out
