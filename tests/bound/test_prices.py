from __future__ import annotations

import numpy as np
import pytest
from random_scenarios import random_scenario

from smetric_model.bound.prices import break_even, grown, shadow_prices, window_prices
from smetric_model.bound.problem import problem_of
from smetric_model.bound.solvers import SolverOptions
from smetric_model.bound.timed import timed_bound
from smetric_model.bound.volume import volume_by_thresholds
from smetric_model.errors import SpecError

DIRECT = SolverOptions("highs-direct")


@pytest.fixture(scope="module", params=[(1, "kv"), (4, "kv"), (5, "link"), (7, "kv")])
def bounded(request):
    scenario, trace = random_scenario(*request.param)
    problem, _ = problem_of(scenario, trace)
    _, _, volume = volume_by_thresholds(problem, tolerance=1e-9)
    return problem, volume


def test_finite_differences_agree(bounded):
    problem, volume = bounded
    table = shadow_prices(problem, volume, check=1e-4)
    assert (table["volume_tps"] >= 0).all()
    # concave in each capacity: a wide step brings no more than the derivative says
    derivative = table["volume_tps"].to_numpy()
    difference = table["volume_difference_tps"].to_numpy()
    top = derivative.max()
    assert (difference <= derivative * (1 + 1e-3) + 1e-3 * top).all()
    assert difference == pytest.approx(derivative, rel=0.05, abs=1e-2 * top)
    assert table["volume_relative"].max() > 0


def test_all_of_everything_scales_the_bound(bounded):
    """Constant returns to scale: 1 % more of all is 1 % more load."""
    problem, volume = bounded
    have = problem.capacities
    more = {
        name: getattr(have, name) * 1.01
        for name in (
            "compute",
            "decode_compute",
            "local_tokens",
            "decode_local_tokens",
            "global_tokens",
            "nic_bytes_per_s",
            "pcie_bytes_per_s",
        )
    }
    _, _, larger = volume_by_thresholds(problem.with_capacities(**more), tolerance=1e-9)
    assert larger.load_multiple == pytest.approx(1.01 * volume.load_multiple, rel=1e-6)


def test_break_even_is_relative_to_an_instance(bounded):
    problem, volume = bounded
    table = shadow_prices(problem, volume)
    costs = break_even(table, 2.0)
    if table.loc["instance", "volume_tps"] <= 0:
        assert costs["by_volume"].isna().all()
        return
    assert costs.loc["instance", "by_volume"] == pytest.approx(2.0)
    ratio = table["volume_tps"] / table.loc["instance", "volume_tps"]
    np.testing.assert_allclose(costs["by_volume"], 2.0 * ratio)


def test_prices_by_window_sum_to_the_capacity_part_of_the_bound(bounded):
    problem, volume = bounded
    goodput = timed_bound(problem, DIRECT, window_s=60.0, fallback=volume.prices)
    table = window_prices(problem, goodput.prices)
    worth = table.drop(columns=["start_s", "end_s"]).to_numpy().sum()
    kept = np.maximum(problem.value_tokens - goodput.costs.request, 0)[problem.hopeful].sum()
    assert worth + kept == pytest.approx(goodput.bound_tokens, rel=1e-6)


def test_unknown_units_are_refused(bounded):
    problem, _ = bounded
    with pytest.raises(SpecError, match="what = 'gold'"):
        grown(problem, "gold", 1)
    if not problem.decode_rows:
        with pytest.raises(SpecError, match="colocated"):
            grown(problem, "decode_instance", 1)
