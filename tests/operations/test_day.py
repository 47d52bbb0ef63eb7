"""A simulated day: instances that come and go."""

from __future__ import annotations

import math

import numpy as np

from smetric_model.analytic.demand import Demand
from smetric_model.operations import Autoscaler, replicas_over_time, trace_curve
from smetric_model.operations.day import absences, simulated_day
from smetric_model.scenario import Scenario
from smetric_model.simulate import simulate
from smetric_model.workload.trace import Trace


def test_absences_are_the_gaps_of_a_schedule() -> None:
    tables = absences(np.array([2, 1, 1, 3, 2]), 60.0, 300.0)
    assert tables == [
        {"instance": 1, "at_s": 60.0, "down_s": 120.0},
        {"instance": 2, "at_s": 0.0, "down_s": 180.0},
        {"instance": 2, "at_s": 240.0, "down_s": math.inf},
    ]
    assert absences(np.array([2, 2]), 60.0, 120.0) == []
    drained = absences(np.array([2, 1, 1, 3, 2]), 60.0, 300.0, drain_s=30.0)
    assert drained == [table | {"drain_s": 30.0} for table in tables]


def test_a_day_without_changes_is_a_plain_simulation(scenario: Scenario, trace: Trace) -> None:
    curve = trace_curve(trace, 300.0)
    table = simulated_day(scenario, curve, np.full(25, 16), 60.0, trace)
    changes = {"workload.rate_rps": "trace", "workload.start": "cold", "workload.warmup_s": 0.0}
    plain = simulate(scenario.replace(**changes, **{"workload.window_s": curve.length_s}), trace)
    requests = plain.requests
    assert requests is not None
    assert table["requests"].sum() == (requests["status"] != "unservable").sum()
    share = (table["requests"] * table["within_slo_ratio"]).sum() / table["requests"].sum()
    assert abs(share - plain.number("within_slo_ratio")) < 1e-12
    assert table["failed"].sum() == 0


def test_instances_that_drain_lose_less(scenario: Scenario, trace: Trace) -> None:
    curve = trace_curve(trace, 300.0)
    fewer = np.repeat([16, 16, 10, 10, 12], 5)
    one_try = scenario.replace(**{"client.backoff_s": 0.0})
    hard, soft = (
        simulated_day(one_try, curve, fewer, 60.0, trace, drain_s=drain_s)
        for drain_s in (0.0, 240.0)
    )
    assert soft["requests"].sum() == hard["requests"].sum()
    assert soft["failed"].sum() <= hard["failed"].sum()
    # what is lost is done again elsewhere: drained, more is in time
    weight = hard["requests"].to_numpy(dtype=float)
    shares = [
        float(table["within_slo_ratio"].to_numpy() @ weight) / weight.sum()
        for table in (hard, soft)
    ]
    assert shares[1] > shares[0] - 0.005


def test_instances_that_come_late_cost_requests(
    scenario: Scenario, trace: Trace, demand: Demand
) -> None:
    curve = trace_curve(trace, 300.0)
    few = np.repeat([16, 16, 4, 4, 16], 5)
    table = simulated_day(scenario, curve, few, 60.0, trace)
    assert table["within_slo_ratio"].iloc[2:4].max() < table["within_slo_ratio"].iloc[1]
    found = replicas_over_time(
        scenario, curve, Autoscaler(60.0, 0.0, 60.0), simulated=trace, demand=demand
    )
    # instances for 95 %: as scheduled not much less than that, on the peak's as much or more
    assert found["simulated_within_slo_ratio"] > 0.9
    assert found["simulated_static_within_slo_ratio"] >= found["simulated_within_slo_ratio"] - 0.01
    assert len(found.tables["simulated"]) == 5
