"""OVERLOAD* and HIT_RATIO*: laws first, then the study's own regimes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from smetric_model.analytic.thresholds import (
    LEAST_OVERLOAD,
    MoveCost,
    ServiceLine,
    hit_ratio_optimum,
    least_load_quantile,
    matching_hit_weight,
    matching_overload,
    overload_optimum,
    recompute_delay_s,
    service_line,
    shared_link_delay_s,
    transfer_time_s,
)
from smetric_model.errors import SpecError

positive = st.floats(1e-3, 1e3)


@given(positive, positive, st.floats(0, 50), positive)
def test_overload_rises_with_the_cost_and_falls_with_the_saving(
    cost: float, saving: float, receiver: float, mean: float
) -> None:
    one = overload_optimum(cost, saving, receiver, mean)
    assert one >= LEAST_OVERLOAD
    assert overload_optimum(2 * cost, saving, receiver, mean) >= one
    assert overload_optimum(cost, 2 * saving, receiver, mean) <= one


@given(positive, positive, st.floats(0, 50), st.floats(0, 50))
def test_hit_ratio_falls_with_the_cost(
    cost: float, saving: float, receiver: float, home: float
) -> None:
    one = hit_ratio_optimum(cost, saving, receiver, home)
    assert 0 <= one <= 1
    assert hit_ratio_optimum(2 * cost, saving, receiver, home) <= one
    assert hit_ratio_optimum(cost, saving, receiver, home, least=0.1) == min(one, 0.9)


@given(positive, st.floats(0.1, 10), positive, st.floats(0.01, 0.9))
def test_both_thresholds_are_one_balance(
    cost: float, saving: float, mean: float, share: float
) -> None:
    """A home at OVERLOAD* whose hit is whole, or below it with a partial hit, is in balance."""
    receiver = 0.2 * mean
    over = overload_optimum(cost, saving, receiver, mean, least=0.0)
    at_limit = over * mean
    assert hit_ratio_optimum(cost, saving, receiver, at_limit) == pytest.approx(1.0)
    home = receiver + share * (at_limit - receiver)
    assert hit_ratio_optimum(cost, saving, receiver, home) == pytest.approx(share)


@given(
    st.floats(0.5, 6), st.floats(0.05, 1), st.floats(0, 3), st.floats(0.1, 10), st.floats(0.1, 20)
)
def test_weight_and_overload_are_each_others_inverse(
    over: float, hit: float, receiver: float, mean: float, scale: float
) -> None:
    for given_scale in (None, scale):
        weight = matching_hit_weight(over, hit, receiver, mean, given_scale)
        assert 0 <= weight < 1
        if over * mean > receiver:
            back = matching_overload(weight, hit, receiver, mean, given_scale)
            assert back == pytest.approx(over, rel=1e-6)
    assert matching_hit_weight(np.inf, hit, receiver, mean) == 1.0
    assert matching_overload(1.0, hit, receiver, mean) == np.inf


def test_weight_is_that_of_bailians_own_rule() -> None:
    """Bailian keeps a follow-up just below the OVERLOAD, and lets it go just above."""
    from smetric_model.routing.baselines import Bailian
    from smetric_model.routing.thresholds import FollowUp

    loads = np.array([1.0, 4.0, 5.0, 6.0])
    mean, over, hit = loads.mean(), 1.8, 0.6
    weight = matching_hit_weight(over, hit, loads.min(), mean)
    form = Bailian(hit_weight=weight).threshold_form
    limit = form.home_load_limit(
        FollowUp(
            prompt_tokens=1000.0,
            home_hit_tokens=600.0,
            other_load=loads.min(),
            mean_load=mean,
            min_load=loads.min(),
            max_load=loads.max(),
        )
    )
    assert float(limit) == pytest.approx(over * mean)


@given(st.floats(0.01, 5), st.floats(0.01, 2), st.floats(1.0, 15))
def test_line_of_a_linear_instance_is_found_again(base: float, slope: float, load: float) -> None:
    present = np.arange(1.0, 40.0)
    line = service_line(present / (base + slope * present), load)
    assert line.slope_s == pytest.approx(slope, rel=0.02, abs=1e-3 * base)
    assert line.sojourn_s == pytest.approx(base + slope * load, rel=0.02)
    assert 0.5 <= line.persistence <= 1.0


def test_full_instance_makes_the_line_steep() -> None:
    rate = np.full(4, 2.0)  # one more waits for all: the sojourn is l / 2
    line = service_line(rate, 3.0)
    assert line.slope_s == pytest.approx(0.5)
    assert line.base_s == pytest.approx(0.0)
    assert line.persistence == pytest.approx(1.0)
    with pytest.raises(SpecError):
        service_line(rate, 0.0)


@given(st.floats(0.1, 0.9), st.integers(2, 200))
def test_least_load_is_near_the_quantile_of_the_law(utilisation: float, instances: int) -> None:
    levels = np.arange(400)
    law = stats.nbinom(5, 1 - utilisation)
    got = least_load_quantile(law.pmf(levels), instances)
    assert abs(got - float(law.ppf(1 / instances))) <= 1.0
    more = least_load_quantile(law.pmf(levels), 2 * instances)
    assert 0 <= more <= got


def test_recomputation_delays_as_the_derivative_of_the_mean_load() -> None:
    rate, base, slope, work = 0.5, 2.0, 0.9, 0.7
    mean = rate * base / (1 - rate * slope)
    line = ServiceLine(base, slope, mean)
    share = 1e-6
    moved = rate * base / (1 - rate * (slope + share * work))
    # request-seconds per move: change of the number present ÷ moves per second
    assert recompute_delay_s(work, line) == pytest.approx((moved - mean) / (rate * share), rel=1e-4)
    idle = ServiceLine(base, slope, 0.01)
    assert recompute_delay_s(work, idle) == pytest.approx(work)


@given(st.floats(0.01, 0.9), st.floats(0.01, 3))
def test_link_delay_is_the_derivative_of_the_number_in_transfer(load: float, alone: float) -> None:
    own = transfer_time_s(alone, load)
    assert own == pytest.approx(alone / (1 - load))
    assert shared_link_delay_s(alone, load) == pytest.approx(
        alone * load / (1 - load) ** 2, rel=2e-3, abs=1e-9
    )
    # more streams: less of either
    assert transfer_time_s(alone, load, 4) <= own
    assert shared_link_delay_s(alone, load, 4) <= shared_link_delay_s(alone, load) + 1e-9
    assert shared_link_delay_s(alone, 1.0) == transfer_time_s(alone, 1.2) == np.inf


def test_transfer_time_is_erlangs() -> None:
    # M/M/10 at 8 erlangs: P(wait) .409180
    assert transfer_time_s(1.0, 0.8, 10) == pytest.approx(1 + 0.409180 / 2, rel=1e-5)


def test_social_cost_is_never_below_the_private_one() -> None:
    cost = MoveCost(1.0, 0.5, 0.2, 0.3, 0.1)
    assert cost.private_s == 1.5
    assert cost.social_s == pytest.approx(2.1)
    with pytest.raises(SpecError, match="link_s"):
        MoveCost(link_s=-1.0)


def test_outside_the_domain_is_nan() -> None:
    assert np.isnan(overload_optimum(-1.0, 1.0, 0.0, 1.0))
    assert np.isnan(overload_optimum(1.0, 1.0, 0.0, 0.0))
    assert overload_optimum(1.0, 0.0, 0.0, 1.0) == np.inf
    assert np.isnan(hit_ratio_optimum(-1.0, 1.0, 0.0, 1.0))
    assert hit_ratio_optimum(0.0, 1.0, 0.0, 1.0) == 1.0
    assert np.isnan(matching_hit_weight(2.0, 0.0, 0.0, 1.0))
    assert overload_optimum(np.array([1.0, 2.0]), 1.0, 0.0, 1.0).shape == (2,)


def test_known_cell_of_the_decode_regime() -> None:
    """A = 2, E = 0.25, load 4, a fetch of 2 s: OVERLOAD* is what the balance gives by hand."""
    line = ServiceLine(2.0, 0.25, 4.0)
    assert line.sojourn_s == 3.0
    assert line.persistence == 0.6
    over = overload_optimum(2.0, line.saving_s, 1.0, line.mean_load)
    assert over == pytest.approx((1.0 + 2.0 / 0.3) / 4.0)
