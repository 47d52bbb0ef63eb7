"""When one policy counts as better than another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from smetric_model.errors import SpecError

__all__ = ["FLOOR", "TIE_RATIO", "Verdict", "relative_advantage", "verdict"]

Verdict = Literal["win", "tie", "lose", "none"]

#: Differences up to this share are no findings: paired replays of one trace scatter by 1 to 2.5 %.
TIE_RATIO = 0.02
#: Tokens within SLO are measured against at least this share of all tokens asked for.
FLOOR = 0.1
#: Below this share of the tokens asked for nobody serves the workload.
_NOBODY = 0.01
_STANDARD_ERRORS = 2.0


def relative_advantage(own_tps: float, best_tps: float, offered_tps: float) -> float:
    """Return how much more a policy serves within SLO than another, as a share.

    Parameters
    ----------
    own_tps, best_tps : float
        Tokens/s within SLO of the policy and of the one it is compared with; 0 where a cluster
        has no steady state [tokens/s].
    offered_tps : float
        Tokens/s that arrive [tokens/s].

    Returns
    -------
    float
        (own − best) ÷ max(best, a tenth of what is offered): where next to nothing is served
        within SLO, ratios of small numbers mean nothing.

    Raises
    ------
    SpecError
        If the offered rate is not positive, or another one negative.
    """
    if not offered_tps > 0 or own_tps < 0 or best_tps < 0:
        raise SpecError(
            f"own_tps = {own_tps:g}, best_tps = {best_tps:g}, offered_tps = {offered_tps:g}:"
            " at least 0, and above 0 what is offered"
        )
    return (own_tps - best_tps) / max(best_tps, FLOOR * offered_tps)


def verdict(
    advantages: Sequence[float],
    served_ratio: float,
    tie_ratio: float = TIE_RATIO,
    noise_ratio: float = 0.0,
) -> Verdict:
    """Return who wins.

    Parameters
    ----------
    advantages : sequence of float
        :func:`relative_advantage` over the best other policy, one a seed; one for a closed form.
    served_ratio : float
        Tokens within SLO of the best policy ÷ tokens offered.
    tie_ratio : float, default 0.02
        Differences up to this count as none.
    noise_ratio : float, default 0
        Standard error of the mean advantage.

    Returns
    -------
    {"win", "tie", "lose", "none"}
        ``win`` and ``lose`` if the mean exceeds both ``tie_ratio`` and two standard errors, and
        all seeds agree in sign; ``none`` if nobody serves one per cent of the tokens within SLO.

    Raises
    ------
    SpecError
        If there is no advantage.
    """
    values = np.asarray(advantages, dtype=float)
    if not values.size or not np.all(np.isfinite(values)):
        raise SpecError(f"advantages = {advantages!r}: at least one finite number is needed")
    if not served_ratio >= _NOBODY:
        return "none"
    mean = float(values.mean())
    bar = max(tie_ratio, _STANDARD_ERRORS * noise_ratio)
    if abs(mean) <= bar or not np.all(np.sign(values) == math.copysign(1.0, mean)):
        return "tie"
    return "win" if mean > 0 else "lose"
