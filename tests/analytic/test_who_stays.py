"""Who stays at its home, who wins a tie with it, and where a session's first turn was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic import _routing_kernels as routing
from smetric_model.analytic import _session_kernels as sessions
from smetric_model.analytic import _stay_kernels as stay_kernels
from smetric_model.analytic.returns import TurnLaw, return_to_first_ratio
from smetric_model.analytic.routed_cluster import FollowUpHits, RoutedCluster, Unprefilled
from smetric_model.analytic.stay_rule import LEADS, Pace, StayRule, lead_of
from smetric_model.analytic.stick_rules import stays_against_bursts
from smetric_model.analytic.stickiness import stickiness
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.routing import make_policy
from tests.analytic.test_cluster_tiers import LOCAL

PROMPT = np.linspace(5_000.0, 40_000.0, 24)
OWN = PROMPT * np.tile(np.linspace(0.25, 0.98, 6), 4)
HITS = FollowUpHits(PROMPT, OWN, OWN, np.full(24, 1_000.0))
UNPREFILLED = Unprefilled(0.3, np.array([500.0, 4_000.0, 20_000.0]), np.array([0.5, 0.3, 0.2]))


def solved(name, parameters=(), load=2.0, instances=24, **more):
    present = np.arange(1.0, 300.0)
    return stickiness(
        RoutedCluster(
            instances=instances,
            arrival_rate_rps=load / (2.0 + 0.25 * load) * instances,
            completion_rate_rps=present / (2.0 + 0.25 * present),
            policy=make_policy(name, dict(parameters)),
            turns=TurnLaw.geometric(20.0),
            think_time=ThinkTime.exponential(10.0),
            follow_ups=HITS,
            **more,
        )
    )


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("bailian", {}),
        ("lmetric", {}),
        ("dynamo", {"load_unit_tokens": 900.0}),
        ("dynamo", {"load_unit_tokens": 900.0, "unprefilled": UNPREFILLED}),
    ],
)
@pytest.mark.parametrize("load", [0.7, 3.0, 8.0])
def test_those_with_more_at_home_stay_more(name, more, load):
    answer = solved(name, load=load, **more)
    stays = answer.stay_of_hits
    kind = {"bailian": "share", "lmetric": "ratio", "dynamo": "tokens"}[name]
    lead = lead_of(kind, PROMPT, OWN, np.full(24, 1_000.0))
    assert (np.diff(stays[np.argsort(lead)]) >= -1e-9).all()
    # their mean is what the mean field goes by
    everybody = float(answer.follow_up_load_law @ answer.stay_given_load)
    assert stays.mean() == pytest.approx(everybody, abs=2e-3)


def test_policies_that_weigh_no_hits_tell_nobody_apart():
    assert solved("smetric").stay_of_hits is None
    assert solved("bailian", {"load_normalisation": "max"}).stay_of_hits is None


@given(load=st.floats(0.3, 8.0), instances=st.integers(2, 100))
@settings(max_examples=12, deadline=None)
def test_a_home_among_holders(load, instances):
    answer = solved("smetric", load=load, instances=instances)
    wins = answer.home_wins(12)
    assert wins[0] == pytest.approx(1.0, abs=1e-6)
    assert (np.diff(wins) <= 1e-12).all()
    assert 0 <= answer.older_wins <= 1
    if instances == 2:  # of two, one wins
        assert wins[-1] == pytest.approx(1 - answer.older_wins, abs=1e-6)


@given(ratio=st.floats(0.05, 0.95), lead=st.floats(100.0, 60_000.0), load=st.integers(0, 12))
@settings(max_examples=15, deadline=None)
def test_bursts_of_unprefilled_tokens_by_drawing(ratio, lead, load):
    added = UNPREFILLED._replace(ratio=ratio)
    leads = np.array([lead, 80_000.0])
    stay = stays_against_bursts(added, leads, 13)[0, load]
    rng = np.random.default_rng(3)
    drawn = rng.choice(added.tokens, (20_000, max(load, 1)), p=added.weights / added.weights.sum())
    drawn *= rng.random(drawn.shape) < ratio
    tokens = drawn.sum(axis=1) if load else np.zeros(1)
    # a cell of the grid may fall to either side
    cell = 2 * 80_000.0 / 62
    assert (tokens <= lead - cell).mean() - 0.015 <= stay <= (tokens <= lead + cell).mean() + 0.015


def test_leads_by_hand():
    part = routing.stay_against_mean(np.array([2.0]), np.full(6, 1.5), 1e-9, 40, 6)
    seen, least = np.array([0.2, 0.2, 0.2, 0.2, 0.1, 0.1]), np.array([0.7, 0.3, 0, 0, 0, 0])
    alone = stay_kernels.stay_of_leads(np.array([2.0, 0.0]), np.full(6, 1.5), 1e-9, 40, least, seen)
    assert alone[0] == pytest.approx(seen @ (least @ part))
    # without a lead only a home no busier than the least loaded keeps its own
    assert alone[1] == pytest.approx(0.2 + 0.2 * 0.3)


def test_stays_follow_the_leads():
    rule = StayRule(0.8, needs_own=True, seeks_hits=True)
    assert (LOCAL.stays(rule) == 0.8).all()
    leads = np.linspace(0.0, 1.0, LEADS)
    rule = StayRule(
        0.8,
        needs_own=True,
        stay_of_leads=leads,
        stay_above_leads=0.5 * (1 + leads),
        lead="share",
        longest_lead=1.0,
    )
    own = np.minimum(LOCAL.own[0], LOCAL.prompt)
    expected = np.maximum(own - np.minimum(LOCAL.shared, own), 0) / LOCAL.prompt
    assert LOCAL.stays(rule) == pytest.approx(np.clip(expected, 0, 1))
    table = rule.stay_table()
    assert table[0] == pytest.approx(leads)
    assert np.exp(table[1]) == pytest.approx(0.5 * (1 + leads))
    # with enough room those stay that the rule says
    hits = LOCAL.hits(rule, 1e-3, 32, 10_000.0, (1e9, 1e9 + 1), Pace(0.5, 0.01))
    kept = LOCAL.has_home & (LOCAL.private[0] > 64)
    assert (hits.stay[kept] <= LOCAL.stays(rule)[kept] + 1e-9).all()
    assert np.corrcoef(hits.stay[kept], LOCAL.stays(rule)[kept])[0, 1] > 0.9


# --- where the first turn was -----------------------------------------------------------------


def at_first(stay, tied=0.0, sought=0.0, instances=9.0, turns=40):
    """P(at the first instance) of each turn of one session, all turns alike."""
    alike = np.full(turns, 1.0)
    out = np.zeros(turns)
    order, session = np.arange(turns), np.zeros(turns, np.int64)
    sessions.returns(order, session, stay * alike, tied * alike, sought * alike, instances, out)
    return out


@given(stay=st.floats(0.05, 1.0), instances=st.integers(2, 60))
@settings(max_examples=20, deadline=None)
def test_without_older_copies_it_is_the_two_state_chain(stay, instances):
    law = at_first(stay, instances=float(instances))
    assert law[0] == 1
    turns = TurnLaw(np.ones(39))
    assert law[1:].mean() == pytest.approx(return_to_first_ratio(stay, instances, turns), abs=1e-6)


@given(stay=st.floats(0.3, 0.9), share=st.floats(0.1, 1.0))
@settings(max_examples=20, deadline=None)
def test_older_copies_bring_sessions_back(stay, share):
    alone = at_first(stay)
    tied = at_first(stay, tied=share * (1 - stay))
    sought = at_first(stay, sought=share * (1 - stay))
    for law in (tied, sought):
        assert (law >= 0).all()
        assert (law <= 1 + 1e-12).all()
        assert law.mean() > alone.mean()


def test_two_instances_take_turns():
    # whoever leaves one of two instances comes to the other
    law = at_first(0.0, instances=2.0, turns=6)
    assert law == pytest.approx([1, 0, 1, 0, 1, 0])
    assert at_first(0.0, sought=1.0, turns=6) == pytest.approx([1, 0, 1, 0, 1, 0])
