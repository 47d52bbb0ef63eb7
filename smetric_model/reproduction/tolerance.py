"""When a value agrees with a claim: the claim's value and tolerance, read once."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from smetric_model.errors import SpecError

__all__ = ["ClaimedValue", "Tolerance", "parse_tolerance", "parse_value"]

Kind = Literal["absolute", "relative", "exact", "ordering", "magnitude", "signed", "none"]

_NUMBER = r"([+-]?\d*\.?\d+)"
#: of double-precision arithmetic
_EXACT = 1e-9


@dataclass(frozen=True)
class ClaimedValue:
    """A claim's value.

    Attributes
    ----------
    low, high : float
        Ends of a range; equal for a number; NaN where the claim is an ordering.
    """

    low: float
    high: float

    @property
    def is_range(self) -> bool:
        """Whether it is a range."""
        return self.low != self.high and not math.isnan(self.low)


def parse_value(text: str) -> ClaimedValue:
    """Read a claim's value.

    Parameters
    ----------
    text : str
        ``0.8``, ``-0.07``, ``0.10-0.16``, ``within 0.01`` (a magnitude), or words for an ordering.

    Returns
    -------
    ClaimedValue
    """
    text = text.strip().replace("−", "-")
    if found := re.fullmatch(_NUMBER, text):
        value = float(found[1])
        return ClaimedValue(value, value)
    if found := re.fullmatch(rf"{_NUMBER}\s*[-–]\s*{_NUMBER}", text):
        low, high = float(found[1]), float(found[2])
        return ClaimedValue(min(low, high), max(low, high))
    if found := re.fullmatch(rf"within {_NUMBER}", text):
        return ClaimedValue(-float(found[1]), float(found[1]))
    return ClaimedValue(math.nan, math.nan)


@dataclass(frozen=True)
class Tolerance:
    """How far off still agrees.

    Attributes
    ----------
    kind : str
        ``absolute``: within ``amount`` of the value (or range).  ``relative``: within ``amount``
        times the value.  ``exact``.  ``ordering``: what is claimed holds.  ``magnitude``: the
        value's size is at most ``amount``, plus the claimed one's if ``from_value``.  ``signed``:
        the claim's sign, and within ``amount``; a claimed range is overlapped.  ``none``.
    amount : float
    from_value : bool
    """

    kind: Kind
    amount: float = math.nan
    from_value: bool = False

    def agrees(self, claimed: ClaimedValue, low: float, high: float | None = None) -> bool | None:
        """Whether a value agrees.

        Parameters
        ----------
        claimed : ClaimedValue
        low, high : float
            The value, or the ends of a range of values; of an ordering 1 (holds) or 0.

        Returns
        -------
        bool or None
            None where there is no value, or no tolerance.
        """
        high = low if high is None else high
        if self.kind == "none" or math.isnan(low) or math.isnan(high):
            return None
        if self.kind == "ordering":
            return low == high == 1.0
        if math.isnan(claimed.low):
            return None
        size = max(abs(claimed.low), abs(claimed.high))
        if self.kind == "magnitude":
            allowed = self.amount + (size if self.from_value else 0.0)
            return max(abs(low), abs(high)) <= allowed
        if self.kind == "signed":
            if claimed.is_range:
                return low <= claimed.high and high >= claimed.low
            same = all(value * claimed.low > 0 for value in (low, high))
            return same and self._within(claimed, low, high, self.amount)
        slack = {"absolute": self.amount, "exact": _EXACT * size}.get(self.kind, self.amount * size)
        return self._within(claimed, low, high, slack)

    @staticmethod
    def _within(claimed: ClaimedValue, low: float, high: float, slack: float) -> bool:
        rounding = 1e-12 * max(1.0, abs(claimed.high))
        return low >= claimed.low - slack - rounding and high <= claimed.high + slack + rounding


def parse_tolerance(text: str) -> Tolerance:
    """Read a tolerance.

    Parameters
    ----------
    text : str
        ``.03 absolute``, ``20 % relative``, ``exact``, ``exact ordering``,
        ``magnitude <= .10``, ``magnitude <= value + .10``, ``same sign and within .10 absolute
        ...``, or nothing.

    Returns
    -------
    Tolerance

    Raises
    ------
    SpecError
        For anything else.
    """
    text = " ".join(text.split())
    if not text:
        return Tolerance("none")
    if text == "exact":
        return Tolerance("exact")
    if text == "exact ordering":
        return Tolerance("ordering")
    if found := re.fullmatch(rf"{_NUMBER} absolute", text):
        return Tolerance("absolute", float(found[1]))
    if found := re.fullmatch(rf"{_NUMBER} ?% relative", text):
        return Tolerance("relative", float(found[1]) / 100)
    if found := re.fullmatch(rf"magnitude <= (value \+ )?{_NUMBER}", text):
        return Tolerance("magnitude", float(found[2]), from_value=found[1] is not None)
    if found := re.fullmatch(rf"same sign and within {_NUMBER} absolute( \(.*\))?", text):
        return Tolerance("signed", float(found[1]))
    raise SpecError(
        f"tolerance = {text!r}: one of 'X absolute', 'X % relative', 'exact', 'exact ordering',"
        " 'magnitude <= X', 'magnitude <= value + X', 'same sign and within X absolute' is needed"
    )
