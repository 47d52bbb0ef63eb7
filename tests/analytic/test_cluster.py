from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic.arrivals import POISSON, Arrivals
from smetric_model.analytic.batching import ColocatedInstance, RequestMix
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import predict
from smetric_model.analytic.step_model import step_model
from smetric_model.errors import UnstableError
from smetric_model.outcome import check_identities
from smetric_model.routing import POLICIES
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import load_trace

DATA = Path(__file__).parents[2] / "data"
BASE = Scenario.from_toml(DATA / "scenarios" / "agents-small.toml")
TRACE = load_trace(DATA / "traces" / "agents-small.parquet")


@cache
def demand():
    return demand_of(BASE, TRACE)


def asked(**changes):
    return predict(BASE.replace(**changes), demand=demand())


@pytest.mark.parametrize("policy", POLICIES)
def test_outcomes_keep_every_identity(policy):
    outcome = asked(**{"router.policy": policy, "workload.rate_rps": 4.0})
    assert not check_identities(outcome)
    assert outcome["valid"] is True
    assert outcome["policy"] == policy
    assert outcome.number("arrival_rate_rps") == pytest.approx(4.0)
    assert outcome.number("return_to_first_ratio") <= 1


@given(
    policy=st.sampled_from(list(POLICIES)),
    rate=st.floats(0.05, 8.0),
    instances=st.sampled_from([1, 2, 16, 64]),
    tier=st.sampled_from([0.0, 20e9, 1000e9]),
    write=st.sampled_from(["through", "back"]),
)
@settings(max_examples=12, deadline=None)
def test_there_is_an_answer_or_a_name(policy, rate, instances, tier, write):
    changes = {
        "router.policy": policy,
        "workload.rate_rps": rate,
        "cluster.instances": instances,
        "global_tier.bytes_per_node": tier,
        "global_tier.write": write,
    }
    try:
        outcome = asked(**changes)
    except UnstableError as error:
        saturated = error.resource
    else:
        saturated = ""
    if saturated:
        assert saturated in ("compute", "kv", "nic_in", "pcie")
        return
    assert not check_identities(outcome)
    if tier == 0:
        assert outcome.number("global_ratio") == 0
        assert outcome.number("nic_in_utilisation_ratio") == 0
    if instances == 1:
        assert outcome.number("return_to_previous_ratio") == pytest.approx(1)


def test_sticky_keeps_load_balance_moves():
    sticky = asked(**{"router.policy": "always-sticky", "workload.rate_rps": 3.0})
    moving = asked(**{"router.policy": "load-balance", "workload.rate_rps": 3.0})
    assert sticky.number("return_to_previous_ratio") == 1
    assert moving.number("return_to_previous_ratio") < 0.1
    assert sticky.number("local_ratio") > moving.number("local_ratio") + 0.3
    # what one finds locally the other fetches
    assert sticky.number("recomputed_ratio") == pytest.approx(
        moving.number("recomputed_ratio"), abs=0.03
    )


def test_more_of_anything_is_never_worse():
    def within(**changes):
        given = {"workload.rate_rps": 7.0} | changes
        return asked(**given).number("within_slo_ratio")

    base = within()
    assert within(**{"cluster.instances": 64}) > base
    assert within(**{"workload.rate_rps": 3.0}) > base
    assert within(**{"cluster.nic_bytes_per_s": 200e9}) >= base - 0.005

    def reused(**changes):
        given = {"workload.rate_rps": 4.0} | changes
        return 1 - asked(**given).number("recomputed_ratio")

    sizes = [reused(**{"global_tier.bytes_per_node": size}) for size in (0.0, 50e9, 1000e9)]
    assert sizes == sorted(sizes)


def test_too_much_names_what_saturates():
    with pytest.raises(UnstableError, match="saturates") as caught:
        asked(**{"workload.rate_rps": 60.0})
    assert caught.value.resource in ("compute", "kv")
    with pytest.raises(UnstableError) as caught:
        asked(
            **{
                "router.policy": "load-balance",
                "cluster.nic_bytes_per_s": 5e8,
                "global_tier.recompute_if_faster": False,
            }
        )
    assert caught.value.resource == "nic_in"


