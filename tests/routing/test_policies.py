"""Laws of all policies, and the compiled twin held equal to the readable functions."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smetric_model.errors import SpecError
from smetric_model.routing.compiled import PARAMETERS, POLICY_CODES, choose, choose_compiled, pack
from smetric_model.routing.policy import Decision, Loads, Policy, Reason, RoutingRequest, TieState
from smetric_model.routing.registry import POLICIES, make_policy

KV_AWARE = ("smetric", "smetric-basic", "smetric-slo", "bailian", "lmetric", "dynamo")
ARBITRARY = ("random", "power-of-two", "round-robin")


@dataclass(frozen=True)
class Case:
    """Everything one decision depends on, but for the policy."""

    request: RoutingRequest
    hits: np.ndarray
    loads: Loads
    available: np.ndarray
    keys: np.ndarray
    ties: TieState

    def ask(self, policy: Policy, ties: TieState | None = None) -> Decision:
        return policy.choose(
            self.request,
            self.hits,
            self.loads,
            self.ties if ties is None else ties,
            available=self.available,
            instance_keys=self.keys,
        )

    def permuted(self, order: np.ndarray) -> Case:
        queued = self.loads.unprefilled_tokens
        assert queued is not None
        return replace(
            self,
            hits=self.hits[order],
            loads=Loads.requests(self.loads.values[order], queued[order]),
            available=self.available[order],
            keys=self.keys[order],
        )


@st.composite
def cases(draw: st.DrawFn, whole_loads: bool = False) -> Case:
    instances = draw(st.integers(1, 12))
    prompt = draw(st.sampled_from([0, 1, 100, 4_096, 60_000]))
    block_hits = st.integers(0, 6).map(lambda k: k * 16)
    long_hits = st.sampled_from([prompt // 2, prompt * 9 // 10, prompt])
    hit = st.one_of(st.just(0), block_hits, long_hits, st.integers(0, prompt))
    hits = draw(st.lists(hit.map(lambda h: min(h, prompt)), min_size=instances, max_size=instances))
    whole = st.integers(0, 6).map(float)
    load = whole if whole_loads else st.one_of(whole, st.floats(0, 1e4, allow_subnormal=False))
    loads = draw(st.lists(load, min_size=instances, max_size=instances))
    queued = draw(
        st.lists(
            st.one_of(whole, st.integers(0, 10**6).map(float)),
            min_size=instances,
            max_size=instances,
        )
    )
    up = draw(st.lists(st.booleans(), min_size=instances, max_size=instances).filter(any))
    uint64 = st.integers(0, 2**64 - 1)
    keys = draw(st.lists(uint64, min_size=instances, max_size=instances, unique=True))
    return Case(
        RoutingRequest(
            prompt,
            draw(st.integers(0, 3)),
            draw(st.one_of(st.integers(0, prompt), st.just(prompt))),
            draw(uint64),
        ),
        np.array(hits, dtype=np.int64),
        Loads.requests(loads, queued),
        np.array(up),
        np.array(keys, dtype=np.uint64),
        TieState(draw(st.integers(0, 20)), draw(uint64)),
    )


PARAMETER_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tie_break": st.sampled_from(["least-loaded", "first"]),
    "block_tokens": st.sampled_from([0, 1, 16, 64]),
    "shared_by_ratio": st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    "hit_ratio": st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)),
    "subtract_shared_prefix": st.booleans(),
    "overload": st.one_of(st.sampled_from([1.0, 2.0, math.inf]), st.floats(1, 8)),
    "overload_floor": st.sampled_from([0.0, 1.0, 2.0, 1000.0]),
    "ttft_base_s": st.sampled_from([0.0, 2.0]),
    "ttft_per_prompt_token_s": st.sampled_from([0.0, 0.0005]),
    "prefill_tokens_per_s": st.sampled_from([1.0, 5_000.0, 1e6, math.inf]),
    "attention_equal_tokens": st.sampled_from([6923.0, math.inf]),
    "hit_weight": st.one_of(st.sampled_from([0.0, 0.7, 1.0]), st.floats(0, 1)),
    "load_normalisation": st.sampled_from(["mean", "max", "minmax"]),
    "count_self": st.booleans(),
}


@st.composite
def policies(draw: st.DrawFn, names: tuple[str, ...] = tuple(POLICIES), **fixed: Any) -> Policy:
    policy = POLICIES[draw(st.sampled_from(names))]
    chosen = {f.name: draw(PARAMETER_VALUES[f.name]) for f in fields(policy)}
    if policy.name == "smetric" and draw(st.booleans()):
        chosen["overload"] = draw(st.floats(0.1, 1))
    return make_policy(policy.name, {**chosen, **fixed})


@settings(max_examples=800, deadline=None)
@given(policies(), cases())
def test_compiled_twin_is_equal(policy: Policy, case: Case) -> None:
    compiled = choose_compiled(
        policy,
        case.request,
        case.hits,
        case.loads,
        case.ties,
        available=case.available,
        instance_keys=case.keys,
    )
    assert compiled == case.ask(policy)


@given(policies(), cases())
def test_never_a_down_instance_and_never_its_loads(policy: Policy, case: Case) -> None:
    decision = case.ask(policy)
    assert case.available[decision.instance]
    queued = case.loads.unprefilled_tokens
    assert queued is not None
    elsewhere = replace(
        case,
        loads=Loads.requests(
            np.where(case.available, case.loads.values, 777.0),
            np.where(case.available, queued, 1.0),
        ),
    )
    assert elsewhere.ask(policy) == decision


@given(policies(), cases())
def test_pure(policy: Policy, case: Case) -> None:
    before = case.hits.copy(), case.loads.values.copy(), case.available.copy()
    assert case.ask(policy) == case.ask(policy)
    for now, then in zip((case.hits, case.loads.values, case.available), before, strict=True):
        np.testing.assert_array_equal(now, then)


@given(
    policies(
        names=tuple(name for name in POLICIES if name not in ARBITRARY), tie_break="least-loaded"
    ),
    cases(whole_loads=True),
    st.randoms(use_true_random=False),
)
def test_permuting_instances_permutes_the_choice(policy: Policy, case: Case, random: Any) -> None:
    """Whoever can win, over all positions of the round-robin pointer, is permuted alike."""
    n = case.hits.size
    order = np.array(random.sample(range(n), n))
    shuffled = case.permuted(order)

    def outcomes(c: Case) -> list[Decision]:
        return [c.ask(policy, replace(c.ties, next_instance=p)) for p in range(n)]

    direct = {(int(d.instance), d.reason) for d in outcomes(case)}
    back = {(int(order[d.instance]), d.reason) for d in outcomes(shuffled)}
    assert back == direct
    if len(direct) == 1:
        assert {d.instance for d in outcomes(shuffled)} == {
            int(np.flatnonzero(order == next(iter(direct))[0])[0])
        }


@given(policies(names=("smetric",), overload=math.inf, hit_ratio=0.0), cases())
def test_smetric_without_guards_is_basic(policy: Policy, case: Case) -> None:
    shared = {f.name: getattr(policy, f.name) for f in fields(POLICIES["smetric-basic"])}
    basic = make_policy("smetric-basic", shared)
    if shared["tie_break"] == "first" and case.request.turn:
        # Figure 13 to the letter: a hit of 0 is not above 0·est_hit, while basic has no guard;
        # and it knows no shared prefix to subtract.
        assume(case.hits[case.available].max() > 0 and not policy.subtract_shared_prefix)  # type: ignore[attr-defined]
    assert case.ask(policy) == case.ask(basic)


@given(
    policies(names=KV_AWARE, hit_weight=0.7),
    st.integers(1, 12),
    st.data(),
)
def test_follow_up_with_the_only_hit_at_home_and_equal_loads_stays(
    policy: Policy, instances: int, data: st.DataObject
) -> None:
    prompt = data.draw(st.integers(2, 100_000))
    hit = data.draw(st.integers(1, prompt - 1))
    home = data.draw(st.integers(0, instances - 1))
    load = data.draw(st.sampled_from([0.0, 1.0, 0.1, 7.0]))
    # With l in place of l + 1 every idle instance scores 0: LMetric then ignores hits.
    assume(load > 0 or getattr(policy, "count_self", True))
    assume(getattr(policy, "overload", 1.0) >= 1)
    ratio = getattr(policy, "hit_ratio", 0.0)
    request = RoutingRequest(prompt, 1, data.draw(st.integers(0, prompt)))
    assume(hit > ratio * request.est_hit_tokens)
    hits = np.zeros(instances, dtype=np.int64)
    hits[home] = hit
    loads = Loads.requests(np.full(instances, load), np.full(instances, 10.0))
    decision = policy.choose(request, hits, loads, TieState(data.draw(st.integers(0, 11))))
    assert decision.instance == home
    assert decision.reason is Reason.STICK


@given(policies(names=("smetric",)), cases(), st.floats(1, 4))
def test_raising_overload_never_makes_a_follow_up_leave(
    policy: Policy, case: Case, factor: float
) -> None:
    if case.ask(policy).reason is Reason.STICK:
        looser = policy.with_parameters(overload=policy.overload * factor)  # type: ignore[attr-defined]
        assert case.ask(looser) == case.ask(policy)


@given(policies(names=("smetric", "smetric-basic", "smetric-slo", "load-balance")), cases())
def test_first_turns_and_migrants_go_to_a_least_load(policy: Policy, case: Case) -> None:
    decision = case.ask(policy)
    if decision.reason not in (Reason.STICK, Reason.SLO_MISSED):
        up = case.loads.values[case.available]
        assert case.loads.values[decision.instance] == up.min()


@given(policies(names=("bounded-hash",)), cases())
def test_bounded_hash_keeps_its_bound(policy: Policy, case: Case) -> None:
    load = case.loads.values[case.ask(policy).instance]
    up = case.loads.values[case.available]
    overload = policy.overload  # type: ignore[attr-defined]
    assert math.isinf(overload) or load <= max(overload * up.mean() * (1 + 1e-12), up.min())


@given(policies(names=("always-sticky", "bounded-hash"), overload=math.inf), cases())
def test_hash_moves_only_sessions_of_the_lost_instance(policy: Policy, case: Case) -> None:
    before = case.ask(policy).instance
    for lost in np.flatnonzero(case.available):
        if case.available.sum() > 1 and lost != before:
            up = case.available.copy()
            up[lost] = False
            assert replace(case, available=up).ask(policy).instance == before


@given(cases())
def test_power_of_two_never_takes_the_single_most_loaded(case: Case) -> None:
    up = case.loads.values[case.available]
    assume(up.size > 1 and (up == up.max()).sum() == 1)
    chosen = case.ask(make_policy("power-of-two")).instance
    assert case.loads.values[chosen] < up.max()


@pytest.mark.parametrize("name", ["random", "power-of-two", "round-robin", "always-sticky"])
def test_blind_policies_use_every_available_instance_evenly(name: str) -> None:
    instances, draws = 16, 20_000
    up = np.ones(instances, bool)
    up[[3, 7]] = False
    policy = make_policy(name)
    hits, loads = np.zeros(instances, int), Loads.requests(np.zeros(instances))
    counts = np.zeros(instances, int)
    ties = TieState(0, 42)
    rng = np.random.default_rng(5)
    for key in rng.integers(0, 2**63, draws):
        request = RoutingRequest(1, 1, 0, int(key))
        decision = policy.choose(request, hits, loads, ties, available=up)
        ties = decision.ties
        counts[decision.instance] += 1
    expected = draws / 14
    assert counts[~up].sum() == 0
    assert np.all(np.abs(counts[up] - expected) < 4 * math.sqrt(expected))


def test_a_policy_never_sees_the_output_length() -> None:
    assert not [f.name for f in fields(RoutingRequest) if "output" in f.name]


def test_compiled_twin_covers_every_policy_and_says_when_nothing_is_up() -> None:
    assert set(POLICY_CODES) == set(POLICIES)
    assert len(set(POLICY_CODES.values())) == len(POLICIES)
    for name in POLICIES:
        instance, reason, pointer, state = choose(
            pack(make_policy(name)),
            10,
            1,
            5,
            np.uint64(0),
            np.zeros(3, np.int64),
            np.zeros(3),
            np.zeros(3),
            np.zeros(3, np.bool_),
            np.zeros(3, np.uint64),
            2,
            np.uint64(9),
        )
        assert (instance, reason, pointer, state) == (-1, Reason.NO_INSTANCE, 2, 9)


def test_compiled_twin_runs_inside_other_compiled_code() -> None:
    import numba

    @numba.njit
    def place(records, hits, loads, up, keys):  # type: ignore[no-untyped-def]
        pointer, state, total = 0, np.uint64(0), 0
        for k in range(records.size):
            instance, _, pointer, state = choose(
                records[k], 100, 0, 0, np.uint64(1), hits, loads, loads, up, keys, pointer, state
            )
            loads[instance] += 1
            total += 1
        return total

    records = np.array([pack(make_policy("smetric"))] * 8, dtype=PARAMETERS)
    loads = np.zeros(4)
    up, keys = np.ones(4, np.bool_), np.arange(4, dtype=np.uint64)
    assert place(records, np.zeros(4, np.int64), loads, up, keys) == 8
    np.testing.assert_array_equal(loads, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hit_tokens": [0, 0, 0]}, "hit_tokens has shape"),
        ({"hit_tokens": [0, 11]}, r"hit_tokens\[1\] is 11"),
        ({"hit_tokens": [-1, 0]}, r"hit_tokens\[0\] is -1"),
        ({"hit_tokens": [0.5, 0.0]}, "whole tokens"),
        ({"available": [False, False]}, "no instance is available"),
        ({"available": [1, 0]}, "booleans"),
        ({"instance_keys": [1]}, "instance_keys has shape"),
    ],
)
def test_wrong_inputs_are_named(arguments: dict[str, Any], message: str) -> None:
    given_ = {"hit_tokens": [0, 0], **arguments}
    with pytest.raises(SpecError, match=message):
        make_policy("smetric").choose(
            RoutingRequest(10), loads=Loads.requests([0, 0]), ties=TieState(), **given_
        )


def test_loads_say_what_they_count() -> None:
    for wrong in ([1, -1], [1, math.nan], [math.inf], [], [[1]]):
        with pytest.raises(SpecError, match="loads values"):
            Loads.requests(wrong)
    with pytest.raises(SpecError, match="age_s"):
        Loads.requests([1], age_s=-1)
    with pytest.raises(SpecError, match="one of each"):
        Loads.requests([1], unprefilled_tokens=[1, 2])
    request, hits = RoutingRequest(10, 1, 5), [0, 8]
    for name in ("dynamo", "smetric-slo"):
        for ask in (
            make_policy(name).choose,
            lambda *a, n=name: choose_compiled(make_policy(n), *a),
        ):
            with pytest.raises(SpecError, match="needs unprefilled tokens"):
                ask(request, hits, Loads.requests([0, 0]), TieState())
            assert ask(request, hits, Loads.tokens([0, 0]), TieState()).instance == 1
