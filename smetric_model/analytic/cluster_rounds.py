"""Rounds of a cluster's fixed point: what one hands to the next, and how far it has come."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.stay_rule import Pace, StayRule

__all__ = ["Guess", "Secant", "change_between"]

FloatArray = NDArray[np.float64]

_FARTHEST, _LEAST = 1.0, 0.7  # of the last two rounds' difference, onwards and back


class Guess(NamedTuple):
    """What one round hands to the next."""

    rule: StayRule
    pace: Pace
    pinned: float
    computing: float


def _point(guess: Guess) -> FloatArray:
    """Return a guess in comparable units: logarithms, shares as they are."""
    amounts = np.maximum((*guess.pace, guess.pinned), 1e-9)
    return np.append(np.log(amounts), (guess.rule.stay, guess.computing))


def _guess_at(point: FloatArray, like: Guess, pool_tokens: float) -> Guess:
    first, per_output, pinned = np.exp(point[:3]).tolist()
    stay, computing = np.clip(point[3:], 0.0, 1.0).tolist()
    rule = replace(like.rule, stay=stay)
    if rule.stay_of_leads is not None:
        stays = np.clip(rule.stay_of_leads + stay - like.rule.stay, 0.0, 1.0)
        rule = replace(rule, stay_of_leads=stays)
    return Guess(rule, Pace(first, per_output), min(pinned, pool_tokens), computing)


class Secant:
    """Steps of a fixed point along what the last two rounds showed (Anderson, memory 1).

    Rounds that change more than the one before go halfway, which brings to rest what overshoots.
    """

    def __init__(self, pool_tokens: float):
        self.pool_tokens = pool_tokens
        self.before: tuple[FloatArray, FloatArray, float] | None = None

    def next(self, old: Guess, new: Guess, change: float) -> Guess:
        """Return the guess of the next round, from that of this one and its answer."""
        x, answer = _point(old), _point(new)
        step = answer - x
        result = answer
        if self.before is not None:
            answer_before, step_before, change_before = self.before
            turned = step - step_before
            square = float(turned @ turned)
            share = float(step @ turned) / square if square > 0 else 0.0
            share = min(max(share, -_FARTHEST), _LEAST)
            result = answer - share * (answer - answer_before)
            if change > change_before:
                result = 0.5 * (x + answer)
        self.before = (answer, step, change)
        return _guess_at(result, new, self.pool_tokens)


def change_between(old: Guess, new: Guess) -> float:
    """Largest relative change of what matters between two rounds."""
    pairs = (
        (old.pace.first_token_s, new.pace.first_token_s),
        (old.pace.per_output_token_s, new.pace.per_output_token_s),
        (old.pinned, new.pinned),
        (1 + old.rule.stay, 1 + new.rule.stay),
    )
    return max(abs(a - b) / max(abs(a), abs(b), 1e-9) for a, b in pairs)
