"""Fitting: the generator's own parameters come back, the Weka file's traffic is met."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from synthesis_strategies import parameters
from trace_strategies import block_paths, trace_of

from smetric_model.errors import SpecError, TraceError
from smetric_model.workload import load_trace
from smetric_model.workload.synthesis import WorkloadParameters, generate
from smetric_model.workload.synthesis_compare import compare, ks_distance
from smetric_model.workload.synthesis_distributions import Constant, LogNormal, Uniform
from smetric_model.workload.synthesis_fit import describe, fit
from smetric_model.workload.synthesis_parameters import (
    Execution,
    Forks,
    Frameworks,
    HistoryEdits,
    Sessions,
    ThinkTimes,
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # scipy's p-values of single values
@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1))
def test_distance_is_that_of_scipy(one, two) -> None:
    assert ks_distance(one, two) == pytest.approx(ks_2samp(one, two, method="asymp").statistic)
    # a weight is as good as repeating the value
    weights = np.arange(1, len(one) + 1)
    repeated = np.repeat(one, weights)
    assert ks_distance(one, two, weights) == pytest.approx(ks_distance(repeated, two))
    assert ks_distance(one, one) == 0


def test_distance_of_nothing() -> None:
    assert np.isnan(ks_distance([], [1.0]))
    assert np.isnan(ks_distance([1.0], [1.0], [0.0]))


def test_describe() -> None:
    rng = np.random.default_rng(0)
    found = describe(LogNormal(300.0, 0.9).draw(rng, 5_000))
    assert isinstance(found, LogNormal)
    assert found.median == pytest.approx(300, rel=0.05)
    assert found.sigma == pytest.approx(0.9, rel=0.05)
    twin = np.concatenate([rng.normal(10, 1, 500), rng.normal(100, 5, 500)])
    found = describe(twin)
    assert not isinstance(found, LogNormal)
    assert ks_distance(twin, found.draw(rng, 5_000)) < 0.11  # a tenth lies between two quantiles
    assert describe([3.0, 3.0]) == Constant(3.0)


TRUTH = WorkloadParameters(
    rate_rps=4.0,
    window_s=3_600.0,
    frameworks=Frameworks(4, 1.0, LogNormal(2_000.0, 0.3), 1, Constant(0.0)),
    sessions=Sessions(
        turns=LogNormal(12.0, 0.6, high=60.0),
        first_tokens=LogNormal(1_500.0, 0.7),
        tool_result_tokens=LogNormal(400.0, 0.8),
        user_tokens=LogNormal(120.0, 0.8),
        size_sigma=0.4,
        user_ratio=0.2,
    ),
    think=ThinkTimes(
        LogNormal(2.0, 0.8, high=60.0), LogNormal(30.0, 0.8, high=600.0), Constant(1.0), 0.0
    ),
    history=HistoryEdits(0.15, 0.2, Uniform(0.0, 1.0)),
    execution=Execution(0.4, 2e-4, 0.03, 0.1),
)


def test_own_parameters_come_back() -> None:
    trace = generate(TRUTH, seed=1)
    result = fit(trace)
    p = result.parameters
    assert p.rate_rps == pytest.approx(4.0, rel=0.1)
    assert p.frameworks.count == 4
    assert p.frameworks.zipf_exponent == pytest.approx(1.0, abs=0.2)
    assert p.sessions.user_ratio == pytest.approx(0.2, abs=0.02)
    # compacted prompts and blocks of 64 tokens blur the cuts a little
    assert p.history.rewrite_ratio == pytest.approx(0.15, abs=0.02)
    assert p.history.rewrite_spread == pytest.approx(0.2, abs=0.08)
    assert p.history.replaced_ratio == pytest.approx(1.0, abs=0.1)
    assert p.sessions.size_sigma == pytest.approx(0.4, abs=0.15)
    assert p.execution.per_output_token_s == pytest.approx(0.03, rel=0.05)
    assert p.execution.per_new_token_s == pytest.approx(2e-4, rel=0.1)
    assert p.execution.sigma == pytest.approx(0.1, abs=0.02)
    assert p.think.tool_s.median == pytest.approx(2.0, rel=0.1)
    table = result.distances
    for name in ("turns", "prompt_tokens", "new_tokens", "think_time_s", "reuse_interval_s"):
        assert table.loc[name, "ks"] < 0.1, name
    assert table.loc["ideal_reuse_ratio", "ks"] < 0.02
    assert table.loc["system_reuse_ratio", "ks"] < 0.05


def test_turns_of_cut_sessions_are_estimated() -> None:
    """In a window shorter than the sessions most are cut; the estimate looks past the cuts."""
    p = TRUTH.replace(
        **{"sessions.turns": Constant(40.0), "sessions.user_ratio": 0.0, "rate_rps": 20.0}
    )
    trace = generate(p, window_s=500.0, seed=2)
    seen = np.bincount(trace.column("session_id"))
    assert np.median(seen) < 38
    turns = fit(trace).parameters.sessions.turns
    assert turns.quantile(np.array([0.5]))[0] == pytest.approx(40, abs=1)


def test_subagents_come_back() -> None:
    forks = Forks(0.1, Constant(2.0), Constant(1.0), LogNormal(5.0, 0.3, high=20.0), Constant(2.0))
    p = TRUTH.replace(forks=forks)
    trace = generate(p, seed=1, start="cold", ends="whole", sessions=1_500)
    found = fit(trace).parameters.forks
    assert found.spawn_ratio == pytest.approx(0.1, abs=0.01)
    assert found.children == Constant(2.0)
    assert found.shared_ratio.quantile(np.array([0.5]))[0] == pytest.approx(1.0, abs=1e-6)
    assert found.delay_s.quantile(np.array([0.5]))[0] == pytest.approx(2.0, abs=0.01)
    assert found.joined


def test_traces_that_tell_less() -> None:
    trace = trace_of([[1, 2], [1, 2, 3], [7]], sessions=[0, 0, 1], arrival_s=[0.0, 5.0, 9.0])
    result = fit(trace)
    assert any("completions" in note for note in result.notes)
    assert any("start to start" in note for note in result.notes)
    assert len(result.generated) >= 1
    unnamed = trace_of([[1, 2], [1, 2, 3]])
    with pytest.raises(TraceError, match="names no sessions"):
        fit(unnamed)


@given(parameters(), st.integers(0, 1_000))
@settings(max_examples=15)
def test_any_traffic_can_be_fitted(p, seed) -> None:
    try:
        trace = generate(p, seed=seed, rate_rps=2.0)
    except SpecError as error:  # a level of no arrivals may last the whole window
        assume("no request falls into" not in str(error))
        raise
    result = fit(trace, seed=seed)
    assert result.distances.loc["prompt_tokens", "trace_mean"] > 0
    assert WorkloadParameters.from_dict(result.parameters.to_dict()) == result.parameters


@given(block_paths(), st.data())
@settings(max_examples=25)
def test_any_few_requests_can_be_fitted(paths, data) -> None:
    names: dict[int, int] = {}
    drawn = data.draw(st.lists(st.integers(0, 3), min_size=len(paths), max_size=len(paths)))
    sessions = [names.setdefault(name, len(names)) for name in drawn]
    arrival = data.draw(st.lists(st.floats(0, 100), min_size=len(paths), max_size=len(paths)))
    result = fit(trace_of(paths, sessions=sessions, arrival_s=sorted(arrival)))
    assert len(result.generated) > 0


def test_comparing_a_trace_with_itself() -> None:
    trace = generate(TRUTH, seed=3, window_s=600.0)
    assert (compare(trace, trace)["ks"].dropna() == 0).all()


@pytest.mark.shared
def test_weka_file_is_met(shared_dir) -> None:
    """Distances of the fit to the shared file; halves of its own sessions are .04 to .15 apart."""
    trace = load_trace(shared_dir / "traces" / "weka-claude-code-120.jsonl.gz")
    table = fit(trace).distances["ks"]
    assert table["ideal_reuse_ratio"] < 0.01
    for name, limit in {
        "turns": 0.06,
        "first_prompt_tokens": 0.08,
        "prompt_tokens": 0.11,
        "new_tokens": 0.05,
        "output_tokens": 0.03,
        "think_time_s": 0.10,
        "e2e_s": 0.05,
        "reuse_interval_s": 0.07,
    }.items():
        assert table[name] < limit, name
