from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import block_paths, trace_of

from smetric_model.errors import TraceError
from smetric_model.workload.reference import prefixes
from smetric_model.workload.sessions import infer_sessions, session_table, turn_table


def naive_predecessors(paths, prompt):
    """The rule in words, for traces without a common prefix."""
    chained = prefixes(paths)
    result = []
    for row, path in enumerate(chained):
        best, length = -1, 0
        for earlier in range(row):
            core = chained[earlier][:-1]
            if len(core) > length and prompt[row] > prompt[earlier] and path[: len(core)] == core:
                best, length = earlier, len(core)
        result.append(best)
    return result


@given(block_paths(), st.data())
def test_inference_follows_its_rule(paths, data) -> None:
    prompt = [max(1, 4 * len(p) - data.draw(st.integers(0, 3))) if p else 2 for p in paths]
    inferred = infer_sessions(trace_of(paths, block_tokens=4, prompt_tokens=prompt))
    parent = inferred.trace.column("parent")
    assert parent.tolist() == naive_predecessors(paths, prompt)
    session = inferred.trace.column("session_id")
    assert all(session[row] == session[parent[row]] for row in np.flatnonzero(parent >= 0))
    assert inferred.limits["sessions"] == (parent < 0).sum() == inferred.trace.sessions


def test_a_shared_system_prompt_joins_nobody() -> None:
    paths = [[1, 2, 3, 100 * k, 100 * k + 1] for k in range(1, 41)]
    paths += [[*path, 7, 8] for path in paths]
    inferred = infer_sessions(trace_of(paths))
    assert inferred.trace.sessions == 40
    assert inferred.trace.column("turn").tolist() == [0] * 40 + [1] * 40
    # first turns that end within a block of the system prompt cannot continue each other
    inferred = infer_sessions(trace_of([[1, 2, 3, 100 * k] for k in range(1, 41)]))
    assert inferred.trace.sessions == 40
    assert inferred.limits["short_ratio"] == 1


def test_inference_on_a_trace_with_known_sessions() -> None:
    """Whole sessions that seldom rewrite their history: what is found, and how far off."""
    from smetric_model.workload.synthesis import WorkloadParameters, generate

    trace = generate(WorkloadParameters(), sessions=150, start="cold", ends="whole")
    inferred = infer_sessions(trace).trace
    truth, guess = trace.column("session_id"), inferred.column("session_id")
    pure = sum(np.unique(truth[guess == code]).size == 1 for code in range(inferred.sessions))
    assert pure / inferred.sessions > 0.99
    # compaction and deep rewinds start anew: more sessions, not fewer
    assert trace.sessions <= inferred.sessions < 1.5 * trace.sessions


def test_histories_and_triggers() -> None:
    paths = [
        [1, 2, 3],
        [1, 2, 3, 4],  # append
        [1, 2, 3, 9, 10],  # the last block may differ: append
        [1, 2, 7, 8, 11],  # rewritten
        [1, 2],  # reset
    ]
    table = turn_table(trace_of(paths, sessions=[0] * 5))
    assert table["history"].tolist() == ["first", "append", "append", "rewritten", "reset"]
    assert table["trigger"].tolist() == ["first", "unknown", "unknown", "unknown", "compaction"]
    np.testing.assert_allclose(table["kept_ratio"], [np.nan, 1, 3 / 4, 2 / 5, 2 / 5])
    np.testing.assert_allclose(table["growth_tokens"], [np.nan, 4, 4, 0, -12])
    np.testing.assert_allclose(table["gap_s"], [np.nan, 1, 1, 1, 1])


@given(block_paths(), st.data())
def test_sessions_add_up(paths, data) -> None:
    codes: dict[int, int] = {}
    sessions = [codes.setdefault(data.draw(st.integers(0, 3)), len(codes)) for _ in paths]
    trace = trace_of(paths, sessions=sessions)
    table = session_table(trace)
    assert table["turns"].sum() == len(trace)
    assert table["prompt_tokens"].sum() == trace.column("prompt_tokens").sum()
    assert (table["computed_tokens"] <= table["prompt_tokens"]).all()


def test_tables_need_sessions() -> None:
    with pytest.raises(TraceError, match="names no sessions"):
        turn_table(trace_of([[1]]))
    with pytest.raises(TraceError, match="names no sessions"):
        session_table(trace_of([[1]]))
