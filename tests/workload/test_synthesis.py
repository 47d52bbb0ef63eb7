"""The generator: laws of every trace it makes, presets, reproducibility."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthesis_strategies import parameters

from smetric_model.datafiles import data_dir
from smetric_model.errors import SpecError
from smetric_model.workload import load_trace, write_trace
from smetric_model.workload.columns import REQUEST_COLUMNS
from smetric_model.workload.reuse import ideal_reuse
from smetric_model.workload.sessions import turn_table
from smetric_model.workload.synthesis import (
    WorkloadParameters,
    generate,
    load_preset,
    preset_names,
    preset_parameters,
)
from smetric_model.workload.synthesis_distributions import Constant, LogNormal, Quantiles
from smetric_model.workload.synthesis_parameters import Forks, HistoryEdits, Sessions
from smetric_model.workload.synthesis_statistics import traffic_statistics

seeds = st.integers(0, 2**63 - 1)


def generated(p: WorkloadParameters, **options):
    """A trace, or None where no request falls into the window."""
    try:
        return generate(p, **options)
    except SpecError as error:
        if "no request falls into" not in str(error):
            raise
        return None


def same_requests(one, two, but=()):
    for column in one.requests.columns.difference(list(but)):
        a, b = one.requests[column], two.requests[column]
        assert a.astype(object).equals(b.astype(object)), column


@given(
    parameters(),
    seeds,
    st.sampled_from(["equilibrium", "cold"]),
    st.sampled_from(["cut", "whole"]),
)
@settings(max_examples=60)
def test_every_trace_is_well_formed(p, seed, start, ends) -> None:
    trace = generated(p, seed=seed, start=start, ends=ends)
    if trace is None:
        return
    r = {name: trace.column(name) for name in trace.requests.columns if name != "trigger"}
    assert list(trace.requests.columns) == [column.name for column in REQUEST_COLUMNS]
    assert (np.diff(r["arrival_s"]) >= 0).all()
    assert r["arrival_s"][0] >= 0
    assert ends == "whole" or r["arrival_s"][-1] < 300
    assert (r["prompt_tokens"] >= 1).all()
    assert (r["output_tokens"] >= 1).all()
    assert r["prompt_tokens"].max() <= p.sessions.context_limit_tokens.value + 1
    first_seen = np.unique(r["session_id"], return_index=True)[1]
    assert (np.diff(first_seen) > 0).all()  # numbered by first arrival
    # a turn continues the turn before it, a think time after that one's completion
    parent, rows = r["parent"], np.arange(len(trace))
    assert (parent < rows).all()
    same = (parent >= 0) & (r["session_id"][np.maximum(parent, 0)] == r["session_id"])
    before = parent[same]
    assert (r["turn"][same] == r["turn"][before] + 1).all()
    ready = r["arrival_s"][before] + r["e2e_s"][before] + r["think_time_s"][same]
    np.testing.assert_allclose(r["arrival_s"][same], ready, atol=1e-6)
    assert np.isnan(r["think_time_s"][~same]).all()
    # the others begin in the trace: first turns, or sessions in progress when the window opens
    assert set(rows[~same]) == set(first_seen)
    started = r["turn"][first_seen] == 0
    assert start == "equilibrium" or started.all()
    spawned = parent[first_seen] >= 0
    assert (r["turn"][first_seen][spawned] == 0).all()
    # prefixes: whole blocks of the prompt, all of them
    tree = trace.tree
    np.testing.assert_array_equal(tree.request_blocks, r["prompt_tokens"] // p.block_tokens)
    segment = tree.request_segment
    root = tree.parent[segment] < 0
    assert (tree.request_blocks[root] == 0).all()
    assert (tree.request_blocks[~root] > tree.start_block[segment[~root]]).all()
    assert (tree.request_blocks <= tree.end_block[segment]).all()
    inner = tree.parent >= 0
    assert (tree.end_block[tree.parent[inner]] == tree.start_block[inner]).all()
    assert (tree.parent[inner] < np.flatnonzero(inner)).all()


@given(parameters(), seeds)
@settings(max_examples=25)
def test_round_trip_through_the_loader(tmp_path_factory, p, seed) -> None:
    """A written trace passes the loader's checks unrepaired, and comes back the same."""
    trace = generated(p, seed=seed)
    if trace is None:
        return
    path = tmp_path_factory.mktemp("synthesis") / "trace.parquet"
    write_trace(trace, path)
    again = load_trace(path)
    assert again.report.repaired == again.report.dropped == 0
    same_requests(trace, again, but=["source_line"])
    np.testing.assert_array_equal(ideal_reuse(trace), ideal_reuse(again))
    # the builder of the loader, which knows paths only, finds the same radix tree
    ours, theirs = (int((t.tree.parent >= 0).sum()) for t in (trace, again))
    assert ours == theirs
    assert trace.tree.distinct_blocks == again.tree.distinct_blocks


