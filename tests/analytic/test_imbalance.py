from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic.imbalance import imbalance, imbalance_columns, largest_over_mean
from smetric_model.analytic.request_weights import RequestWeights
from smetric_model.analytic.returns import TurnLaw
from smetric_model.analytic.routed_cluster import RoutedCluster
from smetric_model.analytic.stickiness import stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.errors import SpecError
from smetric_model.routing import make_policy
from smetric_model.schema import load_schema

TURNS, GAP_S, FIXED, SLOPE = 33.0, 15.3, 2.0, 0.25


def rates(levels=400):
    present = np.arange(1.0, levels)
    return present / (FIXED + SLOPE * present)


def cluster(policy, load, instances=32, rate=None, follow=1 - 1 / TURNS):
    return RoutedCluster(
        instances=instances,
        arrival_rate_rps=rate or load / (FIXED + SLOPE * load) * instances,
        completion_rate_rps=rates(),
        policy=policy,
        turns=TurnLaw.from_follow_up_ratio(follow),
        think_time=ThinkTime.exponential(GAP_S),
    )


@given(st.floats(1e-4, 5), st.integers(2, 300))
def test_largest_share_is_between_even_and_all(spread, instances):
    ratio = largest_over_mean(spread, instances)
    assert 1 <= ratio <= instances
    assert ratio <= largest_over_mean(spread * 1.5, instances) + 1e-9
    assert ratio <= largest_over_mean(spread, instances + 1) + 1e-9


def test_largest_share_of_exponentials_is_harmonic():
    # E[max of N exponentials] = 1 + 1/2 + … + 1/N
    for instances in (2, 8, 32, 128):
        harmonic = (1 / np.arange(1, instances + 1)).sum()
        assert largest_over_mean(1.0, instances) == pytest.approx(harmonic, rel=2e-3)


@pytest.mark.parametrize("spread", [0.01, 0.1, 0.6])
def test_quantiles_of_the_largest_share(spread):
    rng = np.random.default_rng(4)
    draws = rng.gamma(1 / spread, spread, (40_000, 32))
    ratio = draws.max(axis=1) / draws.mean(axis=1)
    solved = stickiness(cluster(make_policy("random"), 1.0))
    law = imbalance(solved, "requests", 1e9, lasting_squared_variation=spread)
    assert law.squared_variation == pytest.approx(spread, rel=0.01)
    assert law.mean == pytest.approx(ratio.mean(), rel=0.005)
    for level in (0.5, 0.75, 0.9, 0.99):
        assert law.quantile(level) == pytest.approx(np.quantile(ratio, level), rel=0.025)


def test_poisson_counts_where_nothing_lingers():
    # always sticky with sessions of one turn: an M/G/1-PS like queue whose output over long
    # windows is as variable as its input
    single = cluster(make_policy("random"), 1.0, follow=0.0)
    law = imbalance(stickiness(single), "processed_tokens", 3000.0)
    expected = 1 / (single.rate_per_instance_rps * 3000.0)
    assert law.squared_variation == pytest.approx(expected, rel=0.05)


def test_variation_falls_with_the_window():
    solved = stickiness(cluster(make_policy("smetric"), 2.0))
    weights = RequestWeights(1.0)
    for quantity in ("processed_tokens", "inflight_tokens", "requests", "unprefilled_tokens"):
        means = [imbalance(solved, quantity, t, weights).mean for t in (10.0, 60.0, 600.0)]
        assert means[0] > means[1] > means[2] > 1


def test_session_ratio_says_how_much_returns():
    solved = stickiness(cluster(make_policy("smetric"), 2.0))
    own = imbalance(solved, "processed_tokens", 60.0, RequestWeights(1.0, 0.0))
    rate = solved.cluster.rate_per_instance_rps
    assert own.from_weights == pytest.approx(1 / (60 * rate))
    parts = own.from_counts + own.from_weights + own.lasting
    assert own.squared_variation == pytest.approx(parts)
    shared = imbalance(solved, "processed_tokens", 60.0, RequestWeights(1.0, 1.0))
    # a session comes back every 18 s or so: about four times in the window
    assert 2.5 < shared.from_weights / own.from_weights < 5.0


def test_weights_of_a_sample():
    rng = np.random.default_rng(1)
    session = np.repeat(np.arange(500), 8)
    between = np.repeat(rng.lognormal(0, 0.6, 500), 8)
    weights = RequestWeights.of(between, session)
    assert weights.session_ratio == pytest.approx(1.0)
    mixed = RequestWeights.of(rng.lognormal(0, 0.6, 4000), session)
    assert mixed.session_ratio < 0.25
    assert RequestWeights.of(np.full(10, 3.0)).squared_variation == 0
    with pytest.raises(SpecError):
        RequestWeights(-1.0)


def variation_in_windows(at_s, amounts, window_s, length_s):
    """Squared variation of what falls into windows; amounts last for lengths from their start."""
    edges = np.arange(0.0, at_s[-1], window_s)
    total = np.append(0.0, np.cumsum(amounts))
    # amounts processed by a time: whole ones, and the parts of those under way
    order = np.argsort(at_s + length_s)
    ended = np.append(0.0, np.cumsum(amounts[order]))
    done = ended[np.searchsorted((at_s + length_s)[order], edges, side="right")]
    begun = total[np.searchsorted(at_s, edges, side="right")]
    if length_s.any():
        for k, edge in enumerate(edges):
            low, high = np.searchsorted(at_s, [edge - length_s.max(), edge], side="right")
            part = np.clip((edge - at_s[low:high]) / np.maximum(length_s[low:high], 1e-12), 0, 1)
            under = part < 1
            done[k] += (amounts[low:high] * part)[under].sum()
        processed = np.diff(done)
    else:
        processed = np.diff(begun)
    processed = processed[5:-5]
    return processed.var() / processed.mean() ** 2


