"""What lets a prediction take few and cheap rounds, against what it stands for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic import _chain_kernels as kernels
from smetric_model.analytic.mixed_requests import pick
from smetric_model.analytic.routed_cluster import FollowUpHits, RoutedCluster
from smetric_model.analytic.routing_closure import Closure
from smetric_model.analytic.think_times import ThinkTime
from smetric_model.routing import make_policy

from .test_stickiness import toy_cluster

HITS = FollowUpHits(
    np.array([20_000.0, 40_000.0, 60_000.0]),
    np.array([18_000.0, 30_000.0, 55_000.0]),
    np.array([19_000.0, 38_000.0, 56_000.0]),
    np.full(3, 5_000.0),
)


def closure(name, **parameters) -> Closure:
    cluster: RoutedCluster = toy_cluster(
        make_policy(name, parameters),
        3.0,
        think_time=ThinkTime(np.array([0.6, 0.4]), np.array([5.0, 40.0])),
        follow_ups=HITS,
        evicted_ratio=0.1,
    )
    return Closure(cluster)


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
    plain, compiled = closure(name, **parameters), closure(name, **parameters)
    plain._compiled = lambda *given: None  # type: ignore[method-assign]
    law, none = compiled.start(), np.zeros(0)
    for slope in (0.0, -0.01):
        one, other = (each.evaluate(law, slope, none) for each in (plain, compiled))
        for field in ("new_law", "births", "joined", "completion"):
            assert getattr(other, field) == pytest.approx(getattr(one, field), rel=1e-9, abs=1e-12)
        assert other.new_slope == pytest.approx(one.new_slope, rel=1e-9)
        assert other.leave == pytest.approx(one.leave, rel=1e-9)
        assert other.noise.covariance == pytest.approx(one.noise.covariance, rel=1e-9)
        law = other.new_law


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