@given(parameters(), seeds)
@settings(max_examples=15)
def test_same_seed_same_bytes(tmp_path_factory, p, seed) -> None:
    folder = tmp_path_factory.mktemp("synthesis")
    for name in ("a.parquet", "b.parquet"):
        trace = generated(p, seed=seed)
        if trace is None:
            return
        write_trace(trace, folder / name)
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


@given(parameters(), seeds, st.floats(1.5, 4))
@settings(max_examples=25)
def test_a_higher_rate_adds_sessions_and_changes_none(p, seed, factor) -> None:
    one = generated(p, seed=seed, start="cold", ends="whole")
    two = generated(p, seed=seed, rate_rps=0.5 * factor, start="cold", ends="whole")
    if one is None:
        return

    def contents(trace):
        first = trace.column("parent")[np.unique(trace.column("session_id"), return_index=True)[1]]
        frame = trace.requests[["prompt_tokens", "output_tokens", "think_time_s", "e2e_s"]]
        groups = frame.groupby(trace.column("session_id"))
        return [
            tuple(group.fillna(-1).itertuples(index=False, name=None))
            for (_, group), above in zip(groups, first, strict=True)
            if above < 0
        ]

    few, many = contents(one), contents(two)
    if p.arrivals.kind == "poisson":  # else a level may keep the first start waiting at one rate
        assert len(many) >= len(few)
    # sessions started by users begin in the order in which they are drawn
    shorter = min(len(few), len(many))
    assert few[:shorter] == many[:shorter]


def test_chunks_do_not_show(monkeypatch) -> None:
    from smetric_model.workload import synthesis_build

    p = preset_parameters("bailian-trace-2-short")
    whole = generate(p, rate_rps=1.0, window_s=900.0, seed=7)
    monkeypatch.setattr(synthesis_build, "_CHUNK_TURNS", 3_000)
    parts = generate(p, rate_rps=1.0, window_s=900.0, seed=7)
    same_requests(whole, parts)


def test_equilibrium_is_steady() -> None:
    """Sessions in progress make the first minutes like the last ones; from cold they ramp up."""
    p = WorkloadParameters(sessions=Sessions(turns=LogNormal(15.0, 0.5, high=100.0)))
    steady = generate(p, rate_rps=20.0, window_s=3_600.0, seed=3)
    early, late = np.histogram(steady.column("arrival_s"), [0, 600, 3_000, 3_600])[0][[0, 2]]
    # 12,000 requests in ten minutes come in bursts of about 17 a session: sd about 4 %
    assert abs(early / late - 1) < 0.2
    assert len(steady) == pytest.approx(20 * 3_600, rel=0.1)
    cold = generate(p, rate_rps=20.0, window_s=3_600.0, seed=3, start="cold")
    early, late = np.histogram(cold.column("arrival_s"), [0, 60, 3_000, 3_600])[0][[0, 2]]
    assert early * 10 < 0.5 * late


