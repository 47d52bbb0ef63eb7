from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic.load_laws import least_loaded_law
from smetric_model.analytic.queueing import state_dependent_queue
from smetric_model.analytic.returns import TurnLaw, return_to_first_ratio
from smetric_model.analytic.routed_cluster import FollowUpHits, RoutedCluster
from smetric_model.analytic.stickiness import stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.errors import SpecError, UnstableError
from smetric_model.routing import ThresholdForm, make_policy
from smetric_model.routing.ties import TieBreaking

TURNS, GAP_S = 33.0, 15.3
SOLVED = (
    ("smetric", {}),
    ("smetric", {"overload": 1.0}),
    ("smetric", {"overload": 1.25, "overload_floor": 1.0}),
    ("smetric-basic", {}),
    ("smetric-slo", {"prefill_tokens_per_s": 10000.0}),
    ("bailian", {}),
    ("bailian", {"hit_weight": 0.4}),
    ("bailian", {"hit_weight": 0.4, "load_normalisation": "max"}),
    ("lmetric", {}),
    ("lmetric", {"count_self": False}),
    ("load-balance", {}),
    ("dynamo", {}),
    ("bounded-hash", {"overload": 1.5}),
    ("always-sticky", {}),
    ("power-of-two", {}),
    ("round-robin", {}),
    ("random", {}),
)


def toy_rates(fixed, slope, levels=400):
    present = np.arange(1.0, levels)
    return present / (fixed + slope * present)


def toy_cluster(policy, load, instances=32, fixed=2.0, slope=0.25, **more):
    """The study's toy: balanced load, µ(l) = l / (A + E l)."""
    rate = load / (fixed + slope * load)
    given = {
        "instances": instances,
        "arrival_rate_rps": rate * instances,
        "completion_rate_rps": toy_rates(fixed, slope),
        "policy": policy,
        "turns": TurnLaw.geometric(TURNS),
        "think_time": ThinkTime.exponential(GAP_S),
    }
    return RoutedCluster(**(given | more))


def one_hit(prompt, hit):
    return FollowUpHits(np.array([float(prompt)]), np.array([float(hit)]))


