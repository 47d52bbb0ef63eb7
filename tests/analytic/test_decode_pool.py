from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic.decode_pool import DecodePool
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import predict
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import step_time_s
from smetric_model.errors import UnstableError
from smetric_model.outcome import check_identities
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import load_trace

DATA = Path(__file__).parents[2] / "data"
BASE = Scenario.from_toml(DATA / "scenarios" / "agents-small.toml")
TRACE = load_trace(DATA / "traces" / "agents-small.parquet")
POOLS = {
    "cluster.serving": "disaggregated",
    "cluster.instances": 32,
    "cluster.prefill_instances": 20,
    "cluster.decode_instances": 12,
    "cluster.nics_per_node": 4,
}


@cache
def demand():
    return demand_of(BASE, TRACE)


def pool(rate=2.0, instances=8, prompt=20_000.0, output=401.0, transfer=0.1, tokens=280_000.0):
    return DecodePool(
        step_model(demand().instance),
        instances,
        rate,
        np.full(64, prompt),
        np.full(64, output),
        tokens,
        0.0,
        256,
        np.full(64, transfer),
    )


def test_a_pool_that_is_nearly_idle_by_hand():
    idle = pool(rate=1e-6, transfer=0.25)
    step = float(step_time_s(step_model(demand().instance), 0, 0, 1.0, 20_000.0 + 200.5))
    assert idle.mean_after_first_token_s() == pytest.approx(0.25 + 400 * step, rel=1e-6)
    assert idle.tpot_quantiles_s((0.5, 0.99)) == pytest.approx([step + 0.25 / 400] * 2, rel=1e-6)
    assert idle.wait_s == pytest.approx(0, abs=1e-9)


def test_the_mean_tpot_is_over_requests_and_so_of_its_quantiles():
    outputs = np.repeat([3.0, 1001.0], 32)
    model, same = step_model(demand().instance), np.full(64, 20_000.0)
    mixed = DecodePool(model, 8, 1e-6, same, outputs, 280_000.0, 0.0, 256, np.full(64, 0.25))
    # by hand: a nearly idle pool's step, and what each request waits a step
    expected = mixed.mean_step_s + 0.25 * (1 / 2 + 1 / 1000) / 2
    assert mixed.mean_tpot_s() == pytest.approx(expected, rel=1e-9)
    shares = (np.arange(400) + 0.5) / 400
    for pools in (mixed, pool(rate=5.0)):
        found = pools.tpot_quantiles_s(shares.tolist())
        assert pools.mean_tpot_s() == pytest.approx(np.mean(found), rel=0.01)


@given(load=st.floats(0.05, 0.95), instances=st.sampled_from([1, 3, 16]))
@settings(max_examples=15, deadline=None)
def test_little(load, instances):
    saturated = 1.0
    for _ in range(40):  # the rate at which a pool saturates
        try:
            pool(rate=saturated * instances, instances=instances)
        except UnstableError:
            break
        saturated *= 1.2
    rate = load * saturated / 1.2 * instances
    loaded = pool(rate=rate, instances=instances)
    decoding = 400 * loaded.mean_step_s
    assert loaded.mean_running == pytest.approx(rate / instances * decoding, rel=0.02)
    assert 0 <= loaded.kv_ratio <= 1


def test_more_load_is_slower_and_too_much_has_a_name():
    tpot = [pool(rate=rate).tpot_quantiles_s((0.5,))[0] for rate in (0.5, 2.0, 5.0)]
    assert tpot == sorted(tpot)
    with pytest.raises(UnstableError) as caught:
        pool(rate=500.0)
    assert caught.value.resource == "decode_kv"


@pytest.mark.parametrize("policy", ["smetric", "bailian", "lmetric", "load-balance", "dynamo"])
def test_disaggregated_outcomes_keep_every_identity(policy):
    outcome = predict(
        BASE.replace(**POOLS, **{"router.policy": policy, "workload.rate_rps": 3.0}),
        demand=demand(),
    )
    assert not check_identities(outcome)
    assert outcome.number("prefill_compute_utilisation_ratio") < 1
    assert outcome.number("transfer_mean_s") > 0
    # every transfer leaves a prefill node and enters a decode node
    assert outcome.number("decode_nic_in_utilisation_ratio") > 0


def test_kv_that_is_handed_over_shares_the_links_with_writes():
    def asked(**changes):
        given = POOLS | {"workload.rate_rps": 3.0, "cluster.nic_bytes_per_s": 12e9} | changes
        return predict(BASE.replace(**given), demand=demand())

    # without a global tier nothing else is on the links; with little of it most is written again
    alone = asked(**{"global_tier.bytes_per_node": 0.0})
    beside = asked(**{"global_tier.bytes_per_node": 2e9})
    assert beside.number("transfer_mean_s") > 1.3 * alone.number("transfer_mean_s")
    assert beside.number("prefill_nic_out_utilisation_ratio") > 1.3 * alone.number(
        "prefill_nic_out_utilisation_ratio"
    )
    # what is on its way stays pinned
    wide = asked(**{"global_tier.bytes_per_node": 2e9, "cluster.nic_bytes_per_s": 25e9})
    assert beside.number("prefill_kv_utilisation_ratio") > 1.2 * wide.number(
        "prefill_kv_utilisation_ratio"
    )
    with pytest.raises(UnstableError, match="send, write and fetch") as caught:
        asked(**{"global_tier.bytes_per_node": 2e9, "cluster.nic_bytes_per_s": 8e9})
    assert caught.value.resource in ("prefill_nic_out", "decode_nic_in")


def test_the_pools_saturate_apart():
    def asked(prefill, rate):
        changes = POOLS | {
            "cluster.prefill_instances": prefill,
            "cluster.decode_instances": 32 - prefill,
            "cluster.nics_per_node": 8,
            "workload.rate_rps": rate,
        }
        return predict(BASE.replace(**changes), demand=demand())

    with pytest.raises(UnstableError) as caught:
        asked(2, 6.0)
    assert caught.value.resource.startswith("prefill_")
    with pytest.raises(UnstableError) as caught:
        asked(31, 16.0)
    assert caught.value.resource.startswith("decode_")
