from __future__ import annotations

import numpy as np
import pytest
from random_scenarios import KINDS, random_scenario

from smetric_model.bound.figures import ladder_figure, price_figure, window_figure
from smetric_model.bound.ladder import ladder, ttl_estimate
from smetric_model.bound.prices import shadow_prices, window_prices
from smetric_model.bound.problem import problem_of
from smetric_model.bound.run import BoundOptions, bound_in_detail
from smetric_model.bound.solvers import SolverOptions
from smetric_model.bound.volume import volume_by_thresholds
from smetric_model.errors import SpecError
from smetric_model.identities import check_identities
from smetric_model.schema import load_schema

DIRECT = SolverOptions("highs-direct")


@pytest.mark.parametrize("kind", KINDS)
def test_foresight_is_worth_something(kind):
    """Keeping everything for a time carries no more than keeping what is needed."""
    scenario, trace = random_scenario(KINDS.index(kind) + 3, kind)
    problem, _ = problem_of(scenario, trace)
    estimate = ttl_estimate(problem)
    low, _, _ = volume_by_thresholds(problem)
    assert 0 < estimate.load_multiple <= (1 / low) * (1 + 1e-6)
    assert estimate.local_ttl_s >= 0


def test_rungs_in_order():
    scenario, trace = random_scenario(13, "kv")
    steps = ladder(
        scenario,
        ["smetric", "random"],
        trace=trace,
        evictions=("clairvoyant", "lru"),
        options=DIRECT,
    )
    assert steps["rung"].tolist()[:2] == ["volume bound", "TTL (estimate)"]
    simulated = steps[steps["rung"] == "simulated"]
    assert simulated["eviction"].tolist() == ["clairvoyant"] * 2 + ["lru"] * 2
    assert (simulated["goodput_share"] <= 1 + 1e-9).all()
    assert (simulated["total_tps"] <= steps["total_tps"].iloc[0]).all()
    figure = ladder_figure(steps)
    assert len(figure.axes[0].patches) == len(steps)


@pytest.mark.parametrize("kind", KINDS)
def test_outcome_keeps_the_schema(kind):
    scenario, trace = random_scenario(KINDS.index(kind) + 6, kind)
    found = bound_in_detail(scenario, trace, BoundOptions(solver=DIRECT, window_s=30.0))
    outcome = found.outcome
    assert not check_identities(outcome)
    filled = [n for n, column in load_schema().items() if "bound" not in column.verbs]
    for name in filled:
        value = outcome[name]
        assert value is None or value == "" or np.isnan(value), name
    assert outcome["verb"] == "bound"
    assert outcome["policy"] == "timed"
    assert outcome.number("total_within_slo_tps") <= (
        found.problem.value_tokens.sum() / found.problem.window_s * (1 + 1e-9)
    )
    prices = shadow_prices(found.problem, found.volume)
    assert price_figure(prices).axes
    assert found.scale is not None
    assert window_figure(window_prices(found.problem, found.scale.prices)).axes


def test_traces_without_blocks_and_slos_that_nobody_can_meet():
    from smetric_model.scenario import Scenario
    from smetric_model.simulate.loads import fixed_length_trace, with_fixed_load

    trace = fixed_length_trace(4096, 64, 100, 5.0)
    scenario = with_fixed_load(Scenario.from_dict({"cluster": {"instances": 2}}), trace)
    options = BoundOptions(solver=DIRECT)
    easy = bound_in_detail(scenario, trace, options).outcome
    assert easy["within_slo_ratio"] == 1
    assert easy["local_ratio"] == 0
    never = scenario.replace(**{"slo.ttft_base_s": 1e-3, "slo.ttft_per_prompt_token_s": 0.0})
    assert bound_in_detail(never, trace, options).outcome["total_within_slo_tps"] == 0
    endless = scenario.replace(**{"slo.ttft_base_s": np.inf, "slo.tpot_s": np.inf})
    assert bound_in_detail(endless, trace, options).outcome["within_slo_ratio"] == 1
    short = scenario.replace(**{"engine.max_context_tokens": 1000})
    with pytest.raises(SpecError, match="no servable request"):
        bound_in_detail(short, trace, options)


def test_called_as_a_function_whichever_way_it_is_imported():
    import smetric_model
    import smetric_model.bound

    scenario, trace = random_scenario(1, "kv")
    options = BoundOptions(solver=DIRECT, timed=False)
    assert smetric_model.bound(scenario, trace, options)["policy"] == "volume"
