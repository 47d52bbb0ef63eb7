"""Quantiles of laws that are costly to evaluate, and samples that stand for many requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["GOLDEN", "inverted", "spread", "turns"]

_BISECTIONS = 14  # steps to a quantile
_QUANTILE_RATIO = 0.02  # width of the bracket in which a quantile is interpolated, in logarithms
_BESIDE = 0.008  # from where a rough law has a quantile, in logarithms, the other is asked first
GOLDEN = 0.6180339887498949  #: its multiples fill [0, 1) evenly


def turns(count: int, of: int) -> NDArray[np.int64]:
    """Return in which of some turns each of so many is taken: evenly, but not in equal steps.

    Parameters
    ----------
    count, of : int
        How many there are, and the number of turns.
    """
    return ((np.arange(count) * GOLDEN) % 1.0 * of).astype(np.int64)


def spread(rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return some of many rows, evenly.

    Parameters
    ----------
    rows : ndarray of int
        Rows.
    most : int
        How many are wanted at most.
    """
    if rows.size <= most:
        return rows
    return np.asarray(rows[np.linspace(0, rows.size - 1, most).round().astype(int)])


def inverted(
    cdf: Callable[[float], float],
    low_s: float,
    high_s: float,
    shares: Sequence[float],
    rough: Callable[[float], float] | None = None,
) -> list[float]:
    """Return quantiles, on the logarithm; ``inf`` where the law ends below a share.

    Every evaluation narrows the brackets of all shares; interpolation in the bracket takes turns
    with bisection, so that steps of the law cost no more than bisection alone.

    Parameters
    ----------
    cdf : callable
        The law.
    low_s, high_s : float
        Where it is 0, and near 1.
    shares : sequence of float
        Ascending.
    rough : callable, optional
        A law that is near to it and costs less: where it has a quantile is looked first.
    """
    logs = [float(np.log(low_s)), float(np.log(high_s))]
    laws = [0.0, cdf(high_s)]

    def ask(at: float) -> None:
        place = bisect_left(logs, at)
        value = cdf(float(np.exp(at)))
        laws.insert(place, min(max(value, laws[place - 1]), laws[place]))
        logs.insert(place, at)

    near = inverted(rough, low_s, high_s, shares) if rough is not None else []
    for value in near:
        for beside in (-_BESIDE, _BESIDE):
            at = float(np.log(value)) + beside
            if logs[0] < at < logs[-1]:
                ask(at)
    found = []
    for share in shares:
        if share > laws[-1]:
            found.append(float("inf"))
            continue
        for turn in range(2 * _BISECTIONS):
            at = bisect_left(laws, share, 1)
            low, high = logs[at - 1], logs[at]
            if high - low < _QUANTILE_RATIO:
                break
            rise = laws[at] - laws[at - 1]
            part = (share - laws[at - 1]) / rise if turn % 2 == 0 and rise > 0 else 0.5
            ask(low + min(max(part, 0.05), 0.95) * (high - low))
        at = bisect_left(laws, share, 1)
        rise = laws[at] - laws[at - 1]
        part = (share - laws[at - 1]) / rise if rise > 0 else 1.0
        found.append(float(np.exp(logs[at - 1] + part * (logs[at] - logs[at - 1]))))
    return found
