"""When a follow-up stays home, as a limit on the home's load: the form the mean field uses.

A policy with a threshold form keeps a follow-up on the instance that holds its context if and
only if the home's load is at most :attr:`ThresholdForm.home_load_limit` (for every other
instance, where the limit depends on one) and, where the form has :attr:`min_hit_tokens`, the
home's hit is longer than that.  Equality with another instance is a tie.  The tests hold every
form against the policy itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["FollowUp", "ThresholdForm"]

FloatArray = NDArray[np.float64]
Quantity = float | FloatArray


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """A follow-up as its home and one other instance see it; every field broadcasts.

    Parameters
    ----------
    prompt_tokens, est_hit_tokens : float or array
        Of the request [tokens].
    home_hit_tokens, other_hit_tokens : float or array
        Cached prefix at home and on the other instance [tokens].
    shared_prefix_tokens : float or array
        Prefix that nearly all instances hold [tokens].
    other_load : float or array
        Load of the other instance, in the policy's load unit.
    mean_load, min_load, max_load : float or array
        Over all available instances, the home included.
    """

    prompt_tokens: Quantity
    home_hit_tokens: Quantity
    est_hit_tokens: Quantity = 0.0
    other_hit_tokens: Quantity = 0.0
    shared_prefix_tokens: Quantity = 0.0
    other_load: Quantity = np.nan
    mean_load: Quantity = np.nan
    min_load: Quantity = np.nan
    max_load: Quantity = np.nan


@dataclass(frozen=True)
class ThresholdForm:
    """Stay home iff ``home load <= home_load_limit`` and ``home hit > min_hit_tokens``.

    Parameters
    ----------
    compares_with : {"mean", "each other", "slo", "nothing"}
        What the limit depends on: the mean load, each other instance (all limits must hold), the
        TTFT SLO (the limit is in unprefilled tokens, and is waived where every instance is over
        its own), or nothing (the limit is infinite).
    first_turn : {"least load", "same rule", "hash"}
        How first turns are placed.  ``"same rule"`` means by the same score, with the shared
        prefix as hit: first turns crowd where the system prompt lies.
    statement : str
        The rule in one line.
    home_load_limit : callable
        FollowUp -> largest home load at which the follow-up stays.
    min_hit_tokens : callable, optional
        FollowUp -> the home hit must be longer than this [tokens].
    """

    compares_with: Literal["mean", "each other", "slo", "nothing"]
    first_turn: Literal["least load", "same rule", "hash"]
    statement: str
    home_load_limit: Callable[[FollowUp], FloatArray]
    min_hit_tokens: Callable[[FollowUp], FloatArray] | None = None
