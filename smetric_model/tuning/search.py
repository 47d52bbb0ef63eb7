"""Sweeps over ``predict``: pairs of thresholds, their plateau and its middle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smetric_model.analytic.predict import predict_goodput
from smetric_model.errors import SolveError, UnstableError

if TYPE_CHECKING:
    from smetric_model.analytic.demand import Demand
    from smetric_model.scenario import Scenario

__all__ = [
    "HIT_RATIOS",
    "OVERLOADS",
    "GridPoint",
    "loss_outside_slo",
    "middle",
    "place",
    "plateau",
    "sweep",
    "within_slo_tps",
]

#: thresholds that are tried
OVERLOADS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, math.inf)
HIT_RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9)


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
        return predict_goodput(scenario, demand)["total_within_slo_tps"]
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
        found = predict_goodput(scenario, demand)
    except (UnstableError, SolveError):
        return 1.0
    offered = found["total_tps"]
    return max(1.0 - found["total_within_slo_tps"] / offered, 0.0) if offered > 0 else 0.0


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
    # no load exceeds N times the mean: from there on OVERLOAD never lets go
    never = scenario.cluster.prefill_instances or scenario.cluster.instances
    known: dict[tuple[float, float], float] = {}
    for overload in overloads:
        for hit_ratio in hit_ratios:
            tell(f"thresholds {len(points) + 1} of {count}")
            same = (math.inf if overload >= never else overload, hit_ratio)
            if same in known:
                points.append(GridPoint(overload, hit_ratio, known[same]))
                continue
            asked = scenario.replace(
                **{
                    "router.policy": "smetric",
                    "router.overload": overload,
                    "router.hit_ratio": hit_ratio,
                }
            )
            known[same] = within_slo_tps(asked, demand)
            points.append(GridPoint(overload, hit_ratio, known[same]))
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


def place(overload: float, hit_ratio: float) -> tuple[float, float]:
    """Return where a pair lies: 1/OVERLOAD (0: never lets go) and HIT_RATIO.

    The two are one balance, ``HIT_RATIO* ~ 1/OVERLOAD*`` where the least load is near 0, so that
    equal steps in these coordinates are equal steps in what a move may cost.
    """
    return 1.0 / max(overload, 0.5), hit_ratio


def middle(points: Sequence[GridPoint], within: float = 0.02, near_best: float = 0.01) -> GridPoint:
    """Return the pair in the middle of the plateau.

    A plateau's highest point is where the errors of the prediction put it.  The middle is as far as
    can be from where tokens are lost, and so is still good if loads, lengths and the prediction are
    somewhat off.

    Parameters
    ----------
    points : sequence of GridPoint
        From :func:`sweep`; one of them at least serves something.
    within : float, default 0.02
        Share of the best prediction that is lost at the plateau's edge.
    near_best : float, default 0.01
        Share that the pair returned may lose.

    Returns
    -------
    GridPoint
        Of the pairs near the best the one nearest to the plateau's centre of mass.  A pair weighs
        as much as it lies above the plateau's edge, times the area of which it is the nearest.
    """
    places = np.array([place(point.overload, point.hit_ratio) for point in points])
    value = np.array([point.total_within_slo_tps for point in points])
    above = np.maximum(value / value.max() - (1.0 - within), 0.0)
    weight = above * _reach(places[:, 0]) * _reach(places[:, 1])
    centre = weight @ places / weight.sum()
    away = np.abs(places - centre).sum(axis=1)
    away[value < (1.0 - near_best) * value.max()] = np.inf
    return points[int(np.lexsort((-value, away.round(12)))[0])]


def _reach(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Length of the interval of which each value of a grid's axis is the nearest."""
    axis, at = np.unique(values, return_inverse=True)
    if axis.size == 1:
        return np.ones(values.size)
    edges = np.concatenate((axis[:1], 0.5 * (axis[1:] + axis[:-1]), axis[-1:]))
    return np.asarray(np.diff(edges)[at.reshape(-1)], dtype=float)