def test_sessions_in_progress_are_length_biased() -> None:
    """At a moment a session of n turns is met in proportion to n (equal gaps)."""
    turns = Quantiles(((0.0, 2.0), (0.5, 2.0), (0.5 + 1e-9, 20.0), (1.0, 20.0)))
    p = WorkloadParameters(
        sessions=Sessions(
            turns=turns, user_ratio=0.0, output_tokens=Constant(1.0), first_tokens=Constant(10.0)
        ),
        history_s=10_000.0,
    )
    p = p.replace(
        **{
            "think.tool_s": Constant(10.0),
            "execution.per_new_token_s": 0.0,
            "execution.per_output_token_s": 0.0,
            "execution.base_s": 0.1,
            "history.rewrite_ratio": 0.0,
        }
    )
    trace = generate(p, rate_rps=20.0, window_s=1_000.0, seed=1, ends="whole")
    first = np.unique(trace.column("session_id"), return_index=True)[1]
    last_turn = np.zeros(trace.sessions)
    np.maximum.at(last_turn, trace.column("session_id"), trace.column("turn"))
    under_way = trace.column("turn")[first] > 0
    # of those met between first and last request: 1 gap against 19
    assert (last_turn[under_way] == 19).mean() == pytest.approx(19 / 20, abs=0.03)
    assert (last_turn[~under_way] == 19).mean() == pytest.approx(1 / 2, abs=0.05)


@pytest.mark.parametrize("turns", [4, 33])
def test_append_only_growth_reuses_at_least(turns) -> None:
    """Steady growth over T turns from nothing: new 1, 1, …; reuse 1 − T/(1+…+T) = 1 − 2/(T+1)."""
    p = WorkloadParameters(
        block_tokens=1,
        sessions=Sessions(
            turns=Constant(float(turns)),
            first_tokens=Constant(100.0),
            tool_result_tokens=Constant(70.0),
            user_tokens=Constant(70.0),
            output_tokens=Constant(30.0),
            size_sigma=0.0,
        ),
    ).replace(
        **{
            "frameworks.system_tokens": Constant(0.0),
            "frameworks.tool_tokens": Constant(0.0),
            "history.rewrite_ratio": 0.0,
        }
    )
    trace = generate(p, sessions=30, start="cold", ends="whole")
    reuse = traffic_statistics(trace)["ideal_reuse_ratio"]
    assert reuse == pytest.approx(1 - 2 / (turns + 1), abs=1e-9)


def test_rewrites_lose_what_they_should() -> None:
    """Every turn rewritten from half of the history on, at equal length: half is new."""
    p = WorkloadParameters(
        block_tokens=1,
        sessions=Sessions(
            turns=Constant(5.0),
            first_tokens=Constant(1_000.0),
            tool_result_tokens=Constant(1.0),
            user_tokens=Constant(1.0),
            output_tokens=Constant(1.0),
            size_sigma=0.0,
            answer_kept_ratio=0.0,
        ),
        history=HistoryEdits(rewrite_ratio=1.0, kept_ratio=Constant(0.5)),
    )
    trace = generate(p, sessions=20, start="cold", ends="whole")
    table = turn_table(trace)
    later = trace.column("turn") > 0
    kept = table["kept_ratio"].to_numpy()[later]
    prefix = trace.column("prompt_tokens")[~later].min() - 1_000
    assert (table["history"][later] == "rewritten").all()
    longest = trace.column("prompt_tokens").max() - 1_000
    assert kept.min() >= (prefix + 499) / (prefix + 1_004)
    assert kept.max() <= (longest + 503) / (longest + 1_000)


def test_subagents_share_their_parents_context() -> None:
    p = WorkloadParameters(
        block_tokens=16,
        sessions=Sessions(turns=Constant(6.0)),
        history=HistoryEdits(rewrite_ratio=0.0),
        forks=Forks(0.3, Constant(2.0), Constant(1.0), Constant(3.0), Constant(1.0)),
    )
    trace = generate(p, sessions=80, start="cold", ends="whole", seed=2)
    parent, session = trace.column("parent"), trace.column("session_id")
    child = np.flatnonzero((parent >= 0) & (session[np.maximum(parent, 0)] != session))
    assert child.size > 10
    arrival, e2e = trace.column("arrival_s"), trace.column("e2e_s")
    np.testing.assert_allclose(
        arrival[child], arrival[parent[child]] + e2e[parent[child]] + 1.0, atol=1e-6
    )
    reused = ideal_reuse(trace)
    whole = trace.column("prompt_tokens")[parent[child]] // 16 * 16
    assert (reused[child] >= whole).all()
    # the parent's next turn comes after its subagents are done
    done = np.zeros(trace.sessions)
    np.maximum.at(done, session, arrival + e2e)
    following = {int(p): row for row, p in enumerate(parent) if session[p] == session[row]}
    for row in child:
        after = following.get(int(parent[row]))
        if after is not None:
            assert arrival[after] >= done[session[row]] - 1e-6


