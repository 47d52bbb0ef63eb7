"""Compiled kernels against the plain formulas that they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smetric_model.analytic import _mix_kernels, _quantile_kernels, _step_kernels
from smetric_model.analytic._stall_kernels import LastStep
from smetric_model.analytic.busy_periods import condensed
from smetric_model.analytic.latency import prefill_time_s
from smetric_model.analytic.quantiles import quantiles, weighted_quantiles
from smetric_model.analytic.stall_laws import FEWEST_PLACES, Stalled, StallLaw
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


def spread_out(places, count=50):
    """Requests with a law of what stalls them."""
    rng = np.random.default_rng(0)
    work, share = condensed(rng.lognormal(-3, 1, 500), 24)
    own = rng.uniform(0.5, 8, count)
    interval, steps = own + rng.uniform(0, 3, own.shape), rng.uniform(20, 300, count)
    law = StallLaw(work, share, 3.0, interval.min(), interval.max(), np.full(count, places))
    return law, (steps, own, rng.dirichlet(np.ones(count)), np.log(interval))


def of_table(table, log_parameter, x):
    """A table's law by plain interpolation."""
    levels = int(table.last) + 1
    place = np.clip((log_parameter - table.log_first) * table.per_level, 0, levels - 1)
    low = min(int(place), levels - 2)
    grid = np.arange(table.cdf.shape[1])
    below, above = (
        np.interp(x, grid / table.per_step[row], table.cdf[row]) for row in (low, low + 1)
    )
    return below + (place - low) * (above - below)


@pytest.mark.parametrize("places", [4.0, 1e6])
def test_mean_of_tpot_is_that_of_its_requests(places):
    law, (steps, own, weights, log_interval) = spread_out(places)
    assert law.binds == (places < 1e3)
    alone = np.zeros(50, dtype=bool)
    alone[7] = True
    log_most = np.full(50, np.log(places))
    stalled = Stalled(law, steps, own, weights, log_interval, log_most, alone)
    for limit in (0.01, 0.05, 0.2):
        expected = 0.0
        for i, spare in enumerate(steps * limit - own):
            both = [of_table(law.arrivals, log_interval[i], spare)]
            if law.binds:
                both.append(of_table(law.places, log_most[i], spare))
            expected += weights[i] * (1.0 if alone[i] else max(both)) * (spare >= 0)
        assert stalled.within(limit) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("places", [4.0, 1e6])
def test_quantiles_of_tpot_are_those_of_its_law(places):
    law, (steps, own, weights, log_interval) = spread_out(places)
    alone = np.zeros(50, dtype=bool)
    log_most = np.full(50, np.log(places))
    stalled = Stalled(law, steps, own, weights, log_interval, log_most, alone)
    shares = (0.1, 0.5, 0.9, 0.95, 0.99)
    found = stalled.quantiles_s(shares, 0.999 * (own / steps).min(), 10.0)
    assert (np.diff(found) >= 0).all()
    for share, value in zip(shares, found, strict=True):
        assert stalled.within(0.995 * value) <= share <= stalled.within(1.005 * value)


def test_a_request_with_a_place_for_few_is_stalled_less():
    law, (steps, own, weights, log_interval) = spread_out(4.0)
    free = np.zeros(50, dtype=bool)
    none = np.full(50, np.log(FEWEST_PLACES))
    few = Stalled(law, steps, own, weights, log_interval, np.full(50, np.log(4.0)), free)
    fewest = Stalled(law, steps, own, weights, log_interval, none, free)
    assert fewest.within(0.05) >= few.within(0.05)


@given(load=st.floats(0.05, 0.95), own=st.floats(0.1, 5.0), mean=st.floats(0.5, 3.0))
def test_quantiles_of_the_ttft_are_exact_for_an_exponential_wait(load, own, mean):
    grid = np.linspace(0.0, 40 * mean, 1 << 12)
    waiting = 1.0 - load * np.exp(-grid / mean)
    shares = np.array([0.2, 0.5, 0.9, 0.95, 0.99])
    found = _quantile_kernels.ttft_quantiles(
        *(shares, 0.999 * own, own + load * mean, own + grid[-1]),
        *(np.full((1, 1), own), np.zeros(1), np.zeros(1, dtype=bool), np.ones(1)),
        *(waiting, grid[1], 1e-12, LastStep(0.0, 0.0, 0.0, 0.0)),
    )
    exact = own + mean * np.maximum(np.log(load / (1.0 - shares)), 0.0)
    assert found == pytest.approx(exact, rel=5e-3)


def test_a_blocked_request_waits_for_the_longer_of_two():
    waiting, grid = np.ones(8), np.arange(8.0)
    limits = np.array([0.5, 1.0, 3.0])
    found = [
        _quantile_kernels.ttft_within(
            *(limit, np.full((1, 1), 0.5), np.zeros(1), np.ones(1, dtype=bool), np.ones(1)),
            *(waiting, grid[1], 2.0, LastStep(9.0, 0.0, 0.0, 9.0)),
        )
        for limit in limits
    ]
    assert found == pytest.approx(1 - np.exp(-(limits - 0.5) / 2.0))


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)), min_size=1, max_size=60),
    st.sampled_from([0.1, 0.5, 0.9, 0.99]),
)
def test_weighted_quantile_is_that_of_the_sorted_sample(pairs, share):
    values, weights = np.array(pairs, dtype=float).T
    order = np.argsort(values)
    upto = np.cumsum(weights[order])
    at = np.searchsorted(upto, share * upto[-1] * (1 + 1e-12))
    near = values[order][[max(at - 1, 0), min(at, values.size - 1)]]
    assert weighted_quantiles(values, weights, [share])[0] in near


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_quantiles_of_a_sample_are_those_of_numpy(values):
    shares = [0.0, 0.3, 0.5, 0.99, 1.0]
    found = quantiles(np.array(values), shares)
    assert found == pytest.approx(np.quantile(values, shares), rel=1e-9, abs=1e-9)
