"""Cold caches: limits of the closed form, and the simulation beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smetric_model.analytic.demand import Demand
from smetric_model.analytic.predict import cluster_form
from smetric_model.errors import SpecError
from smetric_model.operations import cold_recovery
from smetric_model.operations.filling import (
    EVENTS,
    admitted_rps,
    cold_caches,
    readable_ratio,
    solved,
)
from smetric_model.operations.recovery import event_scenarios
from smetric_model.scenario import Scenario
from smetric_model.simulate.faults import lies_on

RATE = 6.0


def test_long_ago_is_steady_and_just_now_is_nothing(scenario: Scenario, demand: Demand) -> None:
    form = cluster_form(scenario, demand)
    steady = solved(form.emptied(), RATE)
    old = solved(form.emptied(1e6, 1e6), RATE)
    new = solved(form.emptied(1e-3, 1e-3), RATE)
    assert steady is not None
    assert old is not None
    assert new is not None
    for name in ("local_ratio", "global_ratio", "within_slo_ratio"):
        assert old.number(name) == pytest.approx(steady.number(name), rel=1e-6)
    # shared prefixes that many requests touch are back in no time, nothing else is
    assert new.number("global_ratio") < 0.1 * steady.number("global_ratio") + 0.05
    assert new.number("within_slo_ratio") < steady.number("within_slo_ratio")
    assert form.local_age_s is None  # the form itself is as it was


def test_an_emptied_tier_is_one_with_a_shorter_reach(scenario: Scenario, demand: Demand) -> None:
    age = 120.0
    tokens = RATE * demand.profile.resident_token_s(age)
    size = tokens * demand.kv_bytes_per_token / 2
    small = cluster_form(scenario.replace(**{"global_tier.bytes_per_node": size}), demand)
    other = solved(small.emptied(), RATE)
    emptied = solved(cluster_form(scenario, demand).emptied(global_s=age), RATE)
    assert other is not None
    assert emptied is not None
    for name in ("local_ratio", "global_ratio", "within_slo_ratio"):
        assert emptied.number(name) == pytest.approx(other.number(name), abs=2e-3)


@pytest.mark.parametrize("event", EVENTS)
def test_caches_fill(scenario: Scenario, demand: Demand, event: str) -> None:
    caches = cold_caches(scenario, event, demand)  # type: ignore[arg-type]
    own = caches.curve["instance_local_ratio"].to_numpy()
    assert (np.diff(own) > -5e-3).all()
    assert own[-1] == pytest.approx(caches.steady["local_ratio"], rel=0.02)
    reuse = caches.curve["reused_ratio"].to_numpy()
    steady = caches.steady["local_ratio"] + caches.steady["global_ratio"]
    assert (reuse <= steady + 5e-3).all()
    assert reuse[-1] == pytest.approx(steady, rel=0.02)
    if event == "scale-out":
        assert reuse[0] == pytest.approx(steady)
        assert caches.recovered_s("reused_ratio", 0.01) == 0
    if event in ("store", "cluster"):
        assert reuse[0] < 0.95 * steady
        assert 0 < caches.recovered_s("reused_ratio", 0.05) < caches.reach_s
    near, nearer = (caches.recovered_s("instance_local_ratio", x) for x in (0.2, 0.05))
    assert 0 < near < nearer < caches.curve["age_s"].iloc[-1]


def test_less_is_admitted_while_caches_are_cold(scenario: Scenario, demand: Demand) -> None:
    cold = admitted_rps(scenario, demand, 1.0, 1.0)
    warm = admitted_rps(scenario, demand, math.inf, math.inf)
    assert cold is not None
    assert warm is not None
    assert cold < 0.9 * warm


def test_what_can_be_read_after_a_loss_is_what_lies_before_the_first_lost_block() -> None:
    nodes, blocks, paths = 4, 50, 4000
    kept = []
    for path in range(paths):
        where = [lies_on(path * blocks + block, nodes) for block in range(blocks)]
        kept.append(where.index(0) if 0 in where else blocks)
    simulated = np.mean(kept) / blocks
    # neighbours lie on different nodes a little more often than at random
    assert 0.8 * readable_ratio(np.full(paths, blocks), nodes) < simulated
    assert simulated < 1.02 * readable_ratio(np.full(paths, blocks), nodes)
    assert readable_ratio(np.array([10.0]), 1) == 0
    assert readable_ratio(np.array([1.0]), 8) == pytest.approx(7 / 8)


def test_events_are_over_when_the_window_begins(scenario: Scenario) -> None:
    without, node = event_scenarios(scenario, "node", 1200.0)
    assert without.workload.window_s == 1200
    assert not without.failures
    assert node.failures[0].at_s + node.failures[0].down_s == node.workload.warmup_s == 900
    _, store = event_scenarios(scenario, "store", 1200.0)
    assert [failure.store for failure in store.failures] == [0, 1]
    _, more = event_scenarios(scenario, "scale-out", 1200.0)
    assert more.failures[0].instance == 15
    assert event_scenarios(scenario, "cluster", 1200.0)[1].workload.warmup_s == 0


def test_the_global_tier_fills_as_the_simulation_does(scenario: Scenario, demand: Demand) -> None:
    found = cold_recovery(scenario, "store", 0.1, seeds=2, demand=demand)
    at_once, simulated = found["reused_at_once_ratio"], found["simulated_reused_at_once_ratio"]
    curves = found.tables["simulated"]
    before = curves[curves["run"] == "without"]
    steady = before["local_tokens"].sum() + before["global_tokens"].sum()
    steady /= before["prompt_tokens"].sum()
    assert at_once == pytest.approx(simulated, abs=0.06)
    assert simulated < 0.95 * steady
    assert math.isfinite(found["simulated_reused_recovered_s"])
    assert found["admitted_at_once_rps"] < found["admitted_steady_rps"]


def test_what_is_not_allowed_is_said(scenario: Scenario, demand: Demand) -> None:
    with pytest.raises(SpecError, match="event = 'rack'"):
        cold_recovery(scenario, "rack", demand=demand)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="tolerance_ratio = 1"):
        cold_recovery(scenario, "node", 1.0, demand=demand)
    none = scenario.replace(**{"global_tier.bytes_per_node": 0.0})
    with pytest.raises(SpecError, match="there is none to lose"):
        cold_recovery(none, "store", demand=demand)
