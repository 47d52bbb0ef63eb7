"""Autoscaling: known limits, and the schedule against a loop over all moments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic.demand import Demand
from smetric_model.errors import SpecError
from smetric_model.operations import Autoscaler, RateCurve, diurnal_curve, replicas_over_time
from smetric_model.operations.autoscaling import instances_at_rates, schedule
from smetric_model.scenario import Scenario
from smetric_model.tuning.sizing import fewest_instances


def test_a_constant_rate_needs_the_same_all_day(scenario: Scenario, demand: Demand) -> None:
    found = replicas_over_time(scenario, diurnal_curve(6.0, 0.0, 3600.0), demand=demand)
    alone = fewest_instances(scenario, demand=demand).instances
    assert found["peak_instances"] == found["least_instances"] == alone
    hours = found["static_gpu_hours_per_day"]
    assert hours == 24 * alone
    for name in ("ideal", "forecast", "reactive"):
        assert found[f"{name}_gpu_hours_per_day"] == pytest.approx(hours)
    assert found["reactive_short_ratio"] == 0
    assert "saves nothing" in found.words[0]


def test_a_day_costs_what_its_instances_do(scenario: Scenario, demand: Demand) -> None:
    curve = diurnal_curve(5.0, 0.6, 4 * 3600.0)
    slow = Autoscaler(startup_s=1800, warm_s=600, keep_s=1200)
    found = replicas_over_time(scenario, curve, slow, demand=demand)
    table = found.tables["replicas"]
    needed = instances_at_rates(scenario, curve.rate_rps, demand)
    assert table["needed"].to_numpy()[:: len(table) // 6].tolist() == needed.tolist()
    assert found["ideal_gpu_hours_per_day"] == pytest.approx(needed.mean() * 24)
    ideal, paid, static = (
        found[f"{name}_gpu_hours_per_day"] for name in ("ideal", "forecast", "static")
    )
    assert ideal < paid < static
    assert found["reactive_short_ratio"] > 0
    assert (table["paid"] >= table["needed"]).all()
    fixed = Autoscaler(minimum_instances=int(needed.max()))
    always = replicas_over_time(scenario, curve, fixed, demand=demand)
    assert always["ideal_gpu_hours_per_day"] == static


def test_needs_are_those_of_each_rate_alone(scenario: Scenario, demand: Demand) -> None:
    rates = np.array([7.0, 0.0, 2.0, 7.0, 4.0])
    found = instances_at_rates(scenario, rates, demand)
    for rate, instances in zip(rates, found, strict=True):
        if rate == 0:
            assert instances == 0
            continue
        asked = scenario.replace(**{"workload.rate_rps": float(rate)})
        assert instances == fewest_instances(asked, demand=demand).instances


def test_a_rate_that_nothing_serves_is_told(scenario: Scenario, demand: Demand) -> None:
    hopeless = scenario.replace(**{"slo.tpot_s": 0.0005})
    assert instances_at_rates(hopeless, np.array([1.0]), demand).tolist() == [-1]
    with pytest.raises(SpecError, match="no number of instances serves 1 requests/s"):
        replicas_over_time(hopeless, diurnal_curve(1.0, 0.0, 43200.0), demand=demand)


@given(
    needed=st.lists(st.integers(0, 9), min_size=2, max_size=12),
    startup=st.integers(0, 4),
    warm=st.integers(0, 3),
    keep=st.integers(0, 4),
    minimum=st.integers(1, 3),
    periodic=st.booleans(),
)
def test_schedules_against_a_loop(
    needed: list[int], startup: int, warm: int, keep: int, minimum: int, periodic: bool
) -> None:
    curve = RateCurve(60.0, np.ones(len(needed)), "x", periodic)
    scaler = Autoscaler(60.0 * startup, 60.0 * warm, 60.0 * keep, minimum)
    plan = schedule(curve, np.array(needed), scaler)
    size = len(needed)

    def at(moment: int) -> int:
        inside = moment % size if periodic else min(max(moment, 0), size - 1)
        return max(needed[inside], minimum)

    def most(first: int, last: int) -> list[int]:
        return [max(at(t + d) for d in range(first, last + 1)) for t in range(size)]

    lead = startup + warm
    assert plan.step_s == 60.0
    assert plan.ideal.tolist() == [at(t) for t in range(size)]
    assert plan.paid.tolist() == most(-keep, lead)
    assert plan.reactive_ready.tolist() == most(-keep - lead, -lead)
    assert (plan.reactive_paid >= plan.reactive_ready).all()
    assert (plan.ready(scaler) >= plan.needed).all()
    assert (plan.ready(scaler) <= plan.paid).all()


def test_wrong_autoscalers_are_refused() -> None:
    for wrong in ({"startup_s": -1.0}, {"keep_s": float("inf")}, {"minimum_instances": 0}):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            Autoscaler(**wrong)  # type: ignore[arg-type]
