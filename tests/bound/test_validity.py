"""A bound that some schedule beats is none; the whole of it: ``benchmarks/bound_validity.py``."""

from __future__ import annotations

import pytest
from random_scenarios import KINDS, random_scenario
from validity import judge

from smetric_model.routing.registry import POLICIES

CASES = [
    (seed, KINDS[seed % 3], sorted(POLICIES)[(5 * seed) % len(POLICIES)]) for seed in range(12)
]


@pytest.mark.parametrize(("seed", "kind", "policy"), CASES)
def test_realised_schedules_fit_and_stay_below(seed, kind, policy):
    scenario, trace = random_scenario(seed, kind)
    verdict = judge(scenario.replace(**{"router.policy": policy}), trace)
    assert verdict.requests > 20
    assert verdict.holds, verdict
