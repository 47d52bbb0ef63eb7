from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic.imbalance import imbalance
from smetric_model.analytic.returns import TurnLaw
from smetric_model.analytic.routed_cluster import FollowUpHits, Frameworks, RoutedCluster
from smetric_model.analytic.shared_prefixes import holders_law
from smetric_model.analytic.stickiness import stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.errors import SpecError
from smetric_model.routing import make_policy

TURNS, GAP_S, FIXED, SLOPE, PREFIX = 33.0, 15.3, 2.0, 0.25, 10_000
OWN = np.array([1500, 3000, 6000])
HITS = np.array([[20000, 18000], [20000, 19500], [30000, 29000]])


def rates(levels=400):
    present = np.arange(1.0, levels)
    return present / (FIXED + SLOPE * present)


def zipf(count):
    shares = 1 / np.arange(1, count + 1) ** 0.8
    return shares / shares.sum()


def cluster(policy, count, instances=16, load=2.0, retention_s=40.0, **more):
    given = {
        "instances": instances,
        "arrival_rate_rps": load / (FIXED + SLOPE * load) * instances,
        "completion_rate_rps": rates(),
        "policy": policy,
        "turns": TurnLaw.geometric(TURNS),
        "think_time": ThinkTime.exponential(GAP_S),
        "follow_ups": FollowUpHits(HITS[:, 0], HITS[:, 1], None, float(PREFIX)),
        "frameworks": Frameworks(
            zipf(count), np.full(count, float(PREFIX)), OWN, retention_s, more.pop("after", np.inf)
        ),
    }
    return RoutedCluster(**(given | more))


@given(st.integers(2, 64), st.floats(0.05, 6))
def test_blind_placement_gives_every_instance_its_own_busy_period(instances, present):
    # each instance holds the prefix as an M/G/∞ queue is busy: 1 - exp(-mean)
    placed = 0.3
    births = placed * (1 - np.arange(instances + 1) / instances)
    law, _ = holders_law(births, placed, present * instances)
    held = law @ np.arange(instances + 1) / instances
    assert held == pytest.approx(1 - np.exp(-present), abs=0.02 + 0.3 / instances)


@given(st.integers(2, 40), st.floats(0.1, 4), st.floats(1.0, 1e6))
def test_prefixes_spread_in_time(instances, present, seconds):
    births = 0.02 * (1 - np.arange(instances + 1) / instances)
    means = [
        float(holders_law(births, 0.02, present * instances, t)[0] @ np.arange(instances + 1))
        for t in (seconds, 3 * seconds, 1e12, np.inf)
    ]
    assert means[0] <= means[1] + 1e-6 <= means[2] + 1e-3
    assert means[2] == pytest.approx(means[3], rel=1e-3)


@pytest.mark.parametrize("name", ["bailian", "lmetric"])
def test_first_turns_of_rare_frameworks_crowd(name):
    few = stickiness(cluster(make_policy(name), 1)).prefixes
    many = stickiness(cluster(make_policy(name), 50)).prefixes
    assert few.holders_mean[0] > 15
    assert many.holders_mean[0] < 0.75 * few.holders_mean[0]
    assert np.all(np.diff(many.holders_mean) <= 1e-9)  # the most popular first
    assert np.all(many.serving_instances() <= 16 + 1e-9)
    # over a long time a prefix wanders: more instances serve it
    assert np.all(many.serving_instances(36_000.0) >= many.serving_instances() - 1e-9)


def test_least_load_spreads_first_turns_whatever_the_prefix():
    solved = stickiness(cluster(make_policy("smetric"), 50))
    np.testing.assert_allclose(solved.prefixes.serving_instances(), 16)
    without = stickiness(cluster(make_policy("smetric"), 50, frameworks=None))
    assert solved.migrated_ratio == without.migrated_ratio
    assert solved.lasting_load_variation == 0


def test_crowding_makes_instances_unequal():
    balanced = stickiness(cluster(make_policy("lmetric"), 1, 16))
    crowded = stickiness(cluster(make_policy("lmetric"), 6, 32, 1.0))
    assert crowded.lasting_rate_variation > balanced.lasting_rate_variation
    law = imbalance(crowded, "processed_tokens", 60.0)
    even = imbalance(crowded, "processed_tokens", 60.0, lasting_squared_variation=0.0)
    assert law.mean > even.mean


def test_a_cold_cluster_has_its_prefixes_on_few():
    cold = stickiness(cluster(make_policy("lmetric"), 6, after=60.0))
    warm = stickiness(cluster(make_policy("lmetric"), 6))
    assert cold.prefixes.holders_mean[0] < warm.prefixes.holders_mean[0]


def test_longer_retention_spreads_prefixes():
    short, long = (
        stickiness(cluster(make_policy("bailian"), 20, retention_s=s)).prefixes.holders_mean
        for s in (20.0, 400.0)
    )
    assert np.all(long > short)


def test_popularity_is_a_law():
    with pytest.raises(SpecError, match="popularity"):
        Frameworks(np.array([0.5, 0.2]), np.ones(2), np.ones(1), 10.0)


@pytest.mark.parametrize(
    ("name", "count", "instances", "load"),
    [("smetric", 50, 16, 2.0), ("bailian", 6, 16, 2.0), ("lmetric", 50, 32, 1.0)],
)
def test_against_the_toy(run_toy, name, count, instances, load):
    rng = np.random.default_rng(7)
    policy = make_policy(name)
    rate = load / (FIXED + SLOPE * load) * instances
    toy = run_toy(
        policy, instances, rate, rates(), rng.geometric(1 / TURNS, 100_000),
        rng.exponential(GAP_S, 100_000), hits=HITS, popularity=zipf(count),
        prefix_tokens=np.full(count, PREFIX), first_own_tokens=OWN, retention_s=40.0,
        warmup_s=4000.0, requests=200_000,
    )  # fmt: skip
    solved = stickiness(
        cluster(
            policy, count, instances, load, arrival_rate_rps=toy.arrival_rate,
            turns=TurnLaw.from_follow_up_ratio(toy.follow_up_ratio),
        )
    )  # fmt: skip
    np.testing.assert_allclose(solved.prefixes.holders_mean[:4], toy.holders[:4], rtol=0.35)
    assert solved.migrated_ratio == pytest.approx(toy.migrated.sum(), abs=0.03)
    assert solved.mean_load == pytest.approx(toy.load_law @ np.arange(toy.load_law.size), rel=0.05)
    shares = toy.first_turns[:4]
    total = shares.sum(axis=1)
    serving = total * (total - 1) / (shares * (shares - 1)).sum(axis=1)
    # those of the moment, and those of hours if holders came and went independently, bracket it
    now, later = (solved.prefixes.serving_instances(t)[:4] for t in (0.0, 200_000 / rate))
    assert np.all(serving > 0.65 * now)
    assert np.all(serving < 1.4 * later)
