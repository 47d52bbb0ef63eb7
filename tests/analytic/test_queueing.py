from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic.busy_periods import (
    BusyPeriods,
    bursty_queue,
    busy_period_counts,
    condensed,
)
from smetric_model.analytic.queueing import (
    erlang_c,
    fitting_counts,
    number_in_system,
    state_dependent_queue,
    waiting_law,
)

LOADS = st.floats(0.05, 0.95)
ONE = np.array([1.0])


def at(law, x):
    cdf, step = law
    return np.interp(x, np.arange(cdf.size) * step, cdf)


# --- Erlang C and state-dependent service --------------------------------------------------------


def test_erlang_c_known_value():
    waiting = erlang_c(10, 8.0)
    assert waiting == pytest.approx(0.409180, abs=5e-7)
    assert waiting / (10 - 8) == pytest.approx(0.204590, abs=5e-7)


@given(servers=st.integers(1, 60), load=LOADS)
def test_state_dependent_queue_is_erlang_c(servers, load):
    rates = np.arange(1.0, servers + 1)
    probabilities, ratio = state_dependent_queue(load * servers, rates)
    waiting = probabilities[-1] / (1 - ratio)
    assert waiting == pytest.approx(erlang_c(servers, load * servers), rel=1e-9)
    in_service, queue = number_in_system(probabilities, ratio)
    assert in_service == pytest.approx(load * servers, rel=1e-9)
    assert queue == pytest.approx(waiting * load / (1 - load), rel=1e-9)


def test_erlang_c_unstable_waits_for_certain():
    assert erlang_c(3, 3.0) == 1.0
    assert erlang_c(1, 0.3) == pytest.approx(0.3)


@given(
    fixed=st.floats(0.002, 0.05),
    slope=st.floats(1e-5, 0.01),
    prefill=st.floats(0.01, 5.0),
    output=st.floats(2, 2000),
    load=LOADS,
)
def test_linear_step_time_gives_negative_binomial(fixed, slope, prefill, output, load):
    rate = load / (prefill + output * slope)
    level = np.arange(1.0, 60_000.0)
    rates = 1.0 / (prefill + output * (fixed + slope * level) / level)
    probabilities, ratio = state_dependent_queue(rate, rates)
    # ratio of neighbours: λ (w + O e) + λ O a / l, a negative binomial with p = λ (w + O e)
    p, per_level = rate * (prefill + output * slope), rate * output * fixed
    size = 1 + per_level / p
    assert probabilities[0] == pytest.approx((1 - p) ** size, rel=1e-6)
    assert number_in_system(probabilities, ratio)[0] == pytest.approx(size * p / (1 - p), rel=1e-5)


def test_no_steady_state_is_nan():
    probabilities, ratio = state_dependent_queue(2.0, [0.5, 1.0])
    assert ratio == 2.0
    assert np.isnan(probabilities).all()


# --- fitting -------------------------------------------------------------------------------------


@given(size=st.integers(1, 400), capacity=st.integers(400, 5000))
def test_equal_sizes_fit_whole_times(size, capacity):
    assert fitting_counts([size], [1.0], capacity, 10_000).sum() == capacity // size


def test_random_sizes_fit_as_drawn():
    random = np.random.default_rng(1)
    size = np.minimum(random.lognormal(0.0, 1.0, 3000), 15.0)
    law = fitting_counts(size, np.ones(size.size), 15.0, 1000)
    drawn = (random.choice(size, (20_000, 200)).cumsum(axis=1) <= 15.0).sum(axis=1)
    for n in range(1, 20):
        assert law[n - 1] == pytest.approx((drawn >= n).mean(), abs=0.015)
    assert fitting_counts(size, np.ones(size.size), 15.0, 4).size == 4


@given(seed=st.integers(0, 1000), items=st.floats(2.0, 300.0), spread=st.floats(0.05, 1.5))
@settings(max_examples=20)
def test_fitting_counts_do_not_depend_on_the_cells(seed, items, spread):
    size = np.random.default_rng(seed).lognormal(0.0, spread, 300)
    capacity = items * size.mean()
    given = np.minimum(size, capacity), size, capacity, 1000
    assert fitting_counts(*given).sum() == pytest.approx(
        fitting_counts(*given, points=1 << 14).sum(), rel=1e-3
    )


# --- waiting -------------------------------------------------------------------------------------


@given(load=LOADS)
@settings(max_examples=20)
def test_wait_mm1(load):
    share = (np.arange(4000) + 0.5) / 4000
    work = -np.log1p(-share)
    law = waiting_law(work, np.ones(work.size), load, 25.0 / (1 - load))
    assert law[0][0] == pytest.approx(1 - load * work.mean())
    x = np.linspace(0.5, 10 / (1 - load), 20)
    assert at(law, x) == pytest.approx(1 - load * np.exp(-(1 - load) * x), abs=0.002)


@given(load=st.floats(0.1, 0.9))
@settings(max_examples=20)
def test_wait_md1_is_erlangs(load):
    law = waiting_law(ONE, ONE, load, 40.0, 1 << 13)
    assert law[0][0] == pytest.approx(1 - load)
    for x in (0.5, 1.5, 2.5, 3.7):
        # Erlang 1909: P(W <= x) = (1-ρ) Σ_k (ρ(k-x))^k / k! e^{-ρ(k-x)}
        k = np.arange(int(x) + 1)
        factorial = np.cumprod(np.concatenate(([1.0], np.arange(1.0, k.size))))
        exact = (1 - load) * np.sum((load * (k - x)) ** k / factorial * np.exp(-load * (k - x)))
        assert at(law, x) == pytest.approx(exact, abs=0.002)