def test_salted_tenants_share_nothing() -> None:
    p = WorkloadParameters().replace(**{"tenants.count": 50, "tenants.zipf_exponent": 0.0})
    options = {"sessions": 100, "start": "cold", "ends": "whole"}
    open_house = traffic_statistics(generate(p, **options))
    salted = traffic_statistics(generate(p.replace(**{"tenants.salted": True}), **options))
    assert salted["system_reuse_ratio"] < 0.6 * open_house["system_reuse_ratio"]
    assert salted["ideal_reuse_ratio"] < open_house["ideal_reuse_ratio"]
    assert salted["requests"] == open_house["requests"]


# -- presets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", preset_names())
def test_presets_satisfy_the_calibrate_claims_together(name) -> None:
    """Claims C01 to C06 at the preset's own rate and window, one seed; C06 has no tolerance."""
    p = preset_parameters(name)
    assert p.name == name
    assert len(p.assumptions) > 5
    found = traffic_statistics(load_preset(name, seed=11))
    _, _, trace, scale = name.split("-")
    assert found["ideal_reuse_ratio"] == pytest.approx(0.80, abs=0.03)
    assert found["intra_reuse_ratio"] == pytest.approx(0.67, abs=0.03)
    system = {"1": 0.18, "2": 0.20}[trace]
    assert found["system_reuse_ratio"] == pytest.approx(system, abs=0.03)
    assert found["soon_reuse_ratio"] == pytest.approx(0.90, abs=0.03)
    assert found["first_turn_ratio"] == pytest.approx(0.03, abs=0.003)
    mean = {"short": 15_000, "medium": 35_000, "long": 60_000}[scale]
    assert found["prompt_tokens_mean"] == pytest.approx(mean, rel=0.05)


def test_the_presets_of_the_issue_are_there() -> None:
    scales = ("short", "medium", "long")
    assert {f"bailian-trace-{t}-{s}" for t in (1, 2) for s in scales} <= set(preset_names())
    with pytest.raises(SpecError, match="did you mean 'bailian-trace-1-medium'"):
        load_preset("bailian-trace-1-medum")


def test_the_shipped_trace_is_made_by_the_generator(tmp_path) -> None:
    trace = load_preset("bailian-trace-1-medium", rate_rps=1.2, window_s=3_600.0, seed=0)
    write_trace(trace, tmp_path / "again.parquet")
    again = load_trace(tmp_path / "again.parquet")
    shipped = load_trace(data_dir() / "traces" / "agents-small.parquet")
    same_requests(again, shipped)
    np.testing.assert_array_equal(again.tree.request_blocks, shipped.tree.request_blocks)
    np.testing.assert_array_equal(ideal_reuse(again), ideal_reuse(shipped))


# -- options ---------------------------------------------------------------------------------------


def test_two_of_rate_window_and_sessions() -> None:
    p = WorkloadParameters()
    for options in (
        {"rate_rps": 5.0, "sessions": 300},
        {"window_s": 900.0, "sessions": 300},
        {"sessions": 300},
    ):
        trace = generate(p, seed=5, **options)
        started = (trace.column("turn") == 0).sum()
        assert started == pytest.approx(300, abs=5 * np.sqrt(300))
    with pytest.raises(SpecError, match="any two of them"):
        generate(p, rate_rps=1.0, window_s=1.0, sessions=1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rate_rps": 0.0}, "rate_rps = 0.0"),
        ({"window_s": float("inf")}, "window_s = inf"),
        ({"sessions": -1}, "sessions = -1"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": True}, "seed = True"),
        ({"start": "warm"}, "start = 'warm': equilibrium or cold"),
        ({"ends": "never"}, "ends = 'never': cut or whole"),
        ({"rate_rps": 1e9}, "200,000,000"),
        ({"rate_rps": 1e-9, "window_s": 1e-3}, "no request falls into"),
    ],
)
def test_wrong_options(options, match) -> None:
    with pytest.raises(SpecError, match=re.escape(match)):
        generate(WorkloadParameters(), **options)