def test_writes_that_lag_behind_hold_nobody_up():
    slow = {"cluster.nic_bytes_per_s": 2e8, "global_tier.bytes_per_node": 5e9}
    lagging = asked(**slow)
    assert "writes to the global tier lag behind" in lagging["note"]
    assert lagging["valid"] is True
    assert lagging.number("global_ratio") == 0
    assert lagging.number("nic_out_utilisation_ratio") == 1
    # as without a tier: what is computed does not depend on what is queued (kinds of request are
    # picked by what could be fetched, hence not the same)
    without = asked(**{"global_tier.bytes_per_node": 0.0})
    for name in ("total_within_slo_tps", "local_ratio", "compute_utilisation_ratio"):
        assert lagging.number(name) == pytest.approx(without.number(name), rel=0.06)
    assert lagging.number("ttft_p50_s") == pytest.approx(without.number("ttft_p50_s"), rel=0.1)
    with pytest.raises(UnstableError) as caught:
        asked(**slow, **{"global_tier.recompute_if_faster": False})
    assert caught.value.resource == "nic_in"


def test_equal_questions_equal_answers_in_any_order():
    first = asked(**{"router.policy": "bailian"})
    asked(**{"router.policy": "lmetric", "workload.rate_rps": 6.0})
    assert asked(**{"router.policy": "bailian"}).to_dict() == first.to_dict()


# --- arrivals that depend on the load ---------------------------------------------------------


@cache
def instance():
    rng = np.random.default_rng(3)
    prompt = rng.lognormal(9.5, 0.6, 200).clip(200, 60_000).round()
    output = rng.lognormal(5.3, 0.8, 200).clip(1, 4_000).round()
    mix = RequestMix(prompt, output, np.floor(0.8 * prompt / 16) * 16, np.zeros(200))
    return ColocatedInstance(step_model(demand().instance), mix, 280_000, 8192, 256)


def test_a_constant_factor_is_poisson():
    rate = 0.6 * instance().stability_rps
    plain = instance().batch_law(rate)
    same = instance().batch_law(rate, Arrivals(np.array([1.0, 1.0 + 1e-9])))
    # two ways to the same law: a chain of states, and Takács' equation
    assert same.present == pytest.approx(plain.present, abs=1e-3)
    assert same.busy_rate_rps == pytest.approx(plain.busy_rate_rps, rel=5e-3)
    assert POISSON.is_poisson


@given(load=st.floats(0.1, 0.85), steepness=st.floats(0.05, 1.5))
@settings(max_examples=10, deadline=None)
def test_arrivals_that_avoid_the_busy_wait_less(load, steepness):
    rate = load * instance().stability_rps
    avoiding = Arrivals(np.exp(-steepness * np.arange(40.0)))
    limits = np.full(200, 5.0)
    plain = instance().at_rate(rate, limits, 0.05)
    spread = instance().at_rate(rate, limits, 0.05, avoiding)
    law = spread.law
    assert law.present.sum() + law.full == pytest.approx(1)
    assert law.seen.sum() + law.seen_full == pytest.approx(1)
    assert law.busy_rate_rps < rate
    assert spread.mean_wait_s() <= plain.mean_wait_s() * (1 + 1e-6)


@given(load=st.floats(0.05, 0.7), steepness=st.floats(0.01, 1.0))
@settings(max_examples=8, deadline=None)
def test_end_to_end_quantiles_keep_the_mean(load, steepness):
    avoiding = Arrivals(np.exp(-steepness * np.arange(40.0)))
    rate = load * instance().stability_rps
    loaded = instance().at_rate(rate, np.full(200, 5.0), 0.05, avoiding)
    shares = (np.arange(60) + 0.5) / 60
    quantiles = loaded.e2e_quantiles_s(shares)
    assert (np.diff(quantiles) >= -1e-9).all()
    mean = loaded.mean_ttft_s() + loaded.mean_decode_s()
    assert np.mean(quantiles) == pytest.approx(mean, rel=0.15)
    apart = loaded.e2e_quantiles_s(shares, np.full(8, 2.0))
    assert np.mean(apart) == pytest.approx(loaded.mean_ttft_s() + 2.0, rel=0.15)


