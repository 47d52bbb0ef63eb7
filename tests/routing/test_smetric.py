"""SMetric's own rules: ties, the shared prefix, the guards, and low load."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from smetric_model.routing.policy import Decision, Loads, Policy, Reason, RoutingRequest, TieState
from smetric_model.routing.registry import make_policy


def ask(
    policy: Policy,
    hits: list[int],
    loads: list[float],
    *,
    turn: int = 1,
    est_hit: int = 20_000,
    prompt: int = 22_000,
    up: list[bool] | None = None,
    start: int = 0,
) -> Decision:
    return policy.choose(
        RoutingRequest(prompt, turn, est_hit),
        hits,
        Loads.requests(loads),
        TieState(start),
        available=up,
    )


SMETRIC = make_policy("smetric")


def test_figure_13_by_hand() -> None:
    assert ask(SMETRIC, [0, 20_000, 0, 0], [1, 4, 2, 1]) == Decision(1, Reason.STICK, TieState(2))
    over = ask(SMETRIC, [0, 20_000, 0, 0], [1, 5, 2, 1])  # 5 > 2·9/4
    assert over == Decision(0, Reason.OVERLOADED, TieState(1))
    gone = ask(SMETRIC, [0, 10_000, 0, 0], [1, 0, 2, 1])  # 10,000 is not above 0.5·20,000
    assert gone == Decision(1, Reason.EVICTED, TieState(2))
    first = ask(SMETRIC, [0, 20_000, 0, 0], [1, 1, 2, 1], turn=0, start=2)
    assert first == Decision(3, Reason.FIRST_TURN, TieState(0))


def test_hits_within_a_block_tie_and_go_to_the_least_loaded() -> None:
    hits = [20_000, 19_984, 19_968]
    assert ask(SMETRIC, hits, [3, 2, 0]).instance == 1
    exact = make_policy("smetric", {"block_tokens": 0})
    assert ask(exact, hits, [3, 2, 1]).instance == 0
    # Equal loads: round robin among the tied.
    assert [ask(SMETRIC, hits, [1, 1, 0], start=k).instance for k in range(3)] == [0, 1, 0]
    # An instance that holds nothing does not tie with one that holds a single block.
    assert ask(SMETRIC, [16, 0, 0], [1, 1, 0], est_hit=10).instance == 0


def test_shared_prefix_is_no_affinity() -> None:
    hits = [15_008] * 9 + [0]
    decision = ask(SMETRIC, hits, [1] * 9 + [0])
    assert decision == Decision(9, Reason.SHARED_PREFIX, TieState(0))
    # Held by 8 of 10 only, it is a reason to go there.
    assert ask(SMETRIC, [15_008] * 8 + [0, 0], [9] * 8 + [0, 0]).instance < 8
    assert ask(SMETRIC, [15_008] * 8 + [0, 0], [1] * 10).reason is Reason.STICK


def test_subtracting_the_shared_prefix_sees_what_the_raw_guard_does_not() -> None:
    hits = [15_008] * 10
    hits[4] = 16_000  # 992 tokens of its own left of 5,000
    raw, subtracted = SMETRIC, make_policy("smetric", {"subtract_shared_prefix": True})
    assert ask(raw, hits, [1] * 10).reason is Reason.STICK
    assert ask(subtracted, hits, [1] * 10).reason is Reason.EVICTED


def test_the_reason_names_a_home_that_is_down() -> None:
    up = [False, True, True]
    assert ask(SMETRIC, [20_000, 0, 0], [0, 1, 0], up=up).reason is Reason.HOME_DOWN
    assert ask(SMETRIC, [20_000, 18_000, 0], [0, 1, 1], up=up).reason is Reason.STICK
    # A down instance that holds the common prefix only was nobody's home.
    assert ask(SMETRIC, [15_008] * 3, [0, 1, 0], up=up).reason is Reason.SHARED_PREFIX


def test_literal_variant_takes_the_first_index() -> None:
    literal = make_policy("smetric", {"tie_break": "first"})
    assert ask(literal, [15_008] * 10, [1] * 10).instance == 0
    basic = make_policy("smetric-basic", {"tie_break": "first"})
    assert ask(basic, [0] * 4, [5, 0, 0, 0]).instance == 0


def test_infinite_overload_is_no_guard_even_when_everybody_is_idle() -> None:
    free = make_policy("smetric", {"overload": math.inf})
    assert ask(free, [20_000, 0], [0, 0]).reason is Reason.STICK
    assert ask(free, [20_000, 0], [900, 0]).reason is Reason.STICK


def test_a_floor_of_zero_is_no_floor() -> None:
    strict = make_policy("smetric", {"overload": 0.5})
    assert ask(strict, [20_000, 0], [1, 1]).reason is Reason.OVERLOADED


def test_slo_gate() -> None:
    policy = make_policy("smetric-slo", {"prefill_tokens_per_s": 1_000.0})
    # SLO 2 s + 0.5 ms · 22,000 = 13 s; home: 2,000 own tokens, so up to 11,000 queued.
    request = RoutingRequest(22_000, 1, 20_000)

    def go(queued: list[float], hits: list[int] | None = None) -> Decision:
        loads = Loads.requests([3, 1, 2], queued)
        return policy.choose(request, hits or [20_000, 12_000, 12_000], loads, TieState())

    assert go([11_000, 0, 0]).reason is Reason.STICK
    assert go([11_001, 0, 0]) == Decision(1, Reason.SLO_MISSED, TieState(2))
    # Instance 1 is lighter, but only 2 can meet the SLO (10,000 own tokens).
    assert go([11_001, 3_001, 3_000]) == Decision(2, Reason.SLO_MISSED, TieState(0))
    assert go([11_001, 3_001, 3_001]).reason is Reason.STICK  # nobody can
    unknown = make_policy("smetric-slo")
    loads = Loads.requests([3, 1, 2], [1e9, 0, 0])
    assert unknown.choose(request, [20_000, 0, 0], loads, TieState()).reason is Reason.STICK


def test_slo_gate_prices_attention() -> None:
    """2,000 new tokens behind 20,000 cost 2,000·(1 + 21,000/7,000) = 8,000 token times."""
    request = RoutingRequest(22_000, 1, 20_000)
    settings = {"prefill_tokens_per_s": 1_000.0, "attention_equal_tokens": 7_000.0}
    policy = make_policy("smetric-slo", {**settings, "ttft_base_s": 8.0})
    for queued, reason in ((11_000, Reason.STICK), (11_001, Reason.SLO_MISSED)):
        policy_ = policy
        loads = Loads.requests([1, 1], [queued, 0])
        hits = [20_000, 20_000 - 1_000]
        decision = policy_.choose(request, hits, loads, TieState())
        assert decision.reason is reason


def follow_ups_moved(policy: Policy, instances: int, resident: int) -> float:
    """Exact share of follow-ups that leave, residents and home placed uniformly at random."""
    moved = total = 0
    for places in itertools.product(range(instances), repeat=resident):
        loads = np.bincount(places, minlength=instances).astype(float)
        hits = [0] * instances
        hits[0] = 20_000  # by symmetry the home is instance 0
        moved += ask(policy, hits, list(loads)).reason is not Reason.STICK
        total += 1
    return moved / total


@pytest.mark.parametrize("overload", [1.5, 2.0, 3.9])
def test_low_load_guard_moves_a_quarter_of_the_follow_ups_for_nothing(overload: float) -> None:
    """Mean load 0.25: one running request is already over OVERLOAD·mean."""
    guard = make_policy("smetric", {"overload": overload})
    assert follow_ups_moved(guard, 4, 1) == 0.25
    assert follow_ups_moved(guard, 8, 2) == pytest.approx(1 - (7 / 8) ** 2)
    assert 0.2 < follow_ups_moved(guard, 12, 3) < 0.25


def test_absolute_floor_ends_it() -> None:
    floored = make_policy("smetric", {"overload_floor": 2})
    assert follow_ups_moved(floored, 4, 1) == 0
    assert follow_ups_moved(floored, 8, 2) == 0
    # At three residents on one of 12 instances the floor (0.25 + 2) is passed, as it should be.
    assert follow_ups_moved(floored, 12, 3) == pytest.approx(12**-3)
    # Where there is load it changes nothing: 10 > 2·4 and 10 > 4 + 2.
    assert ask(floored, [20_000, 0, 0], [10, 1, 1]).reason is Reason.OVERLOADED


def spread(policy: Policy, instances: int, holders: int, loads: str, seed: int) -> np.ndarray:
    """Instances of 1,000 follow-ups of evicted sessions that share a 15k system prompt."""
    rng = np.random.default_rng(seed)
    hits = np.zeros(instances, dtype=np.int64)
    hits[rng.permutation(instances)[:holders]] = 15_008
    in_flight = np.zeros(instances)
    counts = np.zeros(instances, dtype=int)
    ties = TieState()
    for _ in range(1_000):
        if loads == "drawn":
            in_flight = rng.poisson(4.0, instances).astype(float)
        decision = policy.choose(
            RoutingRequest(23_000, 3, 21_000), hits, Loads.requests(in_flight), ties
        )
        ties = decision.ties
        counts[decision.instance] += 1
        if loads == "served":  # placed requests stay in flight, each departs at the same rate
            in_flight[decision.instance] += 1
            in_flight -= rng.binomial(in_flight.astype(int), 0.02)
    return counts


@pytest.mark.parametrize("holders", [32, 29])
@pytest.mark.parametrize("loads", ["equal", "served", "drawn"])
def test_evicted_sessions_spread_evenly(loads: str, holders: int) -> None:
    sigma = math.sqrt(1_000 * (1 / 32) * (31 / 32))
    counts = spread(SMETRIC, 32, holders, loads, seed=1)
    assert np.all(np.abs(counts - 1_000 / 32) <= 3 * sigma)


def test_evicted_sessions_all_run_to_one_instance_under_the_literal_rule() -> None:
    counts = spread(make_policy("smetric", {"tie_break": "first"}), 32, 32, "equal", seed=1)
    assert counts[0] == 1_000
