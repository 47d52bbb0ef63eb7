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
    persistence_s,
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


@given(st.floats(0.0, 5), st.floats(0.05, 2), st.floats(0.05, 0.9))
def test_recomputation_delays_as_the_derivative_of_the_mean_load(
    base: float, slope: float, load: float
) -> None:
    """Poisson arrivals to ``A + E l``: negative binomial, whose mean is known at every speed."""
    rate, work = load / slope, 0.7
    sizes = base / slope + 1
    law = stats.nbinom(sizes, 1 - load).pmf(np.arange(4000))
    present = np.arange(4000.0)
    mean = law @ present
    served = present / np.maximum(base + slope * present, 1e-300)
    by_law = float((law * (present - mean)) @ served / (law @ (present - mean) ** 2))
    # an engine that pauses a share of the time: all times longer by 1 / (1 - share)
    share = 1e-6
    slower = load / (1 - share)
    moved = sizes * slower / (1 - slower)
    expected = work * (moved - sizes * load / (1 - load)) / share
    assert recompute_delay_s(work, rate, by_law) == pytest.approx(expected, rel=1e-3)


def test_a_full_instance_delays_by_a_finite_time() -> None:
    """M/M/1: at every load one more waits for all, and still the others' delay is bounded."""
    rate, completion = 0.8, 1.0
    law = 0.2 * 0.8 ** np.arange(400)
    loads = np.arange(400.0)
    served = np.where(loads > 0, completion, 0.0)
    mean = law @ loads
    slope = float((law * (loads - mean)) @ served / (law @ (loads - mean) ** 2))
    assert recompute_delay_s(1.0, rate, slope) == pytest.approx(0.8 / 0.2**2, rel=1e-6)
    with pytest.raises(SpecError, match="service_slope_rps"):
        recompute_delay_s(1.0, rate, 0.0)


@given(st.floats(0.01, 10), st.floats(0.01, 10))
def test_persistence_of_a_load_alone_is_half_its_relaxation(pace: float, spread: float) -> None:
    assert persistence_s([[-pace]], [[spread]]) == pytest.approx(0.5 / pace)


def test_persistence_is_the_integral_and_sessions_that_return_prolong_it() -> None:
    from scipy.integrate import quad
    from scipy.linalg import expm

    drift = np.array([[-0.1, 0.5], [0.09, -0.6]])
    spread = np.array([[5.0, 0.4], [0.4, 2.0]])

    def together(time: float) -> float:
        moved = expm(drift * time)
        return float(moved[1] @ spread[:, 1] / spread[1, 1] * moved[1, 1])

    found = persistence_s(drift, spread)
    assert found == pytest.approx(quad(together, 0, 400, limit=400)[0], rel=1e-6)
    apart = drift * np.eye(2)
    assert found > persistence_s(apart, spread)
    with pytest.raises(SpecError, match="variance"):
        persistence_s(drift, np.zeros((2, 2)))


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
    # the load alone relaxes at µ' = A / S²; 2 E I / S with I = S² / (2 A)
    saving = line.saving_s(persistence_s([[-2.0 / 9.0]], [[1.0]]))
    assert saving == pytest.approx(0.25 * 3.0 / 2.0)
    assert line.own_saving_s == pytest.approx(0.15)
    over = overload_optimum(2.0, saving, 1.0, line.mean_load)
    assert over == pytest.approx((1.0 + 2.0 / 0.375) / 4.0)


@pytest.mark.parametrize(
    ("base", "slope", "room", "load", "work"),
    [
        (2.0, 0.25, 400, 1.0, 1.0),
        (2.0, 0.25, 400, 4.0, 0.3),
        (1.0, 1.0, 400, 4.0, 1.0),
        (2.0, 0.25, 6, 5.5, 1.0),  # full most of the time: the slope at the mean load is 0
        (2.0, 0.25, 3, 2.5, 1.0),
    ],
)
def test_optimum_is_near_that_of_the_mean_field(
    base: float, slope: float, room: int, load: float, work: float
) -> None:
    """Moves that bring work: at OVERLOAD* requests stay at most 1 % longer than at the best."""
    from smetric_model.analytic.returns import TurnLaw
    from smetric_model.analytic.routed_cluster import RoutedCluster
    from smetric_model.analytic.stickiness import Stickiness, stickiness
    from smetric_model.analytic.think_times import ThinkTime
    from smetric_model.routing import make_policy

    present = np.minimum(np.arange(1.0, 400.0), room)

    def solved(overload: float) -> Stickiness:
        return stickiness(
            RoutedCluster(
                instances=32,
                arrival_rate_rps=32 * 0.97 * load / (base + slope * load),
                completion_rate_rps=present / (base + slope * present),
                policy=make_policy("smetric", {"overload": overload}),
                turns=TurnLaw.geometric(33),
                think_time=ThinkTime.exponential(15.0),
                move_work_ratio=work,
            )
        )

    overload = 2.0
    for _ in range(8):
        state = solved(overload)
        rate = state.cluster.rate_per_instance_rps
        line = service_line(state.completion_rate_rps, state.mean_load)
        cost = recompute_delay_s(work / rate, rate, state.noise.service_slope)
        saving = line.saving_s(persistence_s(state.noise.drift, state.noise.covariance))
        star = overload_optimum(cost, saving, state.joined_load_mean, line.mean_load)
        overload = float(np.sqrt(overload * min(star, 64.0)))
    best = min(solved(other).mean_load for other in (1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, np.inf))
    assert solved(overload).mean_load <= 1.01 * best
