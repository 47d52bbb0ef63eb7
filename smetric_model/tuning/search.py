"""Sweeps and searches over ``predict``: best thresholds, plateau, and the inverse questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smetric_model.analytic.predict import predict
from smetric_model.errors import SolveError, UnstableError

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario

__all__ = [
    "HIT_RATIOS",
    "OVERLOADS",
    "GridPoint",
    "fewest",
    "largest",
    "loss_outside_slo",
    "plateau",
    "sweep",
    "within_slo_tps",
]

#: thresholds that are tried
OVERLOADS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, math.inf)
HIT_RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9)

_STEPS = 12  # halvings of a search
_DOUBLINGS = 12


@dataclass(frozen=True)
class GridPoint:
    """Prediction at one pair of thresholds.

    Attributes
    ----------
    overload, hit_ratio : float
        The pair.
    total_within_slo_tps : float
        Tokens per second within SLO [tokens/s]; 0 where no steady state is predicted.
    """

    overload: float
    hit_ratio: float
    total_within_slo_tps: float


def within_slo_tps(scenario: Scenario, demand: Demand) -> float:
    """Return the predicted tokens per second within SLO; 0 without a steady state [tokens/s].

    Parameters
    ----------
    scenario : Scenario
        The question.
    demand : Demand
        Its workload.
    """
    try:
        return predict(scenario, demand=demand).number("total_within_slo_tps")
    except (UnstableError, SolveError):
        return 0.0


def loss_outside_slo(scenario: Scenario, demand: Demand) -> float:
    """Return the predicted share of the offered tokens that miss the SLO; 1 without a steady state.

    Parameters
    ----------
    scenario : Scenario
        The question.
    demand : Demand
        Its workload.
    """
    try:
        outcome = predict(scenario, demand=demand)
    except (UnstableError, SolveError):
        return 1.0
    offered = outcome.number("total_tps")
    return max(1.0 - outcome.number("total_within_slo_tps") / offered, 0.0) if offered > 0 else 0.0


def sweep(
    scenario: Scenario,
    demand: Demand,
    overloads: Sequence[float] = OVERLOADS,
    hit_ratios: Sequence[float] = HIT_RATIOS,
    tell: Callable[[str], None] = lambda _text: None,
) -> tuple[GridPoint, ...]:
    """Predict a scenario under SMetric at every pair of thresholds.

    Parameters
    ----------
    scenario : Scenario
        Its policy is replaced.
    demand : Demand
        Its workload.
    overloads, hit_ratios : sequence of float
        The grid.
    tell : callable
        Told what is being worked out.

    Returns
    -------
    tuple of GridPoint
    """
    points: list[GridPoint] = []
    count = len(overloads) * len(hit_ratios)
    for overload in overloads:
        for hit_ratio in hit_ratios:
            tell(f"thresholds {len(points) + 1} of {count}")
            asked = scenario.replace(
                **{
                    "router.policy": "smetric",
                    "router.overload": overload,
                    "router.hit_ratio": hit_ratio,
                }
            )
            points.append(GridPoint(overload, hit_ratio, within_slo_tps(asked, demand)))
    return tuple(points)


def plateau(points: Sequence[GridPoint], within: float = 0.02) -> tuple[GridPoint, ...]:
    """Return the pairs whose prediction is within a share of the best.

    Parameters
    ----------
    points : sequence of GridPoint
        From :func:`sweep`.
    within : float, default 0.02
        The share.

    Returns
    -------
    tuple of GridPoint
        Best first.
    """
    best = max(point.total_within_slo_tps for point in points)
    near = [p for p in points if p.total_within_slo_tps >= (1 - within) * best]
    return tuple(sorted(near, key=lambda p: -p.total_within_slo_tps))


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
