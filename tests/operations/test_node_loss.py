"""N + 1: what is left, and how much more it takes."""

from __future__ import annotations

import pytest

from smetric_model.analytic.demand import Demand
from smetric_model.errors import SpecError
from smetric_model.operations import node_loss
from smetric_model.operations.node_loss import lost_states
from smetric_model.scenario import Scenario


def test_what_is_left(scenario: Scenario) -> None:
    (left,) = lost_states(scenario)
    assert left.cluster.instances == 8
    assert lost_states(scenario.replace(**{"cluster.instances": 6})) == []
    pools = scenario.replace(
        cluster={"serving": "disaggregated", "prefill_instances": 12, "decode_instances": 10}
    )
    states = [(s.cluster.prefill_instances, s.cluster.decode_instances) for s in lost_states(pools)]
    assert states == [(4, 10), (12, 2)]
    few = pools.replace(**{"cluster.decode_instances": 8, "cluster.instances": None})
    assert lost_states(few) == []


def test_bearing_a_loss_takes_a_node_more(scenario: Scenario, demand: Demand) -> None:
    found = node_loss(scenario, demand=demand)
    assert found["bearing_instances"] == found["needed_instances"] + 8
    assert found["lost_within_slo_ratio"] < found["within_slo_ratio"]
    assert 0 < found["failed_requests_low"] < found["failed_requests_high"]


def test_one_small_node_of_many_is_little(scenario: Scenario, demand: Demand) -> None:
    small = scenario.replace(**{"cluster.gpus_per_node": 1})
    found = node_loss(small, demand=demand)
    assert found["lost_instances"] == 1
    assert found["within_slo_ratio"] - found["lost_within_slo_ratio"] < 0.005
    assert found["bearing_instances"] == found["needed_instances"] + 1


def test_the_simulated_loss(scenario: Scenario, demand: Demand) -> None:
    light = scenario.replace(**{"workload.rate_rps": 4.0})
    found = node_loss(light, seeds=1, horizon_s=600.0, demand=demand)
    assert found["simulated_lost_within_slo_ratio"] == pytest.approx(
        found["lost_within_slo_ratio"], abs=0.06
    )
    failed = found["simulated_failed_requests"]
    assert 0 < failed < 2 * found["failed_requests_high"]
    table = found.tables["simulated"]
    assert set(table["run"]) == {"with", "without"}
    assert table[table["run"] == "without"]["failed"].sum() == 0


def test_pools_are_not_simulated(scenario: Scenario) -> None:
    pools = scenario.replace(
        cluster={"serving": "disaggregated", "prefill_instances": 10, "decode_instances": 10}
    )
    with pytest.raises(SpecError, match="disaggregated"):
        node_loss(pools, seeds=1)
