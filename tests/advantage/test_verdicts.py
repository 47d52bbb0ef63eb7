import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.advantage import relative_advantage, verdict
from smetric_model.errors import SpecError

tps = st.floats(0, 1e6)
advantages = st.lists(st.floats(-1, 9), min_size=1, max_size=5)


@given(tps, tps, st.floats(1, 1e6))
def test_advantage_has_the_sign_of_the_difference_and_is_never_below_minus_one(own, best, offered):
    value = relative_advantage(own, best, offered)
    assert value * (own - best) >= 0
    assert value >= -1 - 1e-12


@given(st.floats(1, 1e6), st.floats(0.2, 5), st.floats(0.1, 10))
def test_advantage_is_the_ratio_where_the_best_serves_a_tenth(best, factor, share):
    value = relative_advantage(factor * best, best, best / max(share, 0.1))
    assert value == pytest.approx(factor - 1)


def test_small_numbers_are_measured_against_a_tenth_of_what_is_offered():
    assert relative_advantage(2.0, 1.0, 1000.0) == pytest.approx(0.01)


@given(advantages, st.floats(0.05, 1), st.floats(0, 0.2), st.floats(0, 0.2))
def test_verdict_turns_with_the_sign(values, served, tie, noise):
    opposite = {"win": "lose", "lose": "win", "tie": "tie", "none": "none"}
    found = verdict(values, served, tie, noise)
    assert verdict([-v for v in values], served, tie, noise) == opposite[found]


@given(advantages, st.floats(0.05, 1), st.floats(0, 0.2), st.floats(0, 0.2), st.floats(0, 0.5))
def test_more_noise_or_a_wider_tie_makes_no_winner(values, served, tie, noise, more):
    if verdict(values, served, tie, noise) == "tie":
        assert verdict(values, served, tie + more, noise) == "tie"
        assert verdict(values, served, tie, noise + more) == "tie"


def test_seeds_that_disagree_are_a_tie_and_nobody_serving_is_none():
    assert verdict([0.2, 0.3], 0.5) == "win"
    assert verdict([0.5, -0.01], 0.5) == "tie"
    assert verdict([0.2, 0.3], 0.005) == "none"
    assert verdict([-0.021], 0.5) == "lose"
    assert verdict([0.05, 0.07], 0.5, noise_ratio=0.04) == "tie"


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf]])
def test_what_is_no_advantage_is_refused(values):
    with pytest.raises(SpecError, match="finite"):
        verdict(values, 0.5)


@pytest.mark.parametrize("given", [(-1, 1, 1), (1, -1, 1), (1, 1, 0), (1, 1, math.nan)])
def test_rates_that_cannot_be_are_refused(given):
    with pytest.raises(SpecError, match="offered_tps"):
        relative_advantage(*given)
