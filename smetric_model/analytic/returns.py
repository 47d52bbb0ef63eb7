r"""Turns of a session, and how many of them are served where the first or the previous one was.

A follow-up that leaves its home goes to one of the other ``N - 1`` instances and *stays there*:
its new copy is longer.  With a stay of ``a`` per turn, the probability that turn ``k + 1`` is
served where the first was follows a two-state chain (there, elsewhere):

.. math:: P_k = \frac1N + \Bigl(1 - \frac1N\Bigr)\Bigl(\frac{N a - 1}{N - 1}\Bigr)^k,

and the share over all follow-ups weighs ``P_k`` with ``P(K > k)``, the follow-ups that there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smetric_model.errors import SpecError

__all__ = ["TurnLaw", "return_to_first_ratio"]


@dataclass(frozen=True, eq=False)
class TurnLaw:
    """Law of the number of turns K of a session.

    Parameters
    ----------
    more_than : ndarray of float, shape (turns,)
        P(K > 1), P(K > 2), …, not increasing; 0 beyond the end.
    """

    more_than: NDArray[np.float64]

    def __post_init__(self) -> None:
        law = np.asarray(self.more_than, dtype=float)
        if law.ndim != 1 or np.any((law < 0) | (law > 1)) or np.any(np.diff(law) > 1e-12):
            raise SpecError(
                "turns: P(K > 1), P(K > 2), … must be probabilities that do not increase"
            )
        object.__setattr__(self, "more_than", law)

    @classmethod
    def geometric(cls, mean_turns: float) -> TurnLaw:
        """Return a geometric law on 1, 2, ….

        Parameters
        ----------
        mean_turns : float
            Mean number of turns, at least 1.
        """
        if not mean_turns >= 1:
            raise SpecError(f"turns: a mean of {mean_turns} turns; at least 1 is needed")
        ratio = 1 - 1 / mean_turns
        if ratio == 0:
            return cls(np.zeros(0))
        size = int(np.ceil(np.log(1e-9) / np.log(ratio)))
        return cls(np.asarray(ratio ** np.arange(1.0, size + 1), dtype=np.float64))

    @classmethod
    def from_follow_up_ratio(cls, ratio: float) -> TurnLaw:
        """Return the geometric law with this share of follow-ups among all requests.

        Parameters
        ----------
        ratio : float
            Follow-ups ÷ requests, in [0, 1).
        """
        if not 0 <= ratio < 1:
            raise SpecError(f"turns: a follow-up share of {ratio}; it must lie in [0, 1)")
        return cls.geometric(1 / (1 - ratio))

    @classmethod
    def from_turns(cls, turns: ArrayLike) -> TurnLaw:
        """Return the law of a sample of sessions.

        Parameters
        ----------
        turns : array_like of int, shape (sessions,)
            Turns of each session, at least 1.
        """
        counts = np.asarray(turns, dtype=np.int64)
        if counts.size == 0 or counts.min() < 1:
            raise SpecError("turns: every session needs at least one turn")
        histogram = np.bincount(counts)
        return cls(1 - np.cumsum(histogram)[1:-1] / counts.size)

    @cached_property
    def mean_turns(self) -> float:
        """E[K]."""
        return 1 + float(self.more_than.sum())

    @property
    def follow_up_ratio(self) -> float:
        """Follow-ups ÷ requests, (E[K] - 1)/E[K]."""
        return 1 - 1 / self.mean_turns


def return_to_first_ratio(stay_ratio: float, instances: float, turns: TurnLaw) -> float:
    """Return the share of follow-ups served by the instance of their session's first turn.

    Parameters
    ----------
    stay_ratio : float
        Probability a that a follow-up is served where the previous turn was; those that are not
        go to any other instance alike.
    instances : float
        N, or the effective number from which those that leave choose.
    turns : TurnLaw
        Weights of the turns.

    Returns
    -------
    float
        ``nan`` if there are no follow-ups.
    """
    weights = turns.more_than
    if weights.size == 0 or not weights.sum() > 0:
        return float("nan")
    if instances <= 1 + 1e-9:
        return 1.0
    ratio = max((instances * stay_ratio - 1) / (instances - 1), -1.0)
    powers = np.cumprod(np.full(weights.size, ratio))
    back = 1 / instances + (1 - 1 / instances) * powers
    return float(weights @ back / weights.sum())
