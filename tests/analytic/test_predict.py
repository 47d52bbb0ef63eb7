from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import Prediction, predict
from smetric_model.errors import SpecError, UnstableError
from smetric_model.outcome import check_identities
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import load_trace

DATA = Path(__file__).parents[2] / "data"
BASE = Scenario.from_toml(DATA / "scenarios" / "agents-small.toml")
TRACE = load_trace(DATA / "traces" / "agents-small.parquet")
TRACE = TRACE.take(np.arange(300))
REUSES = ("none", "tiers", "ideal")


@cache
def demand(budget):
    return demand_of(BASE.replace(**{"engine.token_budget": budget}), TRACE)


def prediction_of(reuse, **changes):
    scenario = BASE.replace(**changes)
    return Prediction(scenario, demand(changes.get("engine.token_budget", 8192)), reuse)


@given(
    reuse=st.sampled_from(REUSES),
    instances=st.sampled_from([8, 16, 64]),
    tier=st.sampled_from([0.0, 50e9, 1000e9]),
    budget=st.sampled_from([2048, 8192]),
    load=st.floats(0.02, 0.97),
    tpot=st.floats(0.01, 0.2),
)
@settings(max_examples=5)
def test_outcomes_keep_every_identity(reuse, instances, tier, budget, load, tpot):
    prediction = prediction_of(
        reuse,
        **{
            "cluster.instances": instances,
            "global_tier.bytes_per_node": tier,
            "engine.token_budget": budget,
            "slo.tpot_s": tpot,
        },
    )
    rate = load * prediction.stability_rps
    if prediction.nic_utilisation(rate, prediction.hits(rate).fetched) >= 1:
        with pytest.raises(UnstableError):
            prediction.outcome(rate)
        return
    outcome = prediction.outcome(rate)
    assert not check_identities(outcome)
    assert outcome["valid"] is True
    parts = [outcome.number(f"{name}_ratio") for name in ("local", "global", "recomputed")]
    assert sum(parts) == pytest.approx(1.0)
    assert min(parts) >= -1e-12
    steps = np.maximum(prediction.output_tokens - 1, 0).mean()
    assert outcome.number("e2e_mean_s") == pytest.approx(
        outcome.number("ttft_mean_s") + steps * outcome.number("tpot_mean_s")
    )
    for name in ("compute", "kv"):
        assert 0 <= outcome.number(f"{name}_utilisation_ratio") <= 1


@given(rate=st.floats(0.5, 10.0))
@settings(max_examples=3)
def test_a_larger_tier_never_lowers_reuse(rate):
    reused = []
    for tier in (0.0, 1e9, 20e9, 1200e9):
        hits = prediction_of(
            "tiers",
            **{"global_tier.bytes_per_node": tier, "global_tier.recompute_if_faster": False},
        ).hits(rate)
        assert (hits.local >= 0).all()
        assert (hits.fetched >= 0).all()
        reused.append(float((hits.local + hits.fetched).sum()))
    assert (np.diff(reused) >= -1e-6 * np.array(reused[1:])).all()
    ideal = prediction_of("ideal").hits(rate)
    assert reused[-1] <= float((ideal.local + ideal.fetched).sum()) * (1 + 1e-9)


def test_reuse_orders_saturation():
    for instances in (4, 32):
        none, tiers, ideal = (
            prediction_of(reuse, **{"cluster.instances": instances}).stability_rps
            for reuse in REUSES
        )
        assert none <= tiers * (1 + 1e-9)
        assert tiers <= ideal * (1 + 1e-3)
        assert none < ideal


def test_a_rate_too_high_names_what_saturates():
    prediction = prediction_of("none")
    with pytest.raises(UnstableError, match=r"(compute|kv) saturates") as caught:
        prediction.outcome(1.01 * prediction.stability_rps)
    assert caught.value.resource in ("compute", "kv")
    assert prediction.within_slo(1.01 * prediction.stability_rps) == (0.0, 0.0)
    prediction.outcome(0.99 * prediction.stability_rps)

    slow = prediction_of("ideal", **{"cluster.nic_bytes_per_s": 5e8, "cluster.nic_efficiency": 0.9})
    with pytest.raises(UnstableError) as caught:
        slow.outcome(0.9 * slow.stability_rps)
    assert caught.value.resource == "nic"


def test_shares_within_slo_fall_with_the_rate():
    prediction = prediction_of("none")
    shares = [
        prediction.within_slo(load * prediction.stability_rps)[0] for load in (0.05, 0.3, 0.6, 0.9)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_unservable_requests():
    limit = 40_000
    total = TRACE.column("prompt_tokens") + np.maximum(TRACE.column("output_tokens"), 1)
    longer = int((total > limit).sum())
    assert 0 < longer < len(TRACE)
    changes = {"engine.max_context_tokens": limit}

    drop = demand_of(BASE.replace(**changes, **{"engine.max_context": "drop"}), TRACE)
    assert sum(drop.unservable.values()) == longer
    assert drop.prompt_tokens.size == len(TRACE) - longer
    assert (drop.prompt_tokens + drop.output_tokens).max() <= limit

    cap = demand_of(BASE.replace(**changes, **{"engine.max_context": "cap"}), TRACE)
    assert cap.capped == longer
    assert cap.unservable == {}
    assert (cap.prompt_tokens + cap.output_tokens).max() <= limit

    with pytest.raises(SpecError, match="max_context = 'fail'"):
        demand_of(BASE.replace(**changes, **{"engine.max_context": "fail"}), TRACE)

    scenario = BASE.replace(**changes, **{"engine.max_context": "drop", "workload.rate_rps": 2.0})
    outcome = predict(scenario, "none", TRACE)
    assert outcome.number("unservable_ratio") == pytest.approx(longer / len(TRACE))
    assert outcome.number("arrival_rate_rps") == pytest.approx(2.0)
    assert not check_identities(outcome)


def test_what_is_not_modelled_says_so():
    with pytest.raises(SpecError, match="reuse"):
        prediction_of("some")
