"""Compiled search for the fixed point of a map of laws: Anderson's acceleration."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Length of a step towards the map's answer, points remembered, and how many steps are tried.
_ATTEMPTS = (
    (0.5, 5, 40),
    (0.2, 5, 60),
    (0.5, 0, 400),  # past a place where the map hardly moves, without a history that misleads
    (0.08, 5, 100),
    (0.05, 0, 400),
    (0.01, 0, 400),
)
_MIXING = np.array([mixing for mixing, _, _ in _ATTEMPTS])
_MEMORY = np.array([memory for _, memory, _ in _ATTEMPTS])
_MOST = np.array([most for _, _, most in _ATTEMPTS])
MOST_STEPS = sum(most for _, _, most in _ATTEMPTS)
ACCEPTED = 1e-5  #: largest residual of an answer
POINTS = 1 + max(memory for _, memory, _ in _ATTEMPTS)  #: points remembered at most
GO_ON, FOUND, BEST = 0, 1, 2  #: what :func:`advance` says
ATTEMPT, TAKEN, KEPT, STEPS = 0, 1, 2, 3  #: what it counts


@njit(cache=True, error_model="numpy")
def advance(
    point: FloatArray,
    change: FloatArray,
    best: FloatArray,
    history: tuple[FloatArray, FloatArray],
    counts: NDArray[np.int64],
    law_size: int,
    least: float,
    tolerance: float,
    most_steps: int,
) -> Any:
    """Go on to the next point at which to evaluate the map.

    The map has a slow mode (the mean load) and, where many compare with the same few levels, fast
    ones that overshoot: shorter and shorter steps are tried, each from the best point so far.

    Parameters
    ----------
    point : ndarray, shape (n,)
        Where it was evaluated; set to the next.
    change : ndarray, shape (n,)
        What the map changes there.
    best : ndarray, shape (n + 1,)
        Smallest residual so far, ``inf`` at first, and where it was; set.
    history : tuple of ndarray, shape (:data:`POINTS`, n)
        Points and changes remembered; set.
    counts : ndarray of int, shape (4,)
        Attempt, steps taken in it, points kept, steps in all; zeros at first; set.
    law_size, least
        As of :func:`accelerated`.
    tolerance : float
        Residual at which it is found.
    most_steps : int
        Steps after which it is given up.

    Returns
    -------
    int
        ``GO_ON``; ``FOUND``: at the point just evaluated; ``BEST``: no nearer than the best point,
        to which ``point`` is set.
    """
    points, changes = history
    size, residual = point.size, 0.0
    for k in range(size):
        residual = max(residual, abs(change[k]))
    counts[TAKEN] += 1
    counts[STEPS] += 1
    if residual < best[0]:
        best[0] = residual
        for k in range(size):
            best[k + 1] = point[k]
    if residual < tolerance:
        return FOUND
    attempt = counts[ATTEMPT]
    if counts[TAKEN] >= _MOST[attempt] or counts[STEPS] >= most_steps:
        for k in range(size):
            point[k] = best[k + 1]
        near = best[0] < max(0.1 * ACCEPTED, tolerance)
        if near or counts[STEPS] >= most_steps or attempt + 1 == _MOST.size:
            return BEST
        counts[ATTEMPT], counts[TAKEN], counts[KEPT] = attempt + 1, 0, 0
        return GO_ON
    memory, kept = _MEMORY[attempt], counts[KEPT]
    if residual > 5.0 * best[0]:  # the history misleads: forget it
        kept = 0
    if kept > memory:
        for i in range(memory):
            for k in range(size):
                points[i, k], changes[i, k] = points[i + 1, k], changes[i + 1, k]
        kept = memory
    for k in range(size):
        points[kept, k], changes[kept, k] = point[k], change[k]
    counts[KEPT] = kept + 1
    found = accelerated(points[: kept + 1], changes[: kept + 1], _MIXING[attempt], law_size, least)
    for k in range(size):
        point[k] = found[k]
    return GO_ON


@njit(cache=True, error_model="numpy")
def accelerated(
    points: FloatArray, changes: FloatArray, mixing: float, law_size: int, least: float
) -> Any:
    """Next point of a fixed point by Anderson's acceleration, kept within bounds.

    Parameters
    ----------
    points, changes : ndarray, shape (m, n)
        Points so far and what the map changes there, the last one last.
    mixing : float
        Length of the step towards the map's answer.
    law_size : int
        The first so many entries are a law: not negative, sum 1.
    least : float
        Smallest of the entries after the law and the one that follows it; .1 is the largest.

    Returns
    -------
    ndarray, shape (n,)
    """
    count, size = points.shape
    last = count - 1
    result = np.empty(size)
    for k in range(size):
        result[k] = points[last, k] + mixing * changes[last, k]
    if last > 0:
        gram, right = np.empty((last, last)), np.empty(last)
        turned = np.empty((last, size))
        for i in range(last):
            for k in range(size):
                turned[i, k] = changes[i + 1, k] - changes[i, k]
        trace = 0.0
        for i in range(last):
            right[i] = 0.0
            for k in range(size):
                right[i] += turned[i, k] * changes[last, k]
            for j in range(i + 1):
                total = 0.0
                for k in range(size):
                    total += turned[i, k] * turned[j, k]
                gram[i, j] = gram[j, i] = total
            trace += gram[i, i]
        # steps that say the same as others are left out: a little on the diagonal
        for i in range(last):
            gram[i, i] += 1e-13 * trace + 1e-300
        for i in range(last):  # Gauss, in place: symmetric and positive
            for j in range(i + 1, last):
                factor = gram[j, i] / gram[i, i]
                for k in range(i, last):
                    gram[j, k] -= factor * gram[i, k]
                right[j] -= factor * right[i]
        for i in range(last - 1, -1, -1):
            for j in range(i + 1, last):
                right[i] -= gram[i, j] * right[j]
            right[i] /= gram[i, i]
        for i in range(last):
            for k in range(size):
                result[k] -= right[i] * (points[i + 1, k] - points[i, k] + mixing * turned[i, k])
    total = 0.0
    for k in range(law_size):
        result[k] = max(result[k], 0.0)
        total += result[k]
    for k in range(law_size):
        result[k] /= total
    for k in range(law_size + 1, size):
        result[k] = min(max(result[k], least), 0.1)
    return result