@pytest.mark.parametrize("window", [5.0, 30.0])
def test_what_is_computed_is_spread_over_its_prefill(window):
    rng = np.random.default_rng(8)
    n, rate = 60_000, 0.2
    at = np.cumsum(rng.exponential(1 / rate, n))
    computed = np.where(rng.random(n) < 0.3, rng.uniform(30e3, 60e3, n), 1e3)
    reused = np.where(computed > 1e3, 0.0, rng.uniform(5e3, 40e3, n))
    length = computed / 5e3
    both = np.concatenate((at, at + 1e-9)), np.concatenate((computed, reused))
    lengths = np.concatenate((length, np.full(n, 1e-9)))
    order = np.argsort(both[0])
    found = variation_in_windows(both[0][order], both[1][order], window, lengths[order])
    weights = RequestWeights.of(computed + reused).of_engine(computed + reused, computed, length, 0)
    poisson = (1 + weights.squared_variation) / (rate * window)
    assert weights.seen_ratio(window) * poisson == pytest.approx(found, rel=0.05)
    assert found < 0.93 * poisson


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_prefills_of_a_full_instance_stop_those_that_make_room(share):
    # completions at random on decode's clock, each replaced at once by one that is prefilled first
    rng = np.random.default_rng(9)
    n = 200_000
    work = rng.gamma(0.5, 2.0, n)
    tokens = 2_000.0 + 500.0 * work + rng.exponential(500.0, n)
    at = np.cumsum(rng.exponential((1 - share) / share, n) + work)
    assert n / at[-1] == pytest.approx(share, rel=0.02)  # work of 1 s on average
    window = 60.0
    found = variation_in_windows(at, tokens, window, np.zeros(n))
    weights = RequestWeights.of(tokens).of_engine(tokens, 0 * tokens, work, share)
    closed = ((1 - share) ** 2 + weights.variation_beside(share)) / (share * window)
    assert closed == pytest.approx(found, rel=0.08)
    assert closed < 0.9 * (1 + weights.squared_variation) / (share * window)


def test_columns_have_the_schema_s_names():
    solved = stickiness(cluster(make_policy("smetric"), 2.0))
    names = ("processed_tokens", "inflight_tokens", "unprefilled_tokens")
    columns = imbalance_columns(solved, dict.fromkeys(names, RequestWeights(1.0)))
    known = {name for name in load_schema("outcome") if name.startswith("imbalance")}
    assert set(columns) == known
    for quantity in (*names, "requests"):
        ordered = [columns[f"imbalance_{quantity}_60s_{s}"] for s in ("median", "p75", "p99")]
        assert ordered == sorted(ordered)
        assert columns[f"imbalance_{quantity}_60s_max"] >= ordered[1]


def test_errors():
    solved = stickiness(cluster(make_policy("smetric"), 2.0))
    with pytest.raises(SpecError, match="window_s"):
        imbalance(solved, "requests", 0.0)
    with pytest.raises(SpecError, match="quantity"):
        imbalance(solved, "tokens", 60.0)
    with pytest.raises(SpecError, match="statistic"):
        imbalance(solved, "requests", 60.0).statistic("p17")


TOLERANCE = {"requests": 0.09, "processed_tokens": 0.06, "inflight_tokens": 0.09}


@pytest.mark.parametrize(
    ("name", "parameters", "load"),
    [
        ("smetric", {"overload": 1.5}, 2.0),
        ("smetric", {"overload": 2.0}, 8.0),
        ("load-balance", {}, 2.0),
        ("random", {}, 2.0),
        ("power-of-two", {}, 4.0),
    ],
)
def test_against_the_toy(run_toy, name, parameters, load):
    rng = np.random.default_rng(7)
    policy = make_policy(name, parameters)
    amounts = rng.lognormal(0, 0.7, 100_000)
    rate = load / (FIXED + SLOPE * load) * 32
    toy = run_toy(
        policy, 32, rate, rates(), rng.geometric(1 / TURNS, 100_000),
        rng.exponential(GAP_S, 100_000), weights=amounts, warmup_s=3000.0, requests=250_000,
    )  # fmt: skip
    solved = stickiness(cluster(policy, load, 32, toy.arrival_rate, toy.follow_up_ratio))
    weights = RequestWeights.of(amounts)
    for quantity, tolerance in TOLERANCE.items():
        ratio = toy.max_over_mean(quantity)
        law = imbalance(solved, quantity, 60.0, weights)
        if name != "load-balance":  # there the requests are almost even
            assert law.mean - 1 == pytest.approx(ratio.mean() - 1, rel=0.2)
        assert law.mean == pytest.approx(ratio.mean(), rel=tolerance)
        assert law.quantile(0.75) == pytest.approx(np.quantile(ratio, 0.75), rel=1.3 * tolerance)
    assert solved.resident_variance == pytest.approx(toy.resident_variance, rel=0.15)
    size = max(solved.load_law.size, toy.load_law.size)
    law = np.zeros((2, size))
    law[0, : solved.load_law.size] = solved.load_law_over_time
    law[1, : toy.load_law.size] = toy.load_law
    assert 0.5 * np.abs(law[0] - law[1]).sum() < 0.05
    assert solved.largest_load_mean == pytest.approx(toy.mean_maximum, rel=0.08)
