"""Plateaus and their middle, without a model behind them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.tuning.search import HIT_RATIOS, OVERLOADS, GridPoint, middle, place, plateau


def grid(value):
    return tuple(GridPoint(o, h, value(o, h)) for o in OVERLOADS for h in HIT_RATIOS)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0.001, 0.5))
def test_plateau_holds_the_best_and_all_near_it(values: list[float], within: float) -> None:
    points = [GridPoint(1.0 + k, 0.5, value) for k, value in enumerate(values)]
    near = plateau(points, within)
    assert near[0].total_within_slo_tps == max(values)
    assert {p.overload for p in near} == {
        p.overload for p in points if p.total_within_slo_tps >= (1 - within) * max(values)
    }


def test_on_a_flat_grid_the_usual_pair_is_the_middle() -> None:
    chosen = middle(grid(lambda _o, _h: 100.0))
    assert (chosen.overload, chosen.hit_ratio) == (2.0, 0.5)


def test_the_middle_keeps_away_from_a_cliff_whose_edge_is_highest() -> None:
    """OVERLOAD 1.5 is best by a hair and 1.25 loses a fifth: the advice is not at the edge."""
    points = grid(lambda o, _h: 80.0 if o < 1.5 else 100.3 if o == 1.5 else 100.0)
    assert max(points, key=lambda p: p.total_within_slo_tps).overload == 1.5
    chosen = middle(points)
    assert 2.5 <= chosen.overload <= 4.0
    assert chosen.hit_ratio == 0.5


def test_a_narrow_peak_is_taken_itself() -> None:
    chosen = middle(grid(lambda o, h: 100.0 if (o, h) == (4.0, 0.9) else 90.0))
    assert (chosen.overload, chosen.hit_ratio) == (4.0, 0.9)


@given(st.lists(st.floats(0, 1e6), min_size=len(OVERLOADS) * 5, max_size=len(OVERLOADS) * 5))
def test_the_middle_is_near_the_best_and_scale_does_not_matter(values: list[float]) -> None:
    if max(values) <= 1e-3:
        return
    it = iter(values)
    points = grid(lambda _o, _h: next(it))
    chosen = middle(points)
    assert chosen.total_within_slo_tps >= 0.99 * max(values)
    doubled = tuple(GridPoint(p.overload, p.hit_ratio, 2 * p.total_within_slo_tps) for p in points)
    again = middle(doubled)
    assert (again.overload, again.hit_ratio) == (chosen.overload, chosen.hit_ratio)


def test_finer_steps_on_one_side_do_not_pull_the_middle() -> None:
    def points(overloads):
        return tuple(
            GridPoint(o, 0.5, 100.0 if 1.25 <= o <= 5.0 else 50.0) for o in sorted(overloads)
        )

    coarse = (1.0, 1.25, 2.0, 5.0, math.inf)
    fine = (*coarse, *(1.25 + 0.01 * k for k in range(1, 10)))
    one, other = (place(p.overload, 0.5)[0] for p in (middle(points(coarse)), middle(points(fine))))
    assert one == pytest.approx(other, abs=0.12)
