from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic import _tier_kernels
from smetric_model.analytic.cluster_demand import cluster_demand, with_sessions
from smetric_model.analytic.cluster_links import Links
from smetric_model.analytic.cluster_tiers import turns_back_weights
from smetric_model.analytic.demand import cluster_of, demand_of
from smetric_model.analytic.efficiencies import get_efficiencies
from smetric_model.analytic.fabric import nic_curve
from smetric_model.analytic.predict import cluster_form
from smetric_model.analytic.session_reuse import TURNS_BACK, session_reuse
from smetric_model.analytic.stay_rule import Pace, StayRule
from smetric_model.scenario import Scenario
from smetric_model.workload.reuse import ideal_reuse
from smetric_model.workload.trace import load_trace

DATA = Path(__file__).parents[2] / "data"
BASE = Scenario.from_toml(DATA / "scenarios" / "agents-small.toml")
TRACE = load_trace(DATA / "traces" / "agents-small.parquet")
DEMAND = demand_of(BASE, TRACE)
WORK = cluster_demand(BASE, DEMAND)
LOCAL = WORK.local
FOREVER = (1e9, 1e9 + 1)
PACE = Pace(0.5, 0.01)


def local_hits(rule, rate=3.0, instances=32, pinned=10_000.0, window=FOREVER):
    return LOCAL.hits(rule, rate, instances, pinned, window, PACE)


# --- what there is to reuse -------------------------------------------------------------------


def test_prefixes_shared_with_earlier_turns_against_block_ids():
    part = TRACE.take(np.arange(400))
    prompt = part.column("prompt_tokens").astype(float)
    reuse = session_reuse(part, prompt)
    tree, block = part.require_tree()
    session = part.column("session_id")
    for row in range(0, 400, 7):
        before = np.flatnonzero((session == session[row]) & (np.arange(400) < row))
        assert reuse.turn[row] == before.size
        for index, back in enumerate(TURNS_BACK[:3]):
            if before.size < back:
                assert reuse.own_tokens[index, row] == 0
                continue
            here, there = tree.block_ids(row), tree.block_ids(int(before[-back]))
            size = min(here.size, there.size)
            same = int(np.argmin(np.append(here[:size] == there[:size], False)))
            exact = min(same * block, prompt[row])
            if back == 1:
                assert reuse.own_tokens[index, row] == exact
            else:  # the ultrametric bound
                assert reuse.own_tokens[index, row] <= exact
    assert (reuse.own_tokens[0] <= ideal_reuse(part) + block).all()


def test_parts_of_shared_prefixes_add_up():
    reuse = DEMAND.session_reuse
    sums = np.bincount(reuse.part_request, reuse.part_tokens, minlength=len(TRACE))
    assert sums == pytest.approx(reuse.shared_tokens)


# --- turns back -------------------------------------------------------------------------------


@given(stay=st.floats(0, 1), instances=st.integers(1, 500))
def test_turns_back_is_a_law(stay, instances):
    weights = turns_back_weights(stay, instances)
    assert (weights >= 0).all()
    assert weights.sum() <= 1 + 1e-12
    if instances == 1 or stay == 1:
        assert weights[0] == 1


def test_turns_back_by_hand():
    # equal shares: every earlier turn was here with 1/N, so the law is geometric
    weights = turns_back_weights(0.25, 4)
    assert weights[:3] == pytest.approx([1 / 4, 3 / 16, 9 / 64])


# --- local tier -------------------------------------------------------------------------------


def test_a_sticky_cluster_with_room_for_all_hits_what_there_is():
    rule = StayRule(1.0)
    hits = local_hits(rule, rate=1e-6)
    there = LOCAL.has_home
    assert hits.retention_s > LOCAL.idle[0][np.isfinite(LOCAL.idle[0])].max()
    whole = np.minimum(LOCAL.private[0] + np.minimum(LOCAL.own[0], LOCAL.shared), LOCAL.longest)
    assert hits.tokens[there] == pytest.approx(whole[there], rel=1e-6)


def test_no_room_no_hits_of_ones_own():
    hits = LOCAL.hits(StayRule(1.0), 3.0, 32, 10 * DEMAND.pool_tokens, FOREVER, PACE)
    assert hits.retention_s == 0
    assert (hits.tokens <= LOCAL.shared + 1e-6).all()


