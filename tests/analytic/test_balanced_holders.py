"""Holders of a prefix and instances in use under routers that place by load alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from smetric_model import Scenario, predict, simulate
from smetric_model.analytic import _balanced_kernels as kernels
from smetric_model.analytic.balanced_holders import balanced_holding_of
from smetric_model.analytic.cluster import ColocatedCluster
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.prefix_holders import ColdCluster, returns_of
from smetric_model.workload.trace import load_trace

DATA = Path(__file__).parents[2] / "data"
BASE = Scenario.from_toml(DATA / "scenarios" / "agents-small.toml")
TRACE = load_trace(DATA / "traces" / "agents-small.parquet")
N = 40.0
THINK = np.array([[0.6, 0.4], [10.0, 60.0]])
SHARES = np.array([0.3, 0.1, 0.02, 0.0])
SMETRIC = ["smetric", "smetric-basic", "smetric-slo"]


def held(visit_s, end_s=1e7, placed=0.05, placed_cold=0.0, instances=N):
    out = np.empty((4, SHARES.size))
    rates = (instances, 6.0, placed, placed_cold)
    kernels.balanced_holders(SHARES, THINK, rates, (0.3, visit_s), 0.5, end_s, out)
    return out


@pytest.mark.parametrize("visit_s", [60.0, 200.0, 600.0])
def test_placements_that_hit_a_new_instance_balance_losses(visit_s):
    holders, lost, spills, more = held(visit_s)
    rate = 6.0 * SHARES * 0.05
    births, deaths = rate * (1 - holders / N), holders * lost
    inside = (holders > 1.01) & (SHARES > 0)
    assert inside.any()
    assert births[inside] == pytest.approx(deaths[inside], rel=1e-3)
    assert (more >= 1).all()
    assert (spills == 0).all()


def test_prefixes_that_are_never_lost_reach_all_exponentially():
    end_s = 300.0
    holders = held(1e9, end_s)[0]
    start = 1.0 + 6.0 * SHARES * 0.5
    expected = N - (N - start) * np.exp(-6.0 * SHARES * 0.05 / N * end_s)
    assert holders == pytest.approx(expected, rel=0.04)  # growing steps of time


def test_sessions_that_come_for_the_first_time_make_holders():
    assert (held(1e9, 300.0, placed_cold=0.9)[0][:3] > held(1e9, 300.0)[0][:3]).all()


def in_use(load, placements, instances, cold_load=None):
    law = np.maximum(stats.poisson.pmf(np.arange(60), load), 1e-300)
    loads = (load, load if cold_load is None else cold_load)
    return kernels.instances_in_use(law, loads, THINK, (instances, placements / 1e4, 0.0), 1e4)


@pytest.mark.parametrize(("load", "instances"), [(0.3, 120), (0.1, 200), (0.8, 150)])
def test_instances_in_use_against_the_walk_itself(load, instances):
    # the last that served is one of those in use, the next idle one after it is placed on
    placements, ends = 800, []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        used = 1
        for _ in range(placements):
            idle = np.exp(-load * instances / used)
            busy = rng.random(rng.integers(used)) >= idle  # those from the next one to the end
            used = min(used + int(busy.all()), instances)
        ends.append(used)
    found = in_use(load, placements, float(instances))
    assert found == pytest.approx(np.mean(ends), rel=0.06)


def test_small_or_busy_clusters_are_used_whole():
    assert in_use(0.3, 300, 24.0) == 24.0
    assert in_use(40.0, 150, 120.0) == 120.0
    used = [in_use(0.3, placements, 120.0) for placements in (50, 200, 800, 3200)]
    assert used == sorted(used)
    assert used[0] < 40
    assert in_use(0.1, 100, 200.0, cold_load=2.0) > in_use(0.1, 100, 200.0)


@pytest.fixture(scope="module")
def solved():
    answers = {}

    def of(policy, rate_rps=5.0, **changes):
        key = (policy, rate_rps, *changes.items())
        if key not in answers:
            named = {name.replace("__", "."): value for name, value in changes.items()}
            asked = BASE.replace(**{"router.policy": policy, **named})
            cluster = ColocatedCluster(asked, demand_of(asked, TRACE))
            answers[key] = cluster, cluster.at(rate_rps)
        return answers[key]

    return of


def holding(cluster, state):
    cold = ColdCluster.of(cluster.work, cluster.model)
    given = (cluster.work, state.routed, state.stay_rule, state.hits, state.pace, cold)
    return balanced_holding_of(*given)


@pytest.mark.parametrize("policy", SMETRIC)
def test_holders_are_some_of_the_instances_in_use(solved, policy):
    cluster, state = solved(policy)
    found = holding(cluster, state)
    assert 0 < found.used_ratio <= 1
    most = cluster.instances * found.used_ratio
    assert ((found.holders >= 1) & (found.holders <= most + 1e-9)).all()
    moved = returns_of(cluster.work, found, state.stay_rule, state.hits, state.routed, state.pace)
    assert all(0 <= value <= 1 for value in moved)
    causes = moved.overload_ratio + moved.evicted_ratio + moved.other_ratio
    assert moved.previous_ratio + causes == pytest.approx(1)


def test_large_clusters_at_low_rates_leave_instances_idle(solved):
    cluster, state = solved("smetric-basic", 0.5, cluster__instances=256)
    found = holding(cluster, state)
    assert found.used_ratio < 0.9
    literal = {"cluster__instances": 256, "router__tie_break": "first"}
    assert holding(*solved("smetric-basic", 0.5, **literal)).used_ratio == 1.0


def test_a_guard_does_not_pass_a_prefix_shorter_than_it_asks_for(solved):
    cluster, state = solved("smetric")
    tier, rule = cluster.work.everyone, state.stay_rule
    assert (tier.passes_prefix(replace(rule, least_hit_ratio=None)) == (tier.shared > 0)).all()
    shares = [
        tier.passes_prefix(replace(rule, least_hit_ratio=least)).mean() for least in (0, 0.2, 0.9)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


@pytest.mark.parametrize("policy", SMETRIC)
def test_where_follow_ups_go_is_as_simulated(policy):
    scenario = BASE.replace(**{"router.policy": policy, "workload.rate_rps": 5.0})
    simulated = simulate(scenario, TRACE)
    asked = scenario.replace(**{"workload.rate_rps": simulated["arrival_rate_rps"]})
    predicted = predict(asked, trace=TRACE)
    for name in ("evicted", "other", "overload"):
        key = f"migrated_{name}_ratio"
        assert predicted[key] == pytest.approx(simulated[key], abs=0.04), name
    key = "return_to_first_ratio"
    assert predicted[key] == pytest.approx(simulated[key], abs=0.04)
