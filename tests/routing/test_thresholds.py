"""Threshold forms say of every policy that has one when a follow-up stays home."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smetric_model.routing.policy import Loads, Reason, RoutingRequest, TieState
from smetric_model.routing.registry import POLICIES, make_policy
from smetric_model.routing.thresholds import FollowUp

CACHED = ("smetric", "smetric-slo", "bailian", "lmetric", "dynamo", "load-balance")
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "overload": st.sampled_from([1.0, 1.5, 2.0, math.inf]),
    "overload_floor": st.sampled_from([0, 1, 2]),
    "hit_ratio": st.sampled_from([0.0, 0.5, 0.9]),
    "subtract_shared_prefix": st.booleans(),
    "hit_weight": st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    "load_normalisation": st.sampled_from(["mean", "max", "minmax"]),
    "count_self": st.booleans(),
    "prefill_tokens_per_s": st.sampled_from([500.0, 4_000.0, math.inf]),
    "attention_equal_tokens": st.sampled_from([6923.0, math.inf]),
}


def test_which_policies_have_a_threshold_form() -> None:
    without = {name for name in POLICIES if make_policy(name).threshold_form is None}
    assert without == {"random", "round-robin", "power-of-two"}


@settings(max_examples=600)
@given(st.sampled_from(CACHED), st.fixed_dictionaries(SETTINGS), st.data())
def test_form_agrees_with_the_policy(
    name: str, parameters: dict[str, Any], data: st.DataObject
) -> None:
    policy = make_policy(name, parameters)
    form = policy.threshold_form
    assert form is not None
    n = data.draw(st.integers(2, 8))
    prompt = data.draw(st.integers(1_000, 50_000))
    # Home holds clearly the longest hit: within a block the tie rule would name another home.
    home_hit = data.draw(st.integers(200, prompt))
    other = st.one_of(st.just(0), st.integers(0, home_hit - 100))
    hits = np.array([home_hit, *data.draw(st.lists(other, min_size=n - 1, max_size=n - 1))])
    count = st.integers(0, 9).map(float)
    loads = np.array(data.draw(st.lists(count, min_size=n, max_size=n)))
    queued = loads * data.draw(st.sampled_from([100.0, 3_000.0]))
    compared = queued if policy.needs_unprefilled_tokens else loads
    request = RoutingRequest(prompt, 1, data.draw(st.integers(0, prompt)))
    ordered = np.sort(hits)[::-1]
    shared = ordered[math.ceil(0.9 * n - 1e-9) - 1]
    assume(name == "load-balance" or hits[0] > shared)

    def seen(instance: int, against: int) -> FollowUp:
        return FollowUp(
            prompt_tokens=float(prompt),
            est_hit_tokens=float(request.est_hit_tokens),
            home_hit_tokens=float(hits[instance]),
            other_hit_tokens=float(hits[against]),
            shared_prefix_tokens=float(shared),
            other_load=float(compared[against]),
            mean_load=float(compared.mean()),
            min_load=float(compared.min()),
            max_load=float(compared.max()),
        )

    limits = [float(form.home_load_limit(seen(0, j))) for j in range(1, n)]
    # Equality is a tie (and, with a rounded limit, undecided).
    assume(
        all(math.isinf(x) or abs(x - compared[0]) > 1e-9 * (1 + abs(x)) for x in limits)
        or form.compares_with in ("mean", "nothing")
    )
    if form.compares_with == "each other":
        assume(all(not math.isinf(x) or hits[0] != hits[j] for j, x in enumerate(limits, 1)))
        if name == "lmetric" and not parameters["count_self"]:
            assume((loads > 0).all())  # idle instances all score 0
        if home_hit == prompt and name == "lmetric":
            assume((hits[1:] < prompt).all())
    stays = all(compared[0] <= x for x in limits)
    if form.compares_with == "slo" and not stays:
        stays = all(compared[j] > float(form.home_load_limit(seen(j, 0))) for j in range(1, n))
    if form.min_hit_tokens is not None:
        stays = stays and home_hit > float(form.min_hit_tokens(seen(0, 1)))
    decision = policy.choose(request, hits, Loads.requests(loads, queued), TieState())
    if form.compares_with == "each other":
        assert stays == (decision.instance == 0)
    else:
        assert stays == (decision.reason is Reason.STICK)


def test_limits_by_hand() -> None:
    def limit(name: str, seen: FollowUp, **parameters: Any) -> float:
        form = make_policy(name, parameters).threshold_form
        assert form is not None
        return float(form.home_load_limit(seen))

    seen = FollowUp(
        prompt_tokens=10_000.0,
        home_hit_tokens=8_000.0,
        other_hit_tokens=2_000.0,
        other_load=1.0,
        mean_load=2.0,
        min_load=1.0,
        max_load=5.0,
    )
    assert limit("load-balance", seen) == 1
    assert limit("smetric", seen) == 4
    assert limit("smetric", seen, overload_floor=3) == 5
    assert limit("bailian", seen, hit_weight=0.5) == pytest.approx(1 + 2 * 0.6)
    assert limit("bailian", seen, hit_weight=0.5, load_normalisation="max") == pytest.approx(4.0)
    assert limit("bailian", seen, hit_weight=0.5, load_normalisation="minmax") == pytest.approx(3.4)
    assert limit("lmetric", seen) == 8_000 * 2 / 2_000 - 1
    assert limit("lmetric", seen, count_self=False) == 8_000 * 1 / 2_000
    assert limit("dynamo", seen) == 6_001
    assert limit("bounded-hash", seen) == 4
    assert limit("always-sticky", seen) == math.inf
    assert limit("smetric-basic", seen) == math.inf


def test_forms_broadcast_over_arrays() -> None:
    loads = np.array([0.0, 1.0, 2.0])
    for name in POLICIES:
        form = make_policy(name, {"prefill_tokens_per_s": 100.0}).threshold_form
        if form is not None:
            seen = FollowUp(
                prompt_tokens=np.full(3, 100.0),
                home_hit_tokens=np.full(3, 50.0),
                other_load=loads,
                mean_load=loads,
                min_load=loads,
                max_load=loads,
            )
            assert form.home_load_limit(seen).shape == (3,)


def test_max_normalisation_with_a_large_weight_never_lets_go() -> None:
    """A weight above 1/(1 + ĉ) on a [0, 1] scale is always-sticky."""
    form = make_policy("bailian", {"hit_weight": 0.6, "load_normalisation": "max"}).threshold_form
    assert form is not None
    seen = FollowUp(
        prompt_tokens=100.0, home_hit_tokens=70.0, other_load=0.0, max_load=9.0, mean_load=1.0
    )
    assert float(form.home_load_limit(seen)) > 9