def test_wait_of_unstable_queue_never_ends():
    assert not waiting_law(ONE, ONE, 1.0, 10.0)[0].any()


@given(seed=st.integers(0, 1000), load=st.floats(0.05, 0.9))
@settings(max_examples=20)
def test_wait_in_mean_is_pollaczek_khinchines(seed, load):
    work = np.random.default_rng(seed).lognormal(0.0, 1.0, 200)
    weights = np.linspace(1.0, 2.0, work.size)
    mean, second = np.average(work, weights=weights), np.average(work**2, weights=weights)
    wait = load * second / mean / (2 * (1 - load))
    cdf, step = waiting_law(work, weights, load / mean, 12 * wait / load + 2 * work.max(), 1 << 11)
    beyond = 1 - cdf
    assert step * (beyond.sum() - 0.5 * beyond[0]) == pytest.approx(wait, rel=0.01)


# --- busy periods --------------------------------------------------------------------------------


@given(load=st.floats(0.05, 0.9))
@settings(max_examples=20)
def test_counts_of_constant_work_are_borel(load):
    over = busy_period_counts(ONE, ONE, load, 40)
    n = np.arange(1.0, 41.0)
    log_factorial = np.cumsum(np.log(n))
    borel = np.exp(-load * n + (n - 1) * np.log(load * n) - log_factorial)
    assert -np.diff(over) == pytest.approx(borel, abs=1e-8)
    assert over[0] == pytest.approx(1.0, abs=1e-9)


@given(load=st.floats(0.05, 0.8), seed=st.integers(0, 100))
@settings(max_examples=15)
def test_busy_period_means(load, seed):
    work = np.random.default_rng(seed).lognormal(0.0, 0.5, 40)
    share = np.full(40, 1 / 40)
    rate = load / work.mean()
    assert busy_period_counts(work, share, rate, 1000).sum() == pytest.approx(
        1 / (1 - load), rel=5e-3
    )
    interval = 3.0
    busy = BusyPeriods(work, share, rate, 40 * work.max() / (1 - load) ** 2, points=1 << 11)
    cdf = busy.delay_cdf(interval)
    mean = (1 - cdf).sum() * busy.step_s
    assert mean == pytest.approx(interval * load / (1 - load), rel=0.02)
    assert (np.diff(cdf) >= -1e-7).all()
    # a fine grid: no delay unless somebody arrives
    fine = BusyPeriods(work, share, rate, 10 * work.max()).delay_cdf(interval)
    assert fine[0] == pytest.approx(np.exp(-rate * interval), abs=2e-3)


def test_those_who_interrupt_may_be_others_than_those_who_come_meanwhile():
    rng = np.random.default_rng(5)
    work, share = np.array([0.2, 1.5]), np.array([0.8, 0.2])
    first, first_share = np.array([0.5, 3.0]), np.array([0.6, 0.4])
    rate, first_rate, interval = 1.1, 0.3, 4.0
    law = BusyPeriods(
        work, share, rate, 80.0, points=1 << 12, first=(first, first_share, first_rate)
    )
    cdf = law.delay_cdf(interval)
    delays = np.zeros(20_000)
    for i in range(delays.size):
        left = rng.choice(first, rng.poisson(first_rate * interval), p=first_share).sum()
        while left > 0:  # the works of those who come during it, generation by generation
            delays[i] += left
            left = rng.choice(work, rng.poisson(rate * left), p=share).sum()
    mean = interval * first_rate * (first @ first_share) / (1 - rate * (work @ share))
    assert (1 - cdf).sum() * law.step_s == pytest.approx(mean, rel=0.02)
    for delay in (0.5, 3.0, 10.0, 25.0):
        met = cdf[round(delay / law.step_s)]
        assert (delays <= delay).mean() == pytest.approx(met, abs=0.015)
    same = BusyPeriods(work, share, rate, 80.0, first=(work, share, rate)).delay_cdf(interval)
    assert same == pytest.approx(BusyPeriods(work, share, rate, 80.0).delay_cdf(interval), abs=1e-6)


@given(load=LOADS, size=st.integers(2, 60))
def test_bursts_of_one_are_a_birth_death_queue(load, size):
    rates = np.arange(1.0, size + 1)
    weights, bursts = bursty_queue(
        load * size, np.zeros(size + 1) + (np.arange(size + 1) == 0), rates
    )
    probabilities, _ = state_dependent_queue(load * size, rates)
    assert weights / weights.sum() == pytest.approx(
        probabilities[:-1] / probabilities[:-1].sum(), rel=1e-9
    )
    assert bursts == pytest.approx(load * size * weights)


@given(size=st.integers(1, 5000), seed=st.integers(0, 100))
def test_condensed_keeps_mean_and_tail(size, seed):
    work = np.random.default_rng(seed).lognormal(0.0, 1.5, size)
    values, weights = condensed(work, 24)
    assert weights.sum() == pytest.approx(1.0)
    assert values @ weights == pytest.approx(work.mean(), rel=1e-9)
    assert (values * values) @ weights == pytest.approx((work * work).mean(), rel=0.05)
    assert values.max() <= work.max() * (1 + 1e-12)
