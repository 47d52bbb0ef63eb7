"""What lets a prediction take few and cheap rounds, against what it stands for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic import _search_kernels as kernels
from smetric_model.analytic.load_laws import least_loaded_law
from smetric_model.analytic.mixed_requests import pick
from smetric_model.analytic.routed_cluster import FollowUpHits, RoutedCluster
from smetric_model.analytic.routing_closure import Closure
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.routing import make_policy

from .routing_reference import evaluate
from .test_stickiness import toy_cluster

HITS = FollowUpHits(
    np.array([20_000.0, 40_000.0, 60_000.0]),
    np.array([18_000.0, 30_000.0, 55_000.0]),
    np.array([19_000.0, 38_000.0, 56_000.0]),
    np.full(3, 5_000.0),
)


def cluster(name, **parameters) -> RoutedCluster:
    return toy_cluster(
        make_policy(name, parameters),
        3.0,
        think_time=ThinkTime(np.array([0.6, 0.4]), np.array([5.0, 40.0])),
        follow_ups=HITS,
        evicted_ratio=0.1,
        evicted_by_class=np.array([0.05, 0.175]),
        move_work_ratio=0.1,
        load_unit_tokens=9_000.0 if name == "dynamo" else 1.0,
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smetric", {}),
        ("smetric-basic", {}),
        ("bailian", {}),
        ("lmetric", {}),
        ("dynamo", {}),
        ("load-balance", {}),
        ("bounded-hash", {"overload": 1.5}),
        ("always-sticky", {}),
    ],
)
def test_the_map_compiled_is_the_map(name, parameters):
    given = cluster(name, **parameters)
    closure = Closure(given)
    law = least_loaded_law(closure.rate, closure.base, given.instances)
    for slope in (0.0, -0.01):
        plain = evaluate(given, law, slope)
        compiled = closure.solve(law, slope, 0.0, 1)  # one evaluation
        assert compiled.steps == 1
        assert compiled.field.total_variance == pytest.approx(plain.total_variance, rel=1e-9)
        occurs = law > 1e-12
        for field in ("stay", "joined", "births"):
            ours, theirs = getattr(compiled, field), getattr(plain, field)
            assert ours[occurs] == pytest.approx(theirs[occurs], rel=1e-7, abs=1e-9), field
        assert compiled.completion == pytest.approx(plain.completion, rel=1e-9)
        assert compiled.new_law == pytest.approx(plain.new_law, abs=1e-8)
        assert compiled.leave == pytest.approx(plain.leave, rel=1e-9)
        assert compiled.noise.drift == pytest.approx(plain.drift, rel=1e-9, abs=1e-15)
        assert compiled.noise.covariance == pytest.approx(plain.covariance, rel=1e-8, abs=1e-9)
        assert compiled.new_slope == pytest.approx(plain.new_slope, rel=1e-8)
        law = 0.5 * (law + compiled.new_law)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_acceleration_solves_a_linear_map_and_keeps_a_law(seed):
    rng = np.random.default_rng(seed)
    size = 6
    # a map of laws: columns sum to 1, so that its fixed point is a law
    matrix = rng.dirichlet(np.ones(size), size).T
    points, changes = np.empty((0, size + 1)), np.empty((0, size + 1))
    x = np.append(np.full(size, 1 / size), 0.0)
    for _ in range(40):
        change = np.append(matrix @ x[:size], 0.5 * x[size]) - x
        points, changes = np.vstack((points, x))[-6:], np.vstack((changes, change))[-6:]
        x = kernels.accelerated(points, changes, 0.5, size, 0.0)
        assert x[:size].sum() == pytest.approx(1.0)
        assert (x[:size] >= 0).all()
    assert matrix @ x[:size] == pytest.approx(x[:size], abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_kinds_that_are_kept_have_the_mean_of_all(seed):
    rng = np.random.default_rng(seed)
    new, weight = rng.lognormal(7, 2, 4_000), rng.uniform(0, 1, 4_000)
    rank = rng.integers(0, 50, 4_000)
    picked = pick(new, rank, weight)
    mean = new @ weight / weight.sum()
    assert (new[picked.kinds] * picked.scale).mean() == pytest.approx(mean, rel=1e-9)
    other = new * rng.uniform(0.8, 1.1, new.size)
    mean = other @ weight / weight.sum()
    kept = picked.with_mean(other[picked.kinds], mean)
    assert (kept.kinds == picked.kinds).all()
    assert (other[kept.kinds] * kept.scale).mean() == pytest.approx(mean, rel=1e-9)