# --- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameters"), SOLVED, ids=lambda x: str(x))
@settings(max_examples=8)
@given(
    load=st.floats(0.2, 10), instances=st.integers(1, 160), slope=st.floats(0.05, 1.0),
    moved=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_laws_of_every_policy(name, parameters, load, instances, slope, moved):
    policy = make_policy(name, parameters)
    hits = FollowUpHits(
        np.array([20e3, 30e3, 40e3, 40e3]), np.array([18e3, 20e3, 39e3, 3e3]), 39e3, 3e3
    )
    unit = 3000.0 if name in ("dynamo", "smetric-slo") else 1.0
    fixed = 2.0
    cluster = toy_cluster(
        policy, load, instances, fixed, slope, follow_ups=hits, move_work_ratio=moved,
        load_unit_tokens=unit,
    )  # fmt: skip
    try:
        solved = stickiness(cluster)
    except UnstableError:
        assert moved > 0  # without extra work the rate is below saturation
        return
    # a law, and what arrives is completed
    assert solved.load_law.sum() == pytest.approx(1.0)
    assert np.all(solved.load_law >= 0)
    served = solved.load_law[1:] @ solved.completion_rate_rps
    assert served == pytest.approx(cluster.rate_per_instance_rps, rel=1e-3)
    assert solved.load_law @ solved.birth_rate_rps == pytest.approx(served, rel=2e-3)
    # follow-ups go somewhere
    parts = (
        solved.return_to_previous_ratio, solved.migrated_overload_ratio,
        solved.migrated_evicted_ratio, solved.migrated_other_ratio,
    )  # fmt: skip
    assert sum(parts) == pytest.approx(1.0)
    assert all(-1e-12 <= part <= 1 + 1e-12 for part in parts)
    # p_k = 1/N + (1 - 1/N) ((N q - 1)/(N - 1))^k, q the return to the previous instance: at least
    # chance, or q where even one step is below chance (a threshold of the mean, two instances)
    least = min(1 / instances, solved.return_to_previous_ratio)
    assert least - 1e-9 <= solved.return_to_first_ratio <= 1 + 1e-9
    if instances == 1:
        assert solved.return_to_first_ratio == 1.0
    # no policy is better than a perfectly shared engine, none waits less than alone
    assert solved.sojourn_s >= (fixed + slope) * 0.99 / solved.work_factor
    survival = solved.sojourn_survival([0.0, 1.0, 5.0, 25.0])
    assert survival[0] == pytest.approx(1.0, abs=1e-6)
    assert np.all(np.diff(survival) <= 1e-9)


@pytest.mark.parametrize("load", [8.90625, 10.0])
def test_near_saturation_it_is_reached_from_a_lower_rate(load):
    hits = FollowUpHits(
        np.array([20e3, 30e3, 40e3, 40e3]), np.array([18e3, 20e3, 39e3, 3e3]), 39e3, 3e3
    )
    policy = make_policy("smetric", {"overload": 1.0})
    solved = stickiness(
        toy_cluster(policy, load, 11, 2.0, 1.0, follow_ups=hits, move_work_ratio=0.2)
    )
    below = stickiness(toy_cluster(policy, 8.5, 11, 2.0, 1.0, follow_ups=hits, move_work_ratio=0.2))
    assert solved.load_law @ np.arange(solved.load_law.size) > 11.5
    assert solved.return_to_first_ratio == pytest.approx(below.return_to_first_ratio, abs=1e-3)


def test_a_place_where_the_map_hardly_moves_is_passed():
    hits = FollowUpHits(
        np.array([20e3, 30e3, 40e3, 40e3]), np.array([18e3, 20e3, 39e3, 3e3]), 39e3, 3e3
    )
    policy = make_policy("smetric", {"overload": 1.0})
    loads = 5.685150132254981, 5.7  # between them the answer moves little
    here, near = (
        stickiness(toy_cluster(policy, at, 120, 2.0, 1.0, follow_ups=hits, move_work_ratio=0.2))
        for at in loads
    )
    assert here.mean_load == pytest.approx(6.9167, abs=1e-3)  # plain iteration, 400 steps
    assert near.mean_load == pytest.approx(here.mean_load, rel=0.01)


@given(load=st.floats(0.2, 8), instances=st.integers(2, 200))
def test_always_sticky_is_product_form(load, instances):
    cluster = toy_cluster(make_policy("always-sticky"), load, instances)
    solved = stickiness(cluster)
    exact, _ = state_dependent_queue(cluster.rate_per_instance_rps, toy_rates(2.0, 0.25))
    size = solved.load_law.size
    np.testing.assert_allclose(solved.load_law, exact[:size], atol=1e-9)
    assert solved.migrated_ratio == pytest.approx(0, abs=1e-9)
    # an open network: thinking sessions know nothing of the load, sessions at home are independent
    covariance = solved.noise.covariance
    assert covariance[0, 1] == pytest.approx(0, abs=1e-6 * covariance[1, 1])
    follow = cluster.rate_per_instance_rps * (1 - 1 / TURNS)
    expected = follow * GAP_S + solved.load_variance
    assert solved.resident_variance == pytest.approx(expected, rel=0.02)


@given(load=st.floats(0.3, 12), instances=st.integers(2, 256))
def test_least_loaded_law_balances_every_level(load, instances):
    rate, completion = load / (2 + 0.25 * load), toy_rates(2.0, 0.25, 200)
    law = least_loaded_law(rate, completion, instances)
    at_least = np.append(np.cumsum(law[::-1])[::-1], 0.0)
    up = rate * (at_least[:-1] ** instances - at_least[1:] ** instances)
    np.testing.assert_allclose(up[:-1], law[1:] * completion, atol=1e-9)


@given(load=st.floats(0.3, 8))
def test_spread_grows_from_balance_to_random(load):
    names = ("load-balance", "power-of-two", "random")
    spread = [stickiness(toy_cluster(make_policy(name), load)).load_variance for name in names]
    turn = stickiness(toy_cluster(make_policy("round-robin"), load)).load_variance
    assert spread[0] < spread[1] < spread[2]
    assert spread[0] < turn < spread[2]


def test_dealt_in_turn_to_one_server_is_erlang_arrivals():
    # GI/M/1: P(n before an arrival) = (1 - s) s^n, s = E[exp(-µ(1 - s) gap)]
    cluster = toy_cluster(make_policy("round-robin"), 1.0, 4)
    service = np.full(60, 1.0)
    cluster = RoutedCluster(
        instances=4, arrival_rate_rps=4 * 0.7, completion_rate_rps=service, policy=cluster.policy,
        turns=cluster.turns, think_time=cluster.think_time,
    )  # fmt: skip
    root = 0.5
    for _ in range(500):
        root = (2.8 / (2.8 + 1 - root)) ** 4
    law = stickiness(cluster).load_law
    assert law[0] == pytest.approx(0.3, abs=1e-6)
    np.testing.assert_allclose(law[2:8] / law[1:7], root, rtol=1e-6)


@given(st.floats(1, 4), st.floats(0.5, 8))
def test_migration_falls_with_overload(overload, load):
    moved = [
        stickiness(toy_cluster(make_policy("smetric", {"overload": x}), load)).migrated_ratio
        for x in (overload, overload + 1, np.inf)
    ]
    assert moved[0] >= moved[1] - 2e-3 >= moved[2] - 4e-3
    assert moved[2] == pytest.approx(0, abs=1e-9)


def test_saturation_is_named():
    cluster = toy_cluster(make_policy("smetric"), 2.0, arrival_rate_rps=32 * 4.1, resource="kv")
    with pytest.raises(UnstableError) as error:
        stickiness(cluster)
    assert error.value.resource == "kv"


def test_moves_that_recompute_can_saturate():
    policy = make_policy("smetric", {"overload": 1.0})
    with pytest.raises(UnstableError, match="work of moves"):
        stickiness(toy_cluster(policy, 8.0, move_work_ratio=4.0))
    assert stickiness(toy_cluster(policy, 1.0, move_work_ratio=0.2)).work_factor > 1.05


def test_score_policies_need_hits():
    with pytest.raises(SpecError, match="follow_ups"):
        stickiness(toy_cluster(make_policy("lmetric"), 1.0))


class _WithinSpread(TieBreaking):
    """Stay with up to four requests more than the least loaded, whatever the hit."""

    name = "within-spread"
    source = "a test"

    def _decide(self, request, snapshot, ties):
        raise NotImplementedError("the mean field asks for the threshold form only")

    @property
    def threshold_form(self):
        return ThresholdForm(
            "each other", "least load", "l_h <= l_j + 4 for all j", lambda f: f.other_load + 4
        )


def test_a_form_may_look_at_no_hits():
    def moved(hits):
        cluster = RoutedCluster(
            instances=16,
            arrival_rate_rps=12.8,
            completion_rate_rps=np.arange(1.0, 200) / (2 + 0.25 * np.arange(1.0, 200)),
            policy=_WithinSpread(),
            turns=TurnLaw.geometric(33),
            think_time=ThinkTime.exponential(15.3),
            follow_ups=hits,
        )
        return stickiness(cluster).migrated_overload_ratio

    one = moved(FollowUpHits([22_000], [20_000]))
    several = moved(FollowUpHits([22_000, 30_000, 40_000], [20_000, 28_000, 38_000]))
    assert 0 < one < 0.05
    assert several == pytest.approx(one, rel=1e-9)


def test_a_start_does_not_change_the_answer():
    policy = make_policy("smetric", {"overload": 1.5})
    cold = stickiness(toy_cluster(policy, 4.0))
    near = stickiness(toy_cluster(policy, 3.8))
    warm = stickiness(toy_cluster(policy, 4.0), start=near)
    assert warm.migrated_ratio == pytest.approx(cold.migrated_ratio, abs=1e-6)


# --- think times and returns ---------------------------------------------------------------------


@given(st.floats(1, 100), st.floats(0.1, 2.5))
def test_lognormal_think_time_keeps_its_mean(mean, sigma):
    law = ThinkTime.lognormal(mean, sigma)
    assert law.mean_s == pytest.approx(mean)
    assert law.mean_within_s(np.inf) == pytest.approx(mean)


def test_fitted_think_times_follow_the_sample():
    rng = np.random.default_rng(3)
    gaps = rng.lognormal(np.log(5.0), 1.496, 50_000)
    law = ThinkTime.fit(gaps)
    assert law.mean_s == pytest.approx(gaps.mean(), rel=1e-6)
    for t in (1.0, 5.0, 20.0, 100.0):
        assert law.survival(t) == pytest.approx((gaps > t).mean(), abs=0.03)
        assert law.mean_within_s(t) == pytest.approx(np.minimum(gaps, t).mean(), rel=0.06)


@given(seed=st.integers(0, 99), classes=st.integers(1, 4))
def test_gaps_belong_to_classes_in_all(seed, classes):
    rng = np.random.default_rng(seed)
    law = ThinkTime(np.full(classes, 1 / classes), np.geomspace(1.0, 300.0, classes))
    which = rng.integers(0, classes, 20_000)
    gaps = rng.exponential(law.means_s[which])
    belongs = law.memberships(gaps)
    assert belongs.sum(axis=1) == pytest.approx(1)
    assert belongs.mean(axis=0) == pytest.approx(law.weights, abs=0.02)
    # and on average to the class that they are from
    means = [gaps @ belongs[:, j] / belongs[:, j].sum() for j in range(classes)]
    assert means == pytest.approx(list(law.means_s), rel=0.1)


def test_those_who_think_for_long_lose_their_context():
    think = ThinkTime(np.array([0.8, 0.2]), np.array([2.0, 200.0]))
    plain, alike, long = (
        stickiness(
            toy_cluster(
                make_policy("smetric", {"overload": 4.0}),
                2.0,
                think_time=think,
                evicted_ratio=0.2,
                evicted_by_class=lost,
            )
        )
        for lost in (None, np.array([0.2, 0.2]), np.array([0.0, 1.0]))
    )
    assert alike.load_law == pytest.approx(plain.load_law, abs=1e-9)

    def variance(found):
        loads = np.arange(found.load_law.size)
        return found.load_law @ loads**2 - found.mean_load**2

    # what lasts at an instance is who thinks for long: if they come back anywhere, it is gone
    assert variance(long) < 0.99 * variance(plain)
    assert long.mean_load <= plain.mean_load
    # one that comes back at once, to a rewritten history, finds its home less loaded than others do
    at_once = stickiness(
        toy_cluster(
            make_policy("smetric", {"overload": 4.0}),
            2.0,
            instances=4,
            think_time=think,
            evicted_ratio=0.2,
            evicted_by_class=np.array([0.25, 0.0]),
        )
    )
    assert 1 - at_once.migrated_evicted_ratio / 0.2 > 1.1 / 4
    assert at_once.migrated_evicted_ratio / 0.2 < long.migrated_evicted_ratio / 0.2
    with pytest.raises(SpecError, match="2 classes"):
        toy_cluster(
            make_policy("smetric", {}), 2.0, think_time=think, evicted_by_class=np.array([0.5])
        )


@given(st.floats(0.01, 50.0), st.floats(0.2, 100.0))
@settings(max_examples=20)
def test_who_waits_does_not_think(stop, mean):
    law = ThinkTime.lognormal(mean, 1.8)
    t = stop * np.linspace(0.0, 1.0, 4001) ** 3  # fine where a short think time ends
    waits = np.trapezoid(law.survival(t) * (stop - t), t) / (0.5 * stop**2)
    assert law.met_ratio([stop], [1.0]) == pytest.approx(waits, rel=1e-3)
    assert law.met_ratio([stop, 2 * stop], [0.5, 0.5]) <= law.met_ratio([stop], [1.0]) <= 1.0
    assert law.met_ratio([1e-9 * mean], [1.0]) == pytest.approx(1.0)
    assert law.met_ratio([0.0], [1.0]) == 1.0


def closed_loop_wait_s(sessions, think_s, stops_s, rng, turns=40_000):
    """Mean wait and rate of sessions that think and queue for one server, first come first."""
    arrival = np.sort(rng.exponential(think_s, sessions))
    free_at, waited, last = 0.0, 0.0, 0.0
    for stop in rng.choice(stops_s, turns):
        start = max(arrival[0], free_at)
        waited += start - arrival[0]
        free_at = last = start + stop
        back = free_at + rng.exponential(think_s)
        at = int(np.searchsorted(arrival[1:], back))
        arrival[:at] = arrival[1 : at + 1]
        arrival[at] = back
    return waited / turns, turns / last


@pytest.mark.parametrize(("think", "sessions"), [(5.0, 4), (20.0, 15), (60.0, 40)])
def test_waits_of_sessions_that_come_back(think, sessions):
    # most stops are short, one in ten lasts as long as sessions think
    stops = np.array([0.1] * 9 + [8.0])
    wait, rate = closed_loop_wait_s(sessions, think, stops, np.random.default_rng(4))
    load = rate * stops.mean()
    poisson = rate * (stops**2).mean() / (2 * (1 - load))
    met = ThinkTime.exponential(think).met_ratio(stops, np.full(10, 0.1))
    closed = met * rate * (stops**2).mean() / (2 * (1 - met * load))
    assert closed == pytest.approx(wait, rel=0.25)
    assert abs(closed - wait) < 0.5 * abs(poisson - wait)


@given(st.integers(2, 64), st.floats(0, 1), st.integers(0, 2**31))
@settings(max_examples=5)
def test_return_to_first_is_the_two_state_chain(instances, stay, seed):
    rng = np.random.default_rng(seed)
    turns = rng.geometric(0.2, 400)
    law = TurnLaw.from_turns(turns)
    follow, back = 0.0, 0.0
    for count in turns:  # exact for each session: powers of the transition matrix
        away = (1 - stay) / (instances - 1)
        here = 1.0
        for _ in range(count - 1):
            here = here * stay + (1 - here) * away
            follow, back = follow + 1, back + here
    assert return_to_first_ratio(stay, instances, law) == pytest.approx(back / follow)


def test_turn_laws():
    law = TurnLaw.from_turns([1, 1, 2, 4])
    assert law.mean_turns == 2.0
    assert law.follow_up_ratio == 0.5
    assert TurnLaw.from_follow_up_ratio(0.97).mean_turns == pytest.approx(1 / 0.03, rel=1e-6)
    assert np.isnan(return_to_first_ratio(0.5, 4, TurnLaw.geometric(1.0)))


# --- simulated cells of the study of the closure: N = 32, A = 2, E = .25, 33 turns, gap 15.3 s ----
# (a discrete-event simulation of the same toy by others; its noise is about 2 % of the migration)

OVERLOADS = (1.0, 1.25, 1.5, 2.0, 3.0)
MIGRATION = {
    0.5: (0.493, 0.460, 0.390, 0.163, 0.059),
    1.0: (0.470, 0.281, 0.224, 0.099, 0.019),
    2.0: (0.505, 0.272, 0.151, 0.048, 0.004),
    4.0: (0.525, 0.193, 0.089, 0.015, 0.000),
    8.0: (0.533, 0.120, 0.039, 0.003, 0.000),
}
RETURN_TO_FIRST = {
    0.5: (0.058, 0.063, 0.073, 0.160, 0.340),
    1.0: (0.062, 0.097, 0.120, 0.231, 0.612),
    2.0: (0.058, 0.101, 0.167, 0.385, 0.896),
    4.0: (0.055, 0.138, 0.255, 0.663, 0.991),
    8.0: (0.055, 0.203, 0.438, 0.901, 1.000),
}


@pytest.mark.parametrize("load", list(MIGRATION))
@pytest.mark.parametrize("column", range(5))
def test_study_migration_and_return(load, column):
    overload = OVERLOADS[column]
    solved = stickiness(toy_cluster(make_policy("smetric", {"overload": overload}), load))
    tolerance = 0.06 if overload == 1 else 0.018  # the study's largest errors there
    assert solved.migrated_ratio == pytest.approx(MIGRATION[load][column], abs=tolerance)
    assert solved.return_to_first_ratio == pytest.approx(RETURN_TO_FIRST[load][column], abs=0.019)
    assert solved.mean_load == pytest.approx(load, rel=0.12)


LOGNORMAL = {0.5: (0.412, 0.145), 1.0: (0.250, 0.082), 2.0: (0.249, 0.039), 4.0: (0.177, 0.013)}


@pytest.mark.parametrize("load", list(LOGNORMAL))
def test_study_lognormal_gaps(load):
    for overload, simulated in zip((1.25, 2.0), LOGNORMAL[load], strict=True):
        policy = make_policy("smetric", {"overload": overload})
        gap = ThinkTime.lognormal(GAP_S, 1.496)
        solved = stickiness(toy_cluster(policy, load, think_time=gap))
        assert solved.migrated_ratio == pytest.approx(simulated, abs=0.034)


OTHER_POLICIES = (
    # policy, parameters, (prompt, hit), N, load, simulated, tolerance from the study's table
    ("lmetric", {}, (30e3, 20e3), 32, 1.0, 0.061, 0.005),
    ("lmetric", {}, (30e3, 20e3), 32, 2.0, 0.131, 0.012),
    ("lmetric", {}, (30e3, 20e3), 128, 4.0, 0.083, 0.006),
    ("lmetric", {"count_self": False}, (50e3, 49e3), 32, 2.0, 0.187, 0.006),
    ("lmetric", {"count_self": False}, (50e3, 49e3), 128, 4.0, 0.020, 0.003),
    ("bailian", {"hit_weight": 0.5, "load_normalisation": "max"}, (2e3, 1e3), 32, 1.0, 0.242, 0.01),
    ("bailian", {"hit_weight": 0.5, "load_normalisation": "max"}, (2e3, 1e3), 32, 4.0, 0.161, 0.01),
    ("bailian", {"hit_weight": 0.5, "load_normalisation": "max"}, (2e3, 1e3), 8, 8.0, 0.073, 0.01),
)


@pytest.mark.parametrize("case", OTHER_POLICIES, ids=lambda c: f"{c[0]}-{c[3]}-{c[4]:g}")
def test_study_other_policies(case):
    name, parameters, hit, instances, load, simulated, tolerance = case
    policy = make_policy(name, parameters)
    solved = stickiness(toy_cluster(policy, load, instances, follow_ups=one_hit(*hit)))
    assert solved.migrated_ratio == pytest.approx(simulated, abs=tolerance)


def test_study_evictions_and_floor():
    cases = (
        ({"overload": 2.0}, 2.0, 0.05, 0.0909),
        ({"overload": np.inf}, 2.0, 0.05, 0.0480),
        ({"overload": 1.5}, 4.0, 0.10, 0.164),
        ({"overload": 1.25, "overload_floor": 1.0}, 0.5, 0.0, 0.0680),
    )
    for parameters, load, evicted, simulated in cases:
        cluster = toy_cluster(make_policy("smetric", parameters), load, evicted_ratio=evicted)
        assert stickiness(cluster).migrated_ratio == pytest.approx(simulated, abs=0.008)


# --- against the toy, policies as they are --------------------------------------------------------


def simulated(run_toy, policy, load, instances, hit, **more):
    rng = np.random.default_rng(5)
    rate = load / (2 + 0.25 * load)
    return run_toy(
        policy,
        instances,
        rate * instances,
        toy_rates(2.0, 0.25),
        rng.geometric(1 / TURNS, 100_000),
        rng.exponential(GAP_S, 100_000),
        hits=np.array([hit]),
        warmup_s=3000.0,
        requests=250_000,
        **more,
    )


AGAINST_TOY = (
    # policy, parameters, load, (prompt, hit), migration off by at most
    ("smetric", {"overload": 1.5}, 2.0, (30000, 20000), 0.015),
    ("smetric", {"overload": 1.25, "overload_floor": 2.0}, 1.0, (30000, 20000), 0.01),
    ("lmetric", {}, 2.0, (30000, 20100), 0.02),
    ("bailian", {"hit_weight": 0.5}, 4.0, (2000, 1000), 0.03),
    ("bailian", {"hit_weight": 0.7}, 2.0, (2000, 1800), 0.03),
    ("bounded-hash", {"overload": 2.0}, 2.0, (2000, 1000), 0.03),
    ("load-balance", {}, 2.0, (2000, 1000), 0.01),
)


@pytest.mark.parametrize("case", AGAINST_TOY, ids=lambda c: f"{c[0]}-{c[2]:g}")
def test_against_the_toy(run_toy, case):
    name, parameters, load, hit, tolerance = case
    policy = make_policy(name, parameters)
    toy = simulated(run_toy, policy, load, 32, hit)
    solved = stickiness(
        toy_cluster(
            policy,
            load,
            follow_ups=one_hit(*hit),
            arrival_rate_rps=toy.arrival_rate,
            turns=TurnLaw.from_follow_up_ratio(toy.follow_up_ratio),
        )
    )
    assert solved.migrated_ratio == pytest.approx(toy.migrated.sum(), abs=tolerance)
    assert solved.return_to_first_ratio == pytest.approx(toy.return_to_first, abs=0.03)
    mean = toy.load_law @ np.arange(toy.load_law.size)
    assert solved.mean_load == pytest.approx(mean, rel=0.04)
    for t in (2.0, 5.0, 10.0):
        assert solved.sojourn_survival(t) == pytest.approx((toy.sojourns > t).mean(), abs=0.01)


def test_a_solve_takes_milliseconds():
    policy = make_policy("smetric", {"overload": 1.5})
    cluster = toy_cluster(policy, 4.0)
    stickiness(cluster)  # compiles
    spent = []
    for _ in range(7):
        before = time.process_time()
        stickiness(cluster)
        spent.append(time.process_time() - before)
    assert min(spent) < 0.02
