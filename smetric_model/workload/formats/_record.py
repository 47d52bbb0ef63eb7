"""What a reader hands over for each request, and the checks every reader shares."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_TOKENS",
    "BadLineError",
    "Record",
    "block_array",
    "optional_seconds",
    "require",
    "seconds",
    "text",
    "tokens",
]

#: Largest token count believed; a thousand times the longest context known.
MAX_TOKENS = 1_000_000_000
#: Largest time stamp believed, in any unit: a few centuries of nanoseconds.
MAX_STAMP = 1e19


class BadLineError(ValueError):
    """A line is wrong; the driver adds file and line."""


@dataclass(slots=True)
class Record:
    """One request as a reader found it."""

    line: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    ids: npt.NDArray[np.int64] | None = None
    counts: npt.NDArray[np.int64] | None = None
    namespace: Hashable = None
    session: Hashable = None
    turn: int = -1
    key: Hashable = None
    parent: Hashable = None
    think_time_s: float = math.nan
    e2e_s: float = math.nan
    trigger: str | None = None
    model: str | None = None


def require(row: dict[str, Any], key: str) -> Any:
    """Look up a key that must be there."""
    try:
        return row[key]
    except KeyError:
        raise BadLineError(f"key {key!r} is missing") from None


def tokens(value: Any, name: str) -> int:
    """Check a token count: an integer, or a float that is one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadLineError(f"{name} is {_show(value)}; an integer is needed")
    if not 0 <= value <= MAX_TOKENS:
        raise BadLineError(f"{name} is {value}; 0 to {MAX_TOKENS:,} is allowed")
    return value


def seconds(value: Any, name: str) -> float:
    """Check a time stamp or duration, in whatever unit: finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadLineError(f"{name} is {_show(value)}; a number is needed")
    if not 0 <= value <= MAX_STAMP:  # also refuses nan
        raise BadLineError(f"{name} is {value}; a number from 0 to {MAX_STAMP:g} is needed")
    return float(value)


def optional_seconds(value: Any, name: str) -> float:
    """As :func:`seconds`; ``nan`` for None."""
    return math.nan if value is None else seconds(value, name)


def text(value: Any, name: str) -> str:
    """Check a string."""
    if not isinstance(value, str):
        raise BadLineError(f"{name} is {_show(value)}; a string is needed")
    return value


def block_array(value: Any, name: str) -> npt.NDArray[np.int64]:
    """Convert block ids to 64-bit integers; unsigned ones keep their bits.

    Integers beyond 64 bits reach us as floats and are refused, not rounded.
    """
    if not isinstance(value, list):
        raise BadLineError(f"{name} is {_show(value)}; a list of integers is needed")
    if not value:
        return np.zeros(0, np.int64)
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        array = np.array(value, dtype=object)
    if array.ndim == 1 and array.dtype == np.int64:
        return array
    if array.ndim == 1 and array.dtype == np.uint64:
        return array.view(np.int64)
    if array.ndim == 1 and all(type(item) is int and -(2**63) <= item < 2**64 for item in value):
        # negative ids and ids of 2**63 and more in one list
        return np.array([item & (2**64 - 1) for item in value], dtype=np.uint64).view(np.int64)
    wrong = next((item for item in value if type(item) is not int), value[0])
    raise BadLineError(f"{name} holds {_show(wrong)}; integers of at most 64 bits are needed")


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
