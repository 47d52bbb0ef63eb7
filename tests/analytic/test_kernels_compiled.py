"""Compiled kernels against the plain formulas that they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic import _mix_kernels, _stall_kernels, _step_kernels
from smetric_model.analytic.busy_periods import condensed
from smetric_model.analytic.latency import prefill_time_s
from smetric_model.analytic.stall_laws import StallLaw
from smetric_model.analytic.step_model import step_model
from smetric_model.analytic.step_time import step_time_s
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import get_llm

LLMS = ("Qwen3-Coder-30B-A3B-Instruct", "Qwen3-32B")


@pytest.fixture(scope="module", params=LLMS)
def model(request):
    return step_model(InstanceSpec(get_llm(request.param), get_gpu("H20")))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_step_times_are_those_of_the_formulas(model, seed):
    rng = np.random.default_rng(seed)
    new, context = rng.uniform(0, 30_000, 40), rng.uniform(0, 1e5, 40)
    batch = np.round(rng.uniform(0, 300, (3, 1)))
    plain = step_time_s(model, new, context, batch, 9_000.0)
    assert _step_kernels.step_time_s(model, new, context, batch, 9_000.0) == pytest.approx(
        plain, rel=1e-12
    )
    plain = prefill_time_s(model, new, context, 2_048, batch, 9_000.0)
    compiled = _step_kernels.prefill_time_s(model, new, context, 2_048, batch, 9_000.0)
    assert compiled == pytest.approx(plain, rel=1e-12)
    one = _step_kernels.step_time_s(model, new[0], context[0], 7.0, 9_000.0)
    assert one == pytest.approx(step_time_s(model, new[0], context[0], 7.0, 9_000.0), rel=1e-12)


def test_step_time_of_a_negative_input_is_nan(model):
    assert np.isnan(_step_kernels.step_time_s(model, -1.0))


def _picked_by_sorting(new, rank, weight, strata, targets):
    """Kinds of request picked by two plain sorts."""
    order = np.argsort(new, kind="stable")
    order = order[weight[order] > 0]
    upto = np.cumsum(weight[order])
    stratum = np.minimum((upto * (strata / upto[-1]) - 1e-9).astype(int), strata - 1)
    inner = np.lexsort((rank[order], stratum))
    upto = np.cumsum(weight[order][inner])
    at = np.searchsorted(upto, targets * upto[-1])
    return order[inner[np.minimum(at, inner.size - 1)]]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0.01, 3), whole=st.booleans())
def test_kinds_picked_without_sorting_all_are_those_of_two_sorts(seed, spread, whole):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 3_000))
    new, weight = rng.lognormal(6, spread, size), rng.uniform(0, 1, size)
    new = np.round(new) if whole else new
    weight[rng.uniform(0, 1, size) < 0.3] = 0.0
    weight[0] = 0.5
    rank = rng.integers(0, 40, size)
    targets = (np.arange(96) + rng.uniform(0.01, 0.99, 96)) / 96
    kinds, scale = np.empty(96, np.int64), np.empty(96)
    by_rank = np.argsort(rank, kind="stable")
    mean = _mix_kernels.pick(new, by_rank, rank, weight, 8, targets, kinds, scale)
    assert (kinds == _picked_by_sorting(new, rank, weight, 8, targets)).all()
    assert mean == pytest.approx(new @ weight / weight.sum(), rel=1e-9)


@pytest.mark.parametrize("places", [4.0, 1e6])
def test_mean_of_tpot_is_that_of_its_requests(places):
    rng = np.random.default_rng(0)
    work, share = condensed(rng.lognormal(-3, 1, 500), 24)
    own = rng.uniform(0.5, 8, 50)
    interval, steps = own + rng.uniform(0, 3, own.shape), rng.uniform(20, 300, 50)
    most = np.full(50, places)
    law = StallLaw(work, share, 3.0, interval.min(), interval.max(), most)
    assert (law.places is not None) == (places < 1e3)
    weights = rng.dirichlet(np.ones(50))
    within = law.mean_within(steps, own, interval, weights, most)
    for limit in (0.01, 0.05, 0.2):
        each = law.within(interval, most, steps * limit - own)
        assert within(limit) == pytest.approx(weights @ each, rel=1e-12)


def test_a_table_is_linear_between_points_and_ends_at_one():
    cdf, steps = np.array([[0.0, 0.4, 0.9], [0.2, 0.6, 0.8]]), np.array([1.0, 2.0])
    low, share = np.zeros(4, np.int64), np.full(4, 0.25)
    found = _stall_kernels.law_at(cdf, steps, low, share, np.array([-1.0, 0.5, 1.0, 9.0]))
    middle = 0.75 * 0.2 + 0.25 * 0.3
    assert found == pytest.approx([0.0, middle, 0.75 * 0.4 + 0.25 * 0.4, 1.0])
