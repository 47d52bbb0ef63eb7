from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import trace_of

from smetric_model.errors import SpecError, TraceError
from smetric_model.workload.balance import dispatch_balance, service_times
from smetric_model.workload.starts import root_sessions, with_poisson_starts


def naive(arrival, service, tokens, instances, window_s):
    """Recount the load of every instance at each arrival; integrate by brute force."""
    placed = []
    turn = 0
    for now in arrival:
        load = [0] * instances
        for earlier, chosen in enumerate(placed):
            if arrival[earlier] + service[earlier] > now:
                load[chosen] += tokens[earlier]
        order = [(turn + step) % instances for step in range(instances)]
        chosen = min(order, key=lambda i: load[i])
        placed.append(chosen)
        turn = chosen + 1
    windows = int((arrival[-1] - arrival[0]) // window_s) + 1
    processed = np.zeros((windows, instances))
    inflight = np.zeros((windows, instances))
    for row, chosen in enumerate(placed):
        start = arrival[row] - arrival[0]
        processed[int(start // window_s), chosen] += tokens[row]
        for index in range(windows):
            low, high = index * window_s, (index + 1) * window_s
            overlap = max(0.0, min(high, start + service[row]) - max(low, start))
            inflight[index, chosen] += overlap * tokens[row]
    return processed, inflight


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 90), st.integers(1, 5)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_dispatch_equals_a_naive_simulation(rows, instances) -> None:
    arrival = np.cumsum([gap for gap, _, _ in rows]).astype(float)
    service = np.array([time for _, time, _ in rows], dtype=float)
    prompt = [size for _, _, size in rows]
    trace = trace_of([[]] * len(rows), prompt_tokens=prompt, arrival_s=arrival)
    table = dispatch_balance(trace, instances, window_s=60.0, service_s=service)
    processed, inflight = naive(arrival, service, [size + 1 for size in prompt], instances, 60.0)
    for name, load in (("processed", processed), ("inflight", inflight)):
        with np.errstate(invalid="ignore"):
            expected = load.max(axis=1) / load.mean(axis=1)
        np.testing.assert_allclose(table[f"imbalance_{name}_tokens"], expected)
    assert table["requests"].sum() == len(rows)


def test_service_times_are_recorded_or_stated() -> None:
    trace = trace_of([[1, 2], [1, 2, 3]], block_tokens=100, e2e_s=np.array([5.0, np.nan]))
    times, recorded = service_times(trace, seconds_per_new_token=0.01, seconds_per_output_token=2.0)
    assert times.tolist() == [5.0, 0.01 * 100 + 2.0]
    assert recorded == 0.5
    with pytest.raises(SpecError, match="seconds_per_new_token is -1"):
        service_times(trace, seconds_per_new_token=-1)


def test_wrong_values_are_refused() -> None:
    trace = trace_of([[1], [2]])
    with pytest.raises(SpecError, match="instances is 0"):
        dispatch_balance(trace, 0)
    with pytest.raises(SpecError, match="service_s"):
        dispatch_balance(trace, 1, service_s=[1.0, -1.0])
    far = trace_of([[1], [2]], arrival_s=np.array([0.0, 1e15]))
    with pytest.raises(SpecError, match="windows"):
        dispatch_balance(far, 1)


def _per_session_trace():
    from dataclasses import replace

    trace = trace_of(
        [[1], [2], [1, 3], [2, 4], [5]],
        sessions=[0, 1, 0, 1, 2],
        arrival_s=np.array([0.0, 0.0, 10.0, 12.0, 14.0]),
    )
    parent = trace.requests["parent"].to_numpy().copy()
    parent[4] = 3  # session 2 was spawned by session 1
    return replace(
        trace, requests=trace.requests.assign(parent=parent), session_clock="per-session"
    )


def test_poisson_starts_move_sessions_as_a_whole() -> None:
    trace = _per_session_trace()
    with pytest.raises(TraceError, match="starts at its own 0"):
        dispatch_balance(trace, 1)
    assert root_sessions(trace).tolist() == [0, 1, 1]
    moved = with_poisson_starts(trace, 0.1, seed=3)
    again = with_poisson_starts(trace, 0.1, seed=3)
    assert moved.requests.equals(again.requests)
    assert moved.session_clock == "shared"
    assert (np.diff(moved.column("arrival_s")) >= 0).all()
    # tree, parents and gaps go along
    keys = {tuple(moved.tree.block_ids(row)) for row in range(5)}
    assert keys == {tuple(trace.tree.block_ids(row)) for row in range(5)}
    spans = sorted(
        np.ptp(moved.column("arrival_s")[np.isin(moved.column("session_id"), codes)]).round(9)
        for codes in _families(moved)
    )
    assert spans == [10.0, 14.0]
    with pytest.raises(SpecError, match="session_rate_rps is 0"):
        with_poisson_starts(trace, 0)


def _families(trace):
    roots = root_sessions(trace)
    return [np.flatnonzero(roots == root) for root in np.unique(roots)]


def test_poisson_rate() -> None:
    count = 4000
    trace = trace_of([[]] * count, sessions=range(count), arrival_s=np.zeros(count))
    moved = with_poisson_starts(trace, 2.0, seed=0)
    gaps = np.diff(moved.column("arrival_s"))
    assert gaps.mean() == pytest.approx(0.5, rel=0.05)
    assert gaps.std() == pytest.approx(0.5, rel=0.08)