@given(
    rate=st.floats(0.2, 12),
    stay=st.floats(0, 1),
    instances=st.sampled_from([1, 2, 8, 32, 200]),
)
@settings(max_examples=25, deadline=None)
def test_local_hits_are_hits(rate, stay, instances):
    hits = local_hits(StayRule(stay, stay_without=stay), rate, instances)
    for values in (hits.stay, hits.whole):
        assert (values >= 0).all()
        assert (values <= 1 + 1e-9).all()
    assert (hits.whole <= hits.stay + 1e-9).all()
    assert (hits.tokens >= -1e-9).all()
    assert (hits.tokens <= LOCAL.longest + 1e-6).all()


def test_more_memory_more_stay_more_hits():
    def mean(**changes):
        settings = {"rate": 6.0, "pinned": 50_000.0} | changes
        return float(local_hits(StayRule(settings.pop("stay", 0.9)), **settings).tokens.mean())

    assert mean(pinned=10_000.0) > mean() > mean(pinned=200_000.0)
    assert mean(stay=1.0) > mean() > mean(stay=0.3)
    assert mean(instances=64) > mean()


def test_the_hit_ratio_refuses_rewritten_and_evicted_homes():
    loose = local_hits(StayRule(1.0, least_hit_ratio=0.0))
    strict = local_hits(StayRule(1.0, least_hit_ratio=0.9))
    assert strict.refused > loose.refused
    # even with room for everything the histories that are rewritten are refused
    always = local_hits(StayRule(1.0, least_hit_ratio=0.9), rate=1e-6)
    there = LOCAL.has_home
    lost = LOCAL.own[0] <= 0.9 * LOCAL.expected
    assert always.refused == pytest.approx(float(lost[there].mean()), abs=1e-3)


def test_a_cold_start_hides_what_is_older_than_the_run():
    early = local_hits(StayRule(1.0), window=(0.0, 60.0))
    late = local_hits(StayRule(1.0), window=(1e4, 1e4 + 60))
    assert early.tokens.mean() < late.tokens.mean()


def test_an_evicted_session_goes_to_any_holder_of_its_prefix():
    """Where few instances hold a prefix its holders tie; where all do it counts for nothing."""
    rule = StayRule(1.0, needs_own=True, stay_without=1 / 32)
    pinned = 10 * DEMAND.pool_tokens  # no room: nothing of a session's own is left
    few = local_hits(rule, rate=1e-3, pinned=pinned)
    all_ = local_hits(rule, rate=1e6, pinned=pinned)
    with_prefix = float((LOCAL.shared > 0)[LOCAL.has_home].mean())
    assert few.refused == pytest.approx(1.0)
    assert few.adrift == pytest.approx(with_prefix, abs=0.01)
    assert all_.adrift == pytest.approx(0.0, abs=0.01)
    assert few.mean_stay == pytest.approx(1 / 32, abs=0.01)
    # it finds the prefix, though few instances hold it
    assert few.landed_tokens[LOCAL.has_home] == pytest.approx(
        np.minimum(LOCAL.shared, LOCAL.longest)[LOCAL.has_home], rel=0.01, abs=1.0
    )


def test_a_rewritten_history_ties_with_the_holders_of_its_prefix():
    rule = StayRule(1.0, needs_own=True, stay_without=1 / 32)
    window = (99.0, 101.0)  # all that there is has been touched lately
    rewritten = LOCAL.has_home & (LOCAL.private[0] <= LOCAL.block) & (LOCAL.shared > 0)
    rewritten &= LOCAL.idle[0] < 50
    assert rewritten.any()
    # nobody else holds the prefix
    rare = local_hits(rule, rate=1e-6, window=window)
    assert rare.stay[rewritten] == pytest.approx(1.0, abs=0.01)
    often = local_hits(rule, rate=3.0, window=window)
    assert (often.stay[rewritten] < rare.stay[rewritten]).all()
    assert (often.stay[rewritten] >= 1 / 32 - 1e-9).all()


@given(stay=st.floats(0, 1))
@settings(max_examples=20)
def test_sessions_that_stay_hold_prefixes_on_fewer_instances(stay):
    ages = np.geomspace(1.0, 1e4, 20)

    def visit_s(stay):
        given = (stay, LOCAL.ages, LOCAL.think_within)
        return np.array([_tier_kernels.visit_s(age, *given) for age in ages])

    kept = visit_s(stay)
    assert (kept <= ages + 1e-9).all()
    assert (kept >= visit_s(min(stay + 0.1, 1.0)) - 1e-9).all()
    assert visit_s(0.0) == pytest.approx(ages)


# --- links ------------------------------------------------------------------------------------


def links(**changes):
    scenario = BASE.replace(**changes)
    return Links(
        cluster_of(scenario),
        DEMAND.instance,
        DEMAND.kv_bytes_per_token,
        get_efficiencies("H20", "vllm"),
    )


