from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_scenarios import random_scenario

from smetric_model.bound.placement import (
    exact_placement,
    placement_bracket,
    session_work,
    work_bracket,
)
from smetric_model.bound.problem import problem_of
from smetric_model.errors import SpecError


def _work(seed: int, sessions: int, windows: int):
    rng = np.random.default_rng(seed)
    busy = rng.random((sessions, windows)) < 0.5
    work = rng.exponential(1.0, (sessions, windows)) * busy
    work[0, 0] += 0.1
    return work


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 6), st.integers(1, 9))
def test_bracket_and_assignment(seed, sessions, windows, instances):
    work = _work(seed, sessions, windows)
    found = work_bracket(work, instances)
    assert 1 - 1e-12 <= found.lower_ratio <= found.upper_ratio + 1e-12
    load = np.zeros((instances, windows))
    np.add.at(load, found.instance, work)
    np.testing.assert_allclose(load.max(axis=0), found.window_upper)
    assert (found.window_upper >= found.window_lower - 1e-9).all()
    assert (found.window_lower >= found.mean - 1e-12).all()


@pytest.mark.parametrize("seed", range(6))
def test_integer_programme_lies_in_the_bracket(seed):
    work = _work(seed, 7, 2)
    found = work_bracket(work, 3)
    exact, optimal = exact_placement(work, 3)
    assert optimal
    assert found.lower_ratio - 1e-6 <= exact <= found.upper_ratio + 1e-6
    assert found.upper_ratio <= 1.15 * exact


def test_one_instance_loses_nothing():
    found = work_bracket(_work(1, 5, 3), 1)
    assert found.lower_ratio == found.upper_ratio == pytest.approx(1)


def test_work_of_sessions_adds_up():
    scenario, trace = random_scenario(3, "compute")
    problem, _ = problem_of(scenario, trace)
    whole = session_work(problem, 1e6)
    parts = session_work(problem, 30.0)
    assert whole.shape[1] == 1
    np.testing.assert_allclose(parts.sum(axis=1), whole[:, 0])
    found = placement_bracket(problem, 120.0)
    assert found.upper_ratio / found.lower_ratio < 1.06


def test_wrong_values_are_refused():
    with pytest.raises(SpecError, match="instances = 0"):
        work_bracket(np.ones((2, 2)), 0)
    with pytest.raises(SpecError, match="no work"):
        work_bracket(np.zeros((2, 2)), 2)
