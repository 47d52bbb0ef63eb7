"""Holders of a prefix, and where sessions that leave their home go."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from smetric_model import Scenario, predict, simulate
from smetric_model.analytic import _holder_kernels as kernels
from smetric_model.analytic import _session_kernels as sessions
from smetric_model.analytic.cluster import ColocatedCluster
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.prefix_holders import (
    ColdCluster,
    _used_ratio,
    holding_of,
    in_use,
    returns_of,
)
from smetric_model.workload.trace import load_trace

DATA = Path(__file__).parents[2] / "data"
BASE = Scenario.from_toml(DATA / "scenarios" / "agents-small.toml")
TRACE = load_trace(DATA / "traces" / "agents-small.parquet")
N = 24.0
NO_TABLE = np.zeros((0, 0))
THINK = np.array([[0.6, 0.4], [10.0, 60.0]])


@given(mean=st.floats(1.001, 400.0), start=st.floats(0.0, 50.0))
def test_customers_of_a_busy_queue(mean, start):
    rho = kernels.stays_present(mean, start)
    assert rho / -math.expm1(-rho) == pytest.approx(mean, rel=1e-6)


@given(present=st.floats(1.0, 200.0), held=st.floats(1.0, 60.0))
def test_a_holder_is_lost_when_its_busy_period_ends(present, held):
    lost, bent, rho = kernels._loss(present, held, 0.0)
    expected = 1.0 if rho == 0 else rho / math.expm1(rho)
    assert lost == pytest.approx(expected, rel=1e-6)
    step = 1e-5 * held
    more = kernels._loss(present, held + step, 0.0)[0]
    assert bent == pytest.approx((more - lost) / step, rel=2e-2, abs=1e-6)


def test_fewer_sessions_lose_a_holder_sooner():
    lost = [kernels._loss(present, 4.0, 0.0)[0] for present in (2.0, 5.0, 12.0, 40.0)]
    assert lost == sorted(lost, reverse=True)


@given(servers=st.integers(1, 60), offered=st.floats(0.01, 80.0))
def test_all_busy_is_erlangs_loss(servers, offered):
    number = np.arange(servers + 1)
    law = stats.poisson.pmf(number, offered)
    expected = law[-1] / law.sum() if law.sum() > 0 else np.nan
    if np.isfinite(expected) and law.sum() > 1e-200:
        assert kernels._all_busy(float(servers), offered) == pytest.approx(expected, rel=1e-6)
    between = kernels._all_busy(servers - 0.5, offered)
    assert kernels._all_busy(float(servers), offered) <= between
    assert between <= kernels._all_busy(servers - 1.0, offered)


def test_laws_of_other_mean_loads_are_those_of_more_arrivals():
    law = stats.poisson.pmf(np.arange(60), 2.0)
    means, laws = np.empty(kernels._TILTS), np.empty((kernels._TILTS, 60))
    tails = np.empty((kernels._TILTS, 60))
    kernels._tilted(law, means, laws, tails)
    assert (np.diff(means) > 0).all()
    for mean, row, tail in zip(means, laws, tails, strict=True):
        if mean < 12:
            assert row == pytest.approx(stats.poisson.pmf(np.arange(60), mean), abs=1e-8)
        assert tail == pytest.approx(np.cumsum(row[::-1])[::-1])


@given(load=st.floats(0.2, 6.0), busier=st.floats(0.2, 3.0))
def test_the_law_of_a_busier_instance_has_its_mean(load, busier):
    law = stats.poisson.pmf(np.arange(80), load)
    tilted = kernels.tilted_to(np.maximum(law, 1e-300), busier * load)
    assert tilted.sum() == pytest.approx(1)
    assert tilted @ np.arange(80) == pytest.approx(busier * load, rel=1e-3)


def held(limit, law=None, share=(0.2, 0.05), rate=6.0, visit_s=400.0, end_s=1e5, within=None):
    """Holders where a holder loses against an instance of load j from ``limit(j)`` on."""
    law = stats.poisson.pmf(np.arange(40), 1.5) if law is None else law
    share = np.asarray(share)
    loads = np.arange(law.size)
    row = np.clip([limit(j) for j in loads], 0, law.size).astype(np.int64)
    limits = np.tile(row, (share.size, 8, 1))
    within = NO_TABLE if within is None else within
    out = np.empty((4, share.size))
    rates = (N, rate, 0.05, 0.1, 0.3, visit_s)
    cold = (3.0, 0.4, 2.0, 0.5)
    mean = float(law @ loads)
    kernels.holders(law, share, limits, limits, within, 4, THINK, rates, cold, (mean, end_s), out)
    return out


def test_without_spills_and_losses_nothing_moves():
    holders, lost, spills, _ = held(lambda _: 10_000, visit_s=1e9)
    assert holders == pytest.approx(1.0 + 6.0 * np.array([0.2, 0.05]) * 0.5)
    assert lost == pytest.approx(0.0, abs=1e-12)
    assert spills == pytest.approx(0.0)


def test_where_hits_are_worth_nothing_everybody_holds_the_prefix():
    holders, _, spills, _ = held(lambda j: j, visit_s=1e9)
    assert holders == pytest.approx(N, rel=1e-3)
    assert (spills < 1).all()


@pytest.mark.parametrize("visit_s", [60.0, 120.0, 240.0])
def test_the_number_varies_as_that_of_a_birth_and_death_chain(visit_s):
    law = stats.poisson.pmf(np.arange(40), 1.5)
    share, rate, worth = 0.2, 6.0, 1
    holders, lost, _, more = (row[0] for row in held(lambda j: j + worth, law, visit_s=visit_s))
    means, laws = np.empty(kernels._TILTS), np.empty((kernels._TILTS, 40))
    tails = np.empty((kernels._TILTS, 40))
    kernels._tilted(law, means, laws, tails)
    limits = np.minimum(np.arange(40) + worth, 40)[None, :]
    births, deaths = np.zeros(25), np.zeros(25)
    for m in range(1, 25):
        some = np.empty(1)
        busier = 1 + share * (N / m - 1)
        given_ = (1.5, busier, 1 - share, float(m), N, means, tails, np.empty(41), some)
        kernels._spills(limits, *given_)
        births[m] = rate * share * 0.15 * some[0] if m < 24 else 0.0
        deaths[m] = m * kernels._loss(rate * share * 0.3 * visit_s, float(m), 0.0)[0] / visit_s
    steps = np.log(births[1:-1]) - np.log(deaths[2:])
    chain = np.exp(np.append(0.0, np.cumsum(steps)))
    chain /= chain.sum()
    number = np.arange(1, 25)
    assert holders == pytest.approx(chain @ number, rel=0.15)
    turnover = chain @ deaths[1:] / (chain @ number)
    assert more > 1
    assert abs(np.log(lost * more / turnover)) < abs(np.log(lost / turnover)) + 0.1
    assert lost * more == pytest.approx(turnover, rel=0.35)


@pytest.mark.parametrize("worth", [0, 1, 3])
def test_births_and_deaths_balance_in_the_long_run(worth):
    holders, lost, spills, _ = held(lambda j: j + worth, visit_s=120.0, end_s=1e7)
    rate = 6.0 * np.array([0.2, 0.05]) * 0.15
    inside = (holders > 1.01) & (holders < N - 0.01)
    assert inside.any()
    # the shares that spill are looked up between a few numbers of holders
    assert (rate * spills)[inside] == pytest.approx((holders * lost)[inside], rel=0.05)


def test_the_more_a_prefix_is_worth_the_fewer_hold_it():
    several = [held(lambda j, w=worth: j + w, visit_s=200.0)[0] for worth in (0, 1, 2, 4)]
    assert (np.diff(several, axis=0) <= 1e-9).all()
    assert (several[0][0] > several[0][1]).all()  # a popular one is held by more


def test_prefixes_of_bursty_loads_are_held_by_as_many_as_prefill_at_a_time():
    law = stats.poisson.pmf(np.arange(40), 1.5)
    never = np.zeros((2, 40))
    never[:, 0] = 1.0  # an instance with a request has more to prefill than the prefix
    few, _, spills, _ = held(lambda _: 0, law, visit_s=1e9, within=np.ones((2, 40)), end_s=3e4)
    many, _, _, _ = held(lambda _: 0, law, visit_s=1e9, within=never, end_s=3e4)
    assert (many > few).all()
    assert spills == pytest.approx(0.0, abs=1e-9)


def chains(rng, count, turns):
    session = np.repeat(np.arange(count), turns)
    return np.arange(session.size), session


def followed(order, session, stays, held, pace, counted=None, idle=None):
    out = np.empty(4)
    framework = np.zeros(session.size, np.int64)
    counted = np.ones(session.size, bool) if counted is None else counted
    idle = np.zeros(session.size) if idle is None else idle
    pace = (*pace, True) if len(pace) < 5 else pace
    number = kernels.follow(
        order, session, framework, counted, idle, stays, np.asarray(held)[:, None], pace, out
    )
    return number, out


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), instances=st.sampled_from([2.0, 3.0, 8.0, 64.0]))
def test_where_all_hold_the_prefix_it_is_the_chain_without_prefixes(seed, instances):
    rng = np.random.default_rng(seed)
    order, session = chains(rng, 7, 9)
    stays = rng.uniform(0, 1, (4, session.size))
    stays[0] *= 0.9
    stays[1] *= 1 - stays[0]
    stays[3] = 0.0
    at_first = np.empty(session.size)
    sessions.returns(order, session, stays[0], stays[1], stays[2], instances, at_first)
    number, out = followed(
        order, session, stays, (instances, 0.0, 0.0, 0.0, 1.0), (instances, 100.0, 1.0, 0.1)
    )
    assert number == session.size
    assert out[0] == pytest.approx(at_first.mean())
    assert out[1] == pytest.approx(stays[0].mean())


def test_of_two_instances_who_leaves_comes_back():
    order, session = chains(np.random.default_rng(0), 1, 4)
    stays = np.zeros((4, 4))
    for holders in (1.0, 1.4, 2.0):
        counted = np.arange(4) > 0
        _, out = followed(
            order, session, stays, (holders, 0.01, 0.3, 0.5, 0.0), (2.0, 10.0, 1.0, 0.5), counted
        )
        assert out[0] == pytest.approx(1 / 3)  # there at turn 2, not at 1 and 3


def test_against_sessions_that_move_among_a_few_holders():
    rng = np.random.default_rng(1)
    count, turns, holders, instances = 20_000, 12, 5, 40
    gone, wins = 0.4, 0.3
    place = np.zeros(count, int)
    back = []
    for _ in range(turns - 1):
        moves = rng.random(count) < gone * (1 - wins)
        other = (place + rng.integers(1, holders, count)) % holders
        place = np.where(moves, other, place)
        back.append((place == 0).mean())
    order, session = chains(rng, 1, turns)
    stays = np.zeros((4, turns))
    stays[0], stays[3] = 1 - gone, gone
    counted = np.arange(turns) > 0
    held = (float(holders), 0.0, 0.0, wins, 0.0)
    _, out = followed(order, session, stays, held, (float(instances), 50.0, 1.0, 0.02), counted)
    assert out[0] == pytest.approx(np.mean(back), abs=0.004)
    assert out[1] == pytest.approx(1 - gone * (1 - wins))
    assert out[2] == 0.0
    assert out[3] == pytest.approx(gone * (1 - wins))


@pytest.mark.parametrize("seeks", [False, True])
def test_those_that_leave_for_the_load_go_anywhere_unless_they_seek_hits(seeks):
    order, session = chains(np.random.default_rng(0), 1, 3)
    stays = np.zeros((4, 3))
    stays[0, 2] = 0.2  # turn 1 leaves for the load, of turn 2 four fifths do
    counted = np.arange(3) == 2
    pace = (41.0, 50.0, 1.0, 0.02, seeks)
    _, out = followed(order, session, stays, (5.0, 0.0, 0.0, 0.3, 0.0), pace, counted)
    assert out[0] == pytest.approx(0.8 / 4 if seeks else 0.8 / 40)


def test_a_former_instance_that_lost_the_prefix_is_no_goal():
    order, session = chains(np.random.default_rng(0), 1, 30)
    stays = np.zeros((4, 30))
    stays[0], stays[3] = 0.7, 0.3
    counted, idle = np.arange(30) > 0, np.full(30, 40.0)
    pace = (40.0, 50.0, 1.0, 0.02)
    returns = [
        followed(order, session, stays, (5.0, rate, 0.0, 0.3, 0.0), pace, counted, idle)[1][0]
        for rate in (0.0, 1e-3, 1e-2, 1.0)
    ]
    assert returns == sorted(returns, reverse=True)
    assert returns[0] > 1.5 * returns[-1]


def test_instances_in_use():
    share = np.array([0.5, 0.5])
    few = np.array([4.0, 6.0])
    # spread to those that hold nothing, or to any
    assert _used_ratio(share, few, 40, False) == pytest.approx(10 / 40)
    assert _used_ratio(share, few, 40, True) == pytest.approx(1 - 0.9 * 0.85)
    assert _used_ratio(share, 30 * share + 10, 40, False) == 1.0
    assert _used_ratio(0.9 * share, few, 40, True) == 1.0  # others have no prefix


@pytest.fixture(scope="module")
def solved():
    answers = {}

    def of(policy):
        if policy not in answers:
            asked = BASE.replace(**{"router.policy": policy})
            cluster = ColocatedCluster(asked, demand_of(asked, TRACE))
            answers[policy] = cluster, cluster.at(5.0)
        return answers[policy]

    return of


@pytest.mark.parametrize("policy", ["bailian", "lmetric", "dynamo"])
def test_where_instances_stay_idle_others_keep_less(solved, policy):
    _, state = solved(policy)
    given_ = (state.stay_rule, state.hits, state.routed)
    assert in_use(*given_, 1.0) == (state.stay_rule, state.hits)
    rule, hits = in_use(*given_, 0.5)
    assert (hits.spread.nodes == 2 * state.hits.spread.nodes).all()
    assert (hits.spread.ages < state.hits.spread.ages).all()
    assert (rule.stay_of_leads <= state.stay_rule.stay_of_leads + 1e-9).all()
    assert rule.stay_of_leads.mean() < state.stay_rule.stay_of_leads.mean()


@pytest.mark.parametrize("policy", ["bailian", "lmetric", "dynamo"])
def test_a_workload_s_holders_are_some_of_the_instances(solved, policy):
    cluster, state = solved(policy)
    work = cluster.work
    cold = ColdCluster.of(work, cluster.model)
    assert 0 < cold.chunk_s <= cold.prefill_s
    holding = holding_of(work, state.routed, state.hits, state.pace, cold)
    assert holding.holders.shape == work.prefixes.share.shape
    assert ((holding.holders >= 1) & (holding.holders <= cluster.instances)).all()
    assert ((holding.spill_ratio >= 0) & (holding.spill_ratio <= 1)).all()
    assert (holding.loss_rate_per_s >= 0).all()
    moved = returns_of(work, holding, state.stay_rule, state.hits, state.routed, state.pace)
    assert all(0 <= value <= 1 for value in moved)
    everything = moved.previous_ratio + moved.evicted_ratio + moved.other_ratio
    assert everything + moved.overload_ratio == pytest.approx(1)


@pytest.mark.parametrize("policy", ["bailian", "lmetric", "dynamo"])
def test_where_follow_ups_go_is_as_simulated(policy):
    scenario = BASE.replace(**{"router.policy": policy, "workload.rate_rps": 5.0})
    simulated = simulate(scenario, TRACE)
    asked = scenario.replace(**{"workload.rate_rps": simulated["arrival_rate_rps"]})
    predicted = predict(asked, trace=TRACE)
    for name in ("evicted", "other", "overload"):
        key = f"migrated_{name}_ratio"
        assert predicted[key] == pytest.approx(simulated[key], abs=0.06), name
    key = "return_to_first_ratio"
    assert predicted[key] == pytest.approx(simulated[key], abs=0.05)
    moved = 1 - predicted["return_to_previous_ratio"]
    causes = sum(predicted[f"migrated_{name}_ratio"] for name in ("evicted", "other", "overload"))
    assert moved == pytest.approx(causes)