TOKENS = np.array([0.0, 1_000.0, 20_000.0, 60_000.0])
EQUAL = np.full(4, 0.25)
NOTHING = np.zeros(4)


def test_an_idle_link_by_hand():
    slow = links(**{"cluster.nic_efficiency": 0.4})
    fetches = slow.fetches(1e-9, TOKENS, EQUAL, NOTHING, None, 0.5)
    bytes_moved = TOKENS * DEMAND.kv_bytes_per_token * 3 / 4
    expected = np.where(TOKENS > 0, slow.fixed_s + bytes_moved / (0.4 * 25e9), 0.0)
    assert fetches.time_s == pytest.approx(expected, rel=1e-6)
    assert (fetches.made_ratio == [0, 1, 1, 1]).all()


def test_utilisation_counts_reads_and_writes():
    slow = links(**{"cluster.nic_efficiency": 0.4})
    both = slow.fetches(2.0, TOKENS, EQUAL, TOKENS, None, 0.0)
    reads = slow.fetches(2.0, TOKENS, EQUAL, NOTHING, None, 0.0)
    assert both.nic_utilisation == pytest.approx(2 * reads.nic_utilisation)
    per_node = 2.0 / 4 * TOKENS.mean() * DEMAND.kv_bytes_per_token * 3 / 4
    assert reads.nic_utilisation == pytest.approx(per_node / (0.4 * 25e9))


def test_writes_beside_decoding_take_longer():
    measured = links()
    given = (2.0, NOTHING, EQUAL, TOKENS, None)
    idle = measured.fetches(*given, 0.2, 0.0).write_utilisation
    busy = measured.fetches(*given, 0.2, 1.0).write_utilisation
    _, _, busy_ratio = nic_curve(cluster_of(BASE))
    assert busy == pytest.approx(idle / busy_ratio)
    usual = measured.fetches(*given, 0.2).write_utilisation
    assert usual == pytest.approx(0.2 * busy + 0.8 * idle)
    # what is fetched does not answer to it, but to how long the link is taken
    assert measured.fetches(2.0, TOKENS, EQUAL, NOTHING, None, 0.2, 1.0).nic_utilisation == (
        pytest.approx(measured.fetches(2.0, TOKENS, EQUAL, NOTHING, None, 0.2).nic_utilisation)
    )


@pytest.mark.parametrize(
    ("changes", "at_writes"),
    [
        ({}, 1.0),
        ({"global_tier.write": "back"}, 0.25),
        ({"cluster.serving": "disaggregated"}, 0.25),
    ],
)
def test_a_write_through_begins_as_its_request_decodes(changes, at_writes, monkeypatch):
    if "cluster.serving" in changes:
        changes |= {"cluster.prefill_instances": 16, "cluster.decode_instances": 16}
    cluster = cluster_form(BASE.replace(**changes), with_sessions(DEMAND))
    seen = []
    fetches = Links.fetches
    monkeypatch.setattr(
        Links, "fetches", lambda self, *given: seen.append(given[5:]) or fetches(self, *given)
    )
    hits = cluster.at(1.0).hits
    seen.clear()
    cluster.engines.mix(1.0, 0.25, hits)
    assert seen == [(0.25, at_writes)]


def test_one_node_has_no_network():
    alone = links(**{"cluster.instances": 8})
    fetches = alone.fetches(5.0, TOKENS, EQUAL, TOKENS, None, 1.0)
    assert fetches.nic_utilisation == 0
    assert fetches.pcie_utilisation > 0


@given(rate=st.floats(0.01, 50.0))
@settings(max_examples=20)
def test_recomputing_relieves_the_links(rate):
    slow = links(**{"cluster.nic_bytes_per_s": 5e9})
    recompute = TOKENS * 1e-4
    made = slow.fetches(rate, TOKENS, EQUAL, NOTHING, recompute, 0.5)
    assert made.nic_utilisation <= 1.0
    assert made.nic_utilisation <= made.offered_nic_utilisation * (1 + 1e-9)
    assert ((made.made_ratio >= 0) & (made.made_ratio <= 1)).all()


def test_a_faster_link_is_never_slower():
    times = [
        float(
            links(**{"cluster.nic_bytes_per_s": speed})
            .fetches(1.0, TOKENS, EQUAL, NOTHING, None, 0.5)
            .time_s.sum()
        )
        for speed in (5e9, 25e9, 100e9)
    ]
    assert times == sorted(times, reverse=True)
