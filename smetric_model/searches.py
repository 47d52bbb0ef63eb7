"""Searches for the edge of what is good: the largest number, the fewest of something."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator

__all__ = ["FARTHEST", "fewest", "fewest_near", "fewest_steps", "largest"]

_STEPS = 12  # halvings of a search
_DOUBLINGS = 12
#: :func:`largest` looks so many times above and below where it begins
FARTHEST = 2.0**_DOUBLINGS


def largest(good: Callable[[float], bool], start: float, tolerance: float = 0.01) -> float | None:
    """Return the largest value for which ``good`` holds, if it holds below one value only.

    Parameters
    ----------
    good : callable
        Of a positive number; True below a limit, False above.
    start : float
        Where the search begins, above 0.
    tolerance : float, default 0.01
        Relative width at which it ends.

    Returns
    -------
    float or None
        None where it holds nowhere near 0 (``start`` / 4096); ``inf`` where it still holds at
        4096 times ``start``.
    """
    low = high = start
    if good(start):
        for _ in range(_DOUBLINGS):
            high = 2 * low
            if not good(high):
                break
            low = high
        else:
            return math.inf
    else:
        for _ in range(_DOUBLINGS):
            low = high / 2
            if good(low):
                break
            high = low
        else:
            return None
    for _ in range(_STEPS):
        if high / low - 1 <= tolerance:
            break
        middle = math.sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def fewest(good: Callable[[int], bool], start: int, most: int = 1 << 20) -> int | None:
    """Return the smallest whole number from which on ``good`` holds.

    Parameters
    ----------
    good : callable
        Of a whole number of at least 1; False below a limit, True above.
    start : int
        Where the search begins.
    most : int
        Largest number tried.

    Returns
    -------
    int or None
        None where it holds up to ``most`` nowhere.
    """
    high = max(start, 1)
    while not good(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def fewest_near(
    good: Callable[[int], bool], start: int, least: int = 1, most: int = 1 << 20
) -> int | None:
    """As :func:`fewest`, quickly where ``start`` is near the answer.

    Parameters
    ----------
    good : callable
        Of a whole number of at least ``least``; False below a limit, True above.
    start : int
        A guess.
    least, most : int
        Smallest and largest number tried.

    Returns
    -------
    int or None
        None where it holds up to ``most`` nowhere.
    """
    steps = fewest_steps(start, least, most)
    try:
        asked = next(steps)
        while True:
            asked = steps.send(good(asked))
    except StopIteration as end:
        found: int | None = end.value
        return found


def fewest_steps(start: int, least: int, most: int) -> Generator[int, bool, int | None]:
    """Ask for the numbers that :func:`fewest_near` tries, for whoever runs several such searches.

    Steps away from ``start`` double, on either side; between the last two the answer is halved out.

    Parameters
    ----------
    start, least, most : int
        As there.

    Yields
    ------
    int
        A number; send whether it is good.

    Returns
    -------
    int or None
        The answer.
    """
    at = min(max(start, least), most)
    step = 1
    if (yield at):
        high, low = at, least - 1
        while high > least:
            below = max(high - step, least)
            if not (yield below):
                low = below
                break
            high, step = below, 2 * step
    else:
        low = at
        while True:
            if low >= most:
                return None
            high = min(low + step, most)
            if (yield high):
                break
            low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        if (yield middle):
            high = middle
        else:
            low = middle
    return high
