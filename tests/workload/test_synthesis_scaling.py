"""Other rates: whole sessions only, nothing about them changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthesis_strategies import parameters
from trace_strategies import trace_of

from smetric_model.errors import SpecError, TraceError
from smetric_model.workload import load_trace, write_trace
from smetric_model.workload.origin import common_prefix_blocks
from smetric_model.workload.reuse import ideal_reuse
from smetric_model.workload.starts import root_sessions
from smetric_model.workload.synthesis import WorkloadParameters, generate, load_preset
from smetric_model.workload.synthesis_build import compact_tree
from smetric_model.workload.synthesis_scaling import (
    replicate,
    scale_to_rate,
    superpose,
    superpose_copies,
    thin,
    trace_rate_rps,
)
from smetric_model.workload.synthesis_statistics import traffic_statistics

seeds = st.integers(0, 1_000)


def small(p, seed, start="equilibrium"):
    try:
        return generate(p, seed=seed, start=start)
    except SpecError:
        return None


def fingerprints(trace) -> list[tuple]:
    """What each session holds, as far as it does not name other sessions."""
    columns = ["turn", "arrival_s", "prompt_tokens", "output_tokens", "e2e_s"]
    frame = trace.requests[columns].assign(
        think=trace.requests["think_time_s"].fillna(-1),
        trigger=trace.requests["trigger"].astype(str),
        blocks=trace.tree.request_blocks,
    )
    groups = frame.groupby(trace.column("session_id"))
    return [tuple(g.itertuples(index=False, name=None)) for _, g in groups]


@given(parameters(), seeds, st.floats(0.05, 0.99), st.booleans())
@settings(max_examples=30)
def test_thinning_keeps_sessions_whole_and_unchanged(p, seed, share, families) -> None:
    trace = small(p, seed)
    if trace is None:
        return
    try:
        part = thin(trace, share, seed, keep_forks=families)
    except SpecError as error:
        if "no session" not in str(error):
            raise
        return
    whole = fingerprints(trace)
    kept = fingerprints(part)
    remaining = whole.copy()
    for session in kept:
        remaining.remove(session)  # each is one of the sessions, as it was
    assert len(remaining) == len(whole) - len(kept)
    if families:
        # all of a family, or none of it
        sizes = np.bincount(root_sessions(trace))
        parts = np.bincount(root_sessions(part))
        assert set(parts[parts > 0]) <= set(sizes[sizes > 0])
    # within a session, prefixes are shared as before: reuse never grows, and not by an own turn
    assert ideal_reuse(part).sum() <= ideal_reuse(trace).sum()


@given(parameters(), seeds)
@settings(max_examples=15)
def test_smaller_shares_are_nested(p, seed) -> None:
    trace = small(p, seed)
    if trace is None:
        return
    previous = None
    for share in (0.9, 0.5, 0.2):
        try:
            kept = fingerprints(thin(trace, share, 4))
        except SpecError:
            break
        if previous is not None:
            remaining = previous.copy()
            for session in kept:
                remaining.remove(session)
        previous = kept


def test_thinning_keeps_per_session_statistics() -> None:
    trace = load_preset("bailian-trace-1-medium", rate_rps=10.0, window_s=3_600.0)
    whole = traffic_statistics(trace)
    part = traffic_statistics(thin(trace, 0.3, 5))
    assert part["requests"] == pytest.approx(0.3 * whole["requests"], rel=0.15)
    assert part["prompt_tokens_mean"] == pytest.approx(whole["prompt_tokens_mean"], rel=0.05)
    assert part["first_turn_ratio"] == pytest.approx(whole["first_turn_ratio"], rel=0.15)
    intra = [s["ideal_reuse_ratio"] * s["intra_reuse_ratio"] for s in (whole, part)]
    assert intra[0] == pytest.approx(intra[1], abs=0.02)
    # sessions torn from their parents share less
    torn = traffic_statistics(thin(trace, 0.3, 5, keep_forks=False))
    other = [s["ideal_reuse_ratio"] * s["other_reuse_ratio"] for s in (torn, part)]
    assert other[0] < 0.6 * other[1]
    assert torn["ideal_reuse_ratio"] < part["ideal_reuse_ratio"]


@given(parameters(), seeds, st.floats(0.2, 3.5))
@settings(max_examples=20)
def test_scaling_reaches_the_rate(tmp_path_factory, p, seed, factor) -> None:
    trace = small(p, seed)
    if trace is None or len(trace) < 3 or np.ptp(trace.column("arrival_s")) == 0:
        return
    scaled = scale_to_rate(trace, factor * trace_rate_rps(trace), seed)
    families = np.bincount(root_sessions(trace)[trace.column("session_id")])
    assert abs(len(scaled) - factor * len(trace)) <= families.max() / 2 + 1
    path = tmp_path_factory.mktemp("scaled") / "trace.parquet"
    write_trace(scaled, path)
    again = load_trace(path)
    assert again.report.repaired == again.report.dropped == 0
    np.testing.assert_array_equal(ideal_reuse(scaled), ideal_reuse(again))


def test_copies_share_the_common_prefix_and_nothing_else() -> None:
    # three sessions with prefix 1, 2 and own blocks; the second turn of each continues the first
    paths = [[1, 2, 10 * k + j] for k in (3, 4, 5) for j in (0, 1)]
    trace = trace_of(paths, sessions=[0, 0, 1, 1, 2, 2], arrival_s=[0.0, 1, 2, 3, 4, 5])
    assert common_prefix_blocks(trace).tolist() == [2] * 6
    twice = replicate(trace, 2, jitter_s=0.0)
    assert twice.sessions == 6
    assert twice.tree.distinct_blocks == 2 + 2 * 6
    # every request but the very first finds the prefix, own last blocks are never met again
    assert sorted(ideal_reuse(twice)) == [0] + [2 * trace.block_tokens] * 11
    assert replicate(trace, 1) is trace


@given(parameters(), seeds, st.integers(2, 4))
@settings(max_examples=15)
def test_copies_hold_what_the_trace_holds(p, seed, copies) -> None:
    trace = small(p, seed)
    if trace is None:
        return
    many = replicate(trace, copies, seed, jitter_s=20.0)
    assert len(many) == copies * len(trace)
    assert many.sessions == copies * trace.sessions
    for name in ("prompt_tokens", "output_tokens", "turn"):
        expected = np.sort(np.tile(trace.column(name), copies))
        np.testing.assert_array_equal(np.sort(many.column(name)), expected)
    common = int(common_prefix_blocks(trace).max(initial=0))
    assert many.tree.distinct_blocks <= copies * trace.tree.distinct_blocks
    if common == 0:
        assert many.tree.distinct_blocks == copies * trace.tree.distinct_blocks
        assert ideal_reuse(many).sum() == copies * ideal_reuse(trace).sum()


@given(parameters(), seeds, st.integers(2, 4))
@settings(max_examples=15)
def test_independent_copies_hold_what_the_trace_holds(p, seed, copies) -> None:
    trace = small(p, seed)
    if trace is None or np.ptp(trace.column("arrival_s")) == 0:
        return
    many = superpose_copies(trace, copies, seed)
    for name in ("prompt_tokens", "output_tokens", "turn"):
        expected = np.sort(np.tile(trace.column(name), copies))
        np.testing.assert_array_equal(np.sort(many.column(name)), expected)
    # the time is the trace's, and every turn of a session comes after the one before
    first, rate = trace.column("arrival_s").min(), trace_rate_rps(trace)
    arrival = many.column("arrival_s")
    assert (np.diff(arrival) >= 0).all()
    assert arrival[0] >= first - 1e-6
    assert arrival[-1] <= first + len(trace) / rate + 1e-6
    session, turn = many.column("session_id"), many.column("turn")
    for one in np.unique(session):
        assert (np.diff(turn[session == one]) >= 0).all()
    # a cut makes two sessions of one, and takes the reuse over it away
    assert copies * trace.sessions <= many.sessions
    shared = int(common_prefix_blocks(many).astype(int).sum()) * trace.block_tokens
    assert ideal_reuse(many).sum() <= copies * ideal_reuse(trace).sum() + shared


def test_independent_copies_are_cut_and_turned() -> None:
    # one session of two turns a second apart, and one later; 4 requests in 4 s (1 request/s)
    trace = trace_of(
        [[1], [1, 2], [3], [3, 4]], sessions=[0, 0, 1, 1], arrival_s=[10.0, 11.0, 12.0, 13.0]
    )
    twice = superpose_copies(trace, 2, seed=3)
    assert len(twice) == 8
    cut = round(float(np.random.default_rng([3, 2]).random()) * 4.0, 3)
    turned = 10.0 + np.sort((np.arange(4.0) - cut) % 4.0)
    expected = np.sort(np.concatenate((np.arange(10.0, 14.0), turned)))
    np.testing.assert_allclose(twice.column("arrival_s"), expected)
    assert superpose_copies(trace, 1) is trace


def test_independent_copies_do_not_burst_together() -> None:
    # ten requests in a hundredth of the time, a session each, and one at the end of it
    times = [*np.linspace(0.0, 9.0, 10), 1000.0]
    trace = trace_of([[k] for k in range(11)], sessions=list(range(11)), arrival_s=times)
    rate = 20 * trace_rate_rps(trace)

    def busiest(**how: bool) -> int:
        scaled = scale_to_rate(trace, rate, 1, **how)
        assert len(scaled) == 220
        bins = np.arange(0.0, 1200.0, 10.0)
        return int(np.histogram(scaled.column("arrival_s"), bins)[0].max())

    # in step the burst comes twenty times within the minute of the jitter, else spread over all
    assert busiest(in_step=True) > 30
    assert busiest() < 25


def test_superposed_traces_share_nothing() -> None:
    p = WorkloadParameters()
    parts = [generate(p, rate_rps=0.5, window_s=600.0, seed=seed) for seed in (1, 2)]
    both = superpose(parts)
    assert len(both) == sum(map(len, parts))
    assert both.sessions == sum(part.sessions for part in parts)
    assert ideal_reuse(both).sum() == sum(ideal_reuse(part).sum() for part in parts)
    assert (np.diff(both.column("arrival_s")) >= 0).all()
    assert sorted(fingerprints(both)) == sorted(fingerprints(parts[0]) + fingerprints(parts[1]))


def test_compacting_a_tree_changes_no_prefix() -> None:
    trace = generate(WorkloadParameters(), rate_rps=1.0, window_s=900.0)
    rows = np.flatnonzero(np.arange(len(trace)) % 3 == 0)
    taken = trace.tree.take(rows)
    small_tree = compact_tree(taken)
    assert small_tree.parent.size < taken.parent.size
    for one in range(0, rows.size, 7):
        ids = [t.block_ids(one).size for t in (taken, small_tree)]
        assert ids[0] == ids[1]
    # pairs share as many blocks as before
    for a, b in [(0, 1), (2, 9), (5, 40), (3, 4)]:
        shared = [np.intersect1d(t.block_ids(a), t.block_ids(b)).size for t in (taken, small_tree)]
        assert shared[0] == shared[1]


def test_wrong_values() -> None:
    trace = trace_of([[1], [1, 2]], sessions=[0, 0], arrival_s=[0.0, 1.0])
    for share in (0.0, 1.1, float("nan")):
        with pytest.raises(SpecError, match="share"):
            thin(trace, share)
    with pytest.raises(SpecError, match="rate_rps"):
        scale_to_rate(trace, 0.0)
    with pytest.raises(SpecError, match="copies"):
        replicate(trace, 0)
    with pytest.raises(SpecError, match="jitter_s"):
        replicate(trace, 2, jitter_s=-1.0)
    with pytest.raises(SpecError, match="at least 1"):
        superpose([])
    with pytest.raises(SpecError, match="block sizes"):
        superpose([trace, generate(WorkloadParameters(), window_s=60.0)])
    at_once = trace_of([[1], [2]], sessions=[0, 1], arrival_s=[0.0, 0.0])
    with pytest.raises(TraceError, match="there is no rate"):
        scale_to_rate(at_once, 1.0)