@given(load=st.floats(0.02, 0.8), steepness=st.floats(0.0, 1.0))
@settings(max_examples=8, deadline=None)
def test_the_queue_is_part_of_the_time_to_the_first_token(load, steepness):
    rate = load * instance().stability_rps
    arrivals = Arrivals(np.exp(-steepness * np.arange(60.0)))
    loaded = instance().at_rate(rate, np.full(200, 5.0), 0.05, arrivals)
    before = np.linspace(0.02, 0.1, 200)
    shares = (np.arange(400) + 0.5) / 400
    mean, *quantiles = loaded.queue_s(before, shares)
    assert (np.diff(quantiles) >= 0).all()
    assert np.mean(quantiles) == pytest.approx(mean, rel=0.02)
    # what leaves with a request after it, and its own prefill, are no part of it
    assert 0.06 <= mean <= loaded.mean_wait_s() + 0.06 + 0.5 * loaded._step_s(loaded.mean_batch)
    assert quantiles[0] >= 0.02


def test_nobody_queues_at_an_idle_instance():
    idle = instance().at_rate(1e-6 * instance().stability_rps, np.full(200, 5.0), 0.05)
    mean, median = idle.queue_s(np.full(200, 0.05), [0.5])
    assert mean == pytest.approx(0.05, rel=1e-3)
    assert median == pytest.approx(0.05, rel=1e-3)


@given(load=st.floats(0.1, 0.9), steepness=st.floats(0.0, 1.0))
@settings(max_examples=10, deadline=None)
def test_what_arrives_is_completed(load, steepness):
    rate = load * instance().stability_rps
    arrivals = Arrivals(np.exp(-steepness * np.arange(60.0)) + 1e-9)
    law = instance().batch_law(rate, arrivals)
    assert law.present.sum() + law.full == pytest.approx(1)
    # prefill is busy for rate times work, whatever the order of arrivals
    work = float(instance().prefill_s(max(law.mean_running - 1, 0)).mean())
    assert law.idle <= 1 - rate * work + 0.05
    assert law.mean_decoding <= law.mean_running


@given(load=st.floats(0.1, 0.85), steepness=st.floats(0.2, 1.5))
@settings(max_examples=8, deadline=None)
def test_decodes_are_stalled_by_those_who_come_beside_them(load, steepness):
    rate = load * instance().stability_rps
    loads = np.arange(60.0)
    long = instance().mix.prompt_tokens > np.quantile(instance().mix.prompt_tokens, 0.7)
    factor = np.exp(-0.1 * loads)
    limits = np.full(200, 5.0)

    def tail(free_ratio, is_free):
        arrivals = Arrivals(factor, 0.0, 0.9 * factor, free_ratio, free_ratio, is_free)
        loaded = instance().at_rate(rate, limits, 0.05, arrivals)
        for kinds in (loaded.law.beside_kinds, loaded.law.busy_kinds):
            assert min(kinds) >= 0
        return loaded.law.beside_kinds, loaded.tpot_quantiles_s([0.99])[0]

    # free requests, which are long, go where nobody decodes
    free_ratio = np.exp(-steepness * loads)
    (sticky, free), shorter = tail(free_ratio, long)
    assert free < 1 < sticky
    assert shorter <= tail(free_ratio, ~long)[1]
    # where all are alike at every load, nothing is told apart
    assert tail(np.full(60, 0.3), long)[0] == pytest.approx((1.0, 1.0))
    assert tail(np.ones(60), long)[0] == (1.0, 1.0)


def test_a_router_that_avoids_busy_engines_makes_them_wait_less():
    rate = 0.6 * instance().stability_rps
    factor = np.ones(60)
    plain = instance().at_rate(rate, np.full(200, 5.0), 0.05, Arrivals(factor, 0.0, factor * 1.0))
    avoid = instance().at_rate(
        rate, np.full(200, 5.0), 0.05, Arrivals(factor + 1e-9 * np.arange(60), 0.0, factor * 0.1)
    )
    assert avoid.mean_wait_s() < 0.5 * plain.mean_wait_s()
