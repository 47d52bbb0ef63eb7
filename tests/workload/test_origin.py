from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import block_paths, trace_of

from smetric_model.errors import TraceError
from smetric_model.workload.origin import common_prefix_blocks, origin_shares, reuse_origin
from smetric_model.workload.reference import prefixes
from smetric_model.workload.reuse import ideal_reuse


def numbered(sessions):
    """Session codes by first arrival, as a loaded trace has them."""
    codes: dict[int, int] = {}
    return [codes.setdefault(session, len(codes)) for session in sessions]


def naive_common(paths, sessions, threshold):
    seen, count = set(), {}
    chained = prefixes(paths)
    for path, session in zip(chained, sessions, strict=True):
        if session not in seen:
            seen.add(session)
            for block in path:
                count[block] = count.get(block, 0) + 1
    return [sum(count.get(block, 0) >= threshold for block in path) for path in chained]


@given(block_paths(), st.data())
def test_origin_equals_a_block_by_block_reference(paths, data) -> None:
    sessions = numbered([data.draw(st.integers(0, 4)) for _ in paths])
    ratio = data.draw(st.sampled_from([0.0, 0.3, 0.6]))
    least = data.draw(st.integers(1, 3))
    prompt = [max(1, 4 * len(p) - data.draw(st.integers(0, 3))) if p else 2 for p in paths]
    trace = trace_of(paths, block_tokens=4, prompt_tokens=prompt, sessions=sessions)
    options = {"common_session_ratio": ratio, "common_sessions": least}
    threshold = max(least, math.ceil(ratio * len(set(sessions))))
    common = naive_common(paths, sessions, threshold)
    assert common_prefix_blocks(trace, **options).tolist() == common

    producer: dict[int, int] = {}
    toucher: dict[int, int] = {}
    expected = []
    for row, path in enumerate(prefixes(paths)):
        tokens = dict.fromkeys(
            ["intra", "system", "other", "intra_last", "system_last", "other_last"], 0
        )
        for depth, block in enumerate(path):
            if block not in producer:
                break
            size = min(4 * (depth + 1), prompt[row]) - 4 * depth
            for holder, suffix in ((producer, ""), (toucher, "_last")):
                if holder[block] == sessions[row]:
                    kind = "intra"
                else:
                    kind = "system" if depth < common[row] else "other"
                tokens[kind + suffix] += size
        for block in path:
            producer.setdefault(block, sessions[row])
            toucher[block] = sessions[row]
        expected.append(list(tokens.values()))
    assert reuse_origin(trace, **options).to_numpy().tolist() == expected


@given(block_paths(), st.data())
def test_parts_sum_to_the_whole(paths, data) -> None:
    sessions = numbered([data.draw(st.integers(0, 4)) for _ in paths])
    trace = trace_of(paths, sessions=sessions)
    origin = reuse_origin(trace)
    reused = ideal_reuse(trace)
    assert (origin.iloc[:, :3].sum(axis=1) == reused).all()
    assert (origin.iloc[:, 3:].sum(axis=1) == reused).all()
    shares = origin_shares(origin, int(trace.column("prompt_tokens").sum()))
    if reused.sum():
        assert shares["reuse_ratio"].sum() == pytest.approx(1)
        assert shares["last_toucher_reuse_ratio"].sum() == pytest.approx(1)
    else:
        assert shares["reuse_ratio"].isna().all()


def test_a_system_prompt_is_told_from_a_fork() -> None:
    """Five sessions begin with blocks 1 2; two of them share two more."""
    paths = [[1, 2, 10], [1, 2, 20], [1, 2, 30], [1, 2, 40, 41], [1, 2, 40, 41, 50]]
    trace = trace_of(paths, block_tokens=1, sessions=range(5))
    origin = reuse_origin(trace)
    assert origin["system_tokens"].tolist() == [0, 2, 2, 2, 2]
    assert origin["other_tokens"].tolist() == [0, 0, 0, 0, 2]


def test_origin_needs_sessions() -> None:
    with pytest.raises(TraceError, match="names no sessions"):
        reuse_origin(trace_of([[1], [1]]))
    np.testing.assert_array_equal(
        common_prefix_blocks(trace_of([[1], [1]], sessions=[0, 1]), common_sessions=2), [1, 1]
    )
