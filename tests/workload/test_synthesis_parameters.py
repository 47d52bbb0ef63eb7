"""Parameters, distributions, arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from synthesis_strategies import arrivals, counts, parameters, seconds, shares, tokens

from smetric_model.errors import SpecError
from smetric_model.workload.synthesis import WorkloadParameters
from smetric_model.workload.synthesis_arrivals import level_of, starts_after, starts_before
from smetric_model.workload.synthesis_distributions import (
    LogNormal,
    Quantiles,
    Uniform,
    distribution_from,
    distribution_to,
    mean_of,
    mean_of_counts,
    quantile_of,
    scaled,
)
from smetric_model.workload.synthesis_parameters import Arrivals, Frameworks
from smetric_model.workload.synthesis_sessions import mean_requests, mean_sessions

distributions = st.one_of(tokens, counts, shares, seconds)


@given(distributions, st.integers(0, 1_000))
@settings(max_examples=60)
def test_distributions_agree_with_themselves(distribution, seed) -> None:
    x = distribution.draw(np.random.default_rng(seed), 2_000)
    # the first draws do not depend on how many follow
    np.testing.assert_array_equal(x[:7], distribution.draw(np.random.default_rng(seed), 7))
    at = np.quantile(x, [0.05, 0.3, 0.5, 0.8, 0.97])
    below = distribution.below(at)
    empirical = np.array([(x <= value).mean() for value in at])
    assert (np.diff(below) >= 0).all()
    # Kolmogorov: 2,000 draws stay within .05 (p < 1e-8); atoms of rounding aside
    assert np.abs(below - empirical).max() < 0.05 or np.unique(x).size < 10
    quantiles = distribution.quantile(np.array([0.0, 0.2, 0.5, 0.9, 1.0]))
    assert (np.diff(quantiles) >= 0).all()
    assert (x >= quantiles[0]).all()
    assert (x <= quantiles[-1]).all()


@given(distributions)
def test_distributions_survive_toml(distribution) -> None:
    written = distribution_to(distribution)
    assert distribution_from(written, "key") == distribution


@given(counts)
def test_mean_of_counts_is_the_mean_of_rounded_draws(distribution) -> None:
    raw = distribution.draw(np.random.default_rng(0), 200_000)
    assume(not (raw.std() == 0 and raw[0] % 1 == 0.5))  # a constant halfway rounds either way
    x = np.maximum(np.rint(raw), 1)
    error = 6 * x.std() / np.sqrt(x.size) + 1e-4
    assert mean_of_counts(distribution) == pytest.approx(x.mean(), abs=error)


def test_means() -> None:
    assert mean_of(LogNormal(10.0, 0.5)) == pytest.approx(10 * np.exp(0.125), rel=1e-3)
    assert mean_of(Uniform(1.0, 3.0)) == 2.0
    assert quantile_of(scaled(LogNormal(10.0, 0.5, 1.0, 20.0), 2.0), 1.0) == 40.0
    # log-linear between points: the median of 1 … 100 is 10
    assert quantile_of(Quantiles(((0.0, 1.0), (1.0, 100.0))), 0.5) == pytest.approx(10.0)


@given(parameters())
@settings(max_examples=30)
def test_parameters_survive_toml(tmp_path_factory, p) -> None:
    path = tmp_path_factory.mktemp("parameters") / "p.toml"
    p.to_toml(path)
    assert WorkloadParameters.from_toml(path) == p


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("rate = 1", "rate: unknown key"),
        ("rate_rps = 0", "rate_rps = 0: a finite number above 0"),
        ('rate_rps = "fast"', "rate_rps = 'fast'"),
        ("[sessions]\nturns = 7\nturn = 8", "sessions.turn: unknown key"),
        ("[sessions]\nturns = {median = 7, sigma = 1}", "sessions.turns = 'up to inf'"),
        ("[sessions]\nturns = {median = 7}", "sessions.turns: .*is needed"),
        ("[sessions]\nuser_ratio = 1.5", "sessions.user_ratio = 1.5"),
        ("[history]\nkept_ratio = {low = 0, high = 2}", "history.kept_ratio"),
        ("[history]\nrewrite_ratio = 0.7\ncompaction_ratio = 0.7", "at most 1"),
        ("[history]\nrewrite_spread = 1.0", "below 1"),
        ("[think]\ntool_s = [{median = 1, sigma = 1}]", "think.tool_s: .*weight"),
        ("[think]\ntool_s = {quantiles = [[0.1, 2], [1, 3]]}", "growing from 0 to 1"),
        ("[tenants]\nsalted = 1", "tenants.salted = 1: true or false"),
        ("[arrivals]\nkind = 'bursty'", "arrivals.kind = 'bursty': one of poisson"),
        ("[arrivals]\nkind = 'mmpp'\nlevels = [1.0]", "same number of entries"),
        ("sessions = 3", "sessions = 3: a table is needed"),
        ("[sessions]\ncontext_limit_tokens = 100", "longest system prompt"),
        ("block_tokens = 1.5", "block_tokens = 1.5: an integer"),
        ("x", "not TOML"),
    ],
)
def test_wrong_parameters_say_where(tmp_path, text, match) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=match) as error:
        WorkloadParameters.from_toml(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_and_wrong_change(tmp_path) -> None:
    with pytest.raises(SpecError, match="no such parameter file"):
        WorkloadParameters.from_toml(tmp_path / "none.toml")
    with pytest.raises(SpecError, match=r"sessions\.turn: no such parameter"):
        WorkloadParameters().replace(**{"sessions.turn": 3})


def test_framework_lengths_cover_their_distribution() -> None:
    system, whole = Frameworks(50, 1.0, LogNormal(1_000.0, 0.5), 3).prefix_tokens()
    assert np.median(system) == pytest.approx(1_000, rel=0.05)
    assert np.log(system).std() == pytest.approx(0.5, rel=0.1)
    assert (whole > system[:, None]).all()
    assert Frameworks(3, 1.0).shares() == pytest.approx(np.array([6, 3, 2]) / 11)


def test_mean_size_of_a_family() -> None:
    p = WorkloadParameters().replace(
        **{
            "sessions.turns": LogNormal(10.0, 0.0, high=20.0),
            "forks.turns": LogNormal(4.0, 0.0, high=20.0),
            "forks.spawn_ratio": 0.1,
            "forks.levels": 2,
        }
    )
    # 10 turns spawn 2 subagents of 4 turns; these 8 turns spawn 1.6 of 4
    assert mean_sessions(p) == pytest.approx(1 + 2 + 1.6)
    assert mean_requests(p) == pytest.approx(10 + 8 + 6.4)


# -- arrivals --------------------------------------------------------------------------------------


def made(kind: Arrivals, seed: int, rate: float, window_s: float, history_s: float):
    streams = [np.random.default_rng([seed, k]) for k in range(4)]
    level = level_of(kind, history_s, window_s, streams[0], streams[1])
    after = starts_after(streams[2], level, rate, window_s)
    before = starts_before(streams[3], level, rate, history_s)
    return level, after, before


@given(arrivals, st.integers(0, 1_000))
@settings(max_examples=40)
def test_starts_lie_in_the_window_in_order(kind, seed) -> None:
    _, after, before = made(kind, seed, 0.3, 500.0, 800.0)
    assert (np.diff(after) >= 0).all()
    assert ((after >= 0) & (after < 500)).all()
    assert (np.diff(before) <= 0).all()
    assert ((before <= 0) & (before > -800)).all()


@given(arrivals, st.integers(0, 1_000))
@settings(max_examples=20)
def test_a_higher_rate_uses_the_same_numbers(kind, seed) -> None:
    level, slow, _ = made(kind, seed, 0.3, 500.0, 10.0)
    _, fast, _ = made(kind, seed, 0.6, 500.0, 10.0)
    # on the stretched clock the fast starts are the slow ones at half the time
    count = min(slow.size, fast.size)
    clock = [np.interp(x[:count], level.time_s, level.integral_s) for x in (slow, fast)]
    flat = np.interp(fast[:count], level.time_s, level.integral_s) <= level.integral_s[-1]
    np.testing.assert_allclose(clock[0][flat], 2 * clock[1][flat], rtol=1e-6, atol=1e-6)


def test_poisson_counts() -> None:
    counts = [made(Arrivals(), seed, 0.5, 400.0, 1.0)[1].size for seed in range(400)]
    assert np.mean(counts) == pytest.approx(200, abs=4 * np.sqrt(200 / 400))
    assert np.var(counts) == pytest.approx(200, rel=0.3)


def test_modulated_counts_keep_the_mean_and_vary_more() -> None:
    kind = Arrivals("mmpp", levels=(0.2, 3.0), dwell_s=(300.0, 100.0))
    counts = [made(kind, seed, 0.5, 2_000.0, 1.0)[1].size for seed in range(400)]
    assert np.mean(counts) == pytest.approx(1_000, rel=0.06)
    assert np.var(counts) > 5 * np.mean(counts)


def test_diurnal_starts_follow_the_sine() -> None:
    kind = Arrivals("diurnal", amplitude_ratio=0.8, period_s=1_000.0, peak_s=250.0)
    _, after, before = made(kind, 1, 50.0, 4_000.0, 4_000.0)
    for starts in (after, before):
        phase = np.histogram(starts % 1_000, bins=4, range=(0, 1_000))[0] / starts.size
        # quarters around the peak at 250 and the trough at 750: 1/4 ± amplitude/(2π)·…
        expected = 0.25 + 0.8 / (2 * np.pi) * np.array([1, 1, -1, -1])
        np.testing.assert_allclose(phase, expected, atol=0.01)
    assert after.size == pytest.approx(200_000, rel=0.02)
