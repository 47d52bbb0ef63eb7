from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_strategies import block_paths, trace_of

from smetric_model.errors import TraceError
from smetric_model.workload.curves import hit_curve, lru_curve, optimal_hit_tokens
from smetric_model.workload.reference import lru_hits, most_hits, optimal_hits
from smetric_model.workload.reuse import ideal_reuse


def clipped(paths, data):
    return [max(1, len(p) * 4 - data.draw(st.integers(0, 3))) if p else 2 for p in paths]


@given(block_paths(), st.data())
def test_lru_curve_equals_a_naive_lru_at_every_size(paths, data) -> None:
    prompt = clipped(paths, data)
    trace = trace_of(paths, block_tokens=4, prompt_tokens=prompt)
    curve = lru_curve(trace)
    largest = trace.tree.distinct_blocks + 2
    for blocks in {0, 1, 2, largest, *data.draw(st.lists(st.integers(1, largest), max_size=5))}:
        hits = lru_hits(paths, blocks)
        expected = sum(min(4 * hit, size) for hit, size in zip(hits, prompt, strict=True))
        assert curve.hit_tokens(4 * blocks) == pytest.approx(expected)
        assert curve.hit_tokens(4 * blocks + 3) == pytest.approx(expected)


@given(block_paths(), st.data())
def test_optimum_equals_naive_belady(paths, data) -> None:
    trace = trace_of(paths, block_tokens=4)
    blocks = data.draw(st.integers(0, trace.tree.distinct_blocks + 1))
    expected = [4 * hit for hit in optimal_hits(paths, blocks)]
    assert optimal_hit_tokens(trace, 4 * blocks).tolist() == expected


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=2, max_size=5),
    st.integers(1, 3),
)
def test_nothing_beats_the_optimum(paths, blocks) -> None:
    trace = trace_of(paths, block_tokens=1)
    assert optimal_hit_tokens(trace, blocks).sum() == most_hits(paths, blocks)


@given(block_paths(), st.data())
def test_laws_of_the_curves(paths, data) -> None:
    """Never falling with size, LRU below the optimum, both ending at ideal reuse."""
    trace = trace_of(paths, block_tokens=4, prompt_tokens=clipped(paths, data))
    sizes = 4 * np.arange(trace.tree.distinct_blocks + 2)
    table = hit_curve(trace, sizes)
    lru, optimum = table["lru_hit_ratio"].to_numpy(), table["optimal_hit_ratio"].to_numpy()
    assert (np.diff(lru) > -1e-12).all()
    assert (np.diff(optimum) > -1e-12).all()
    full = ideal_reuse(trace).sum() / trace.column("prompt_tokens").sum()
    assert lru[-1] == pytest.approx(full)
    assert optimum[-1] == pytest.approx(full)
    assert lru[0] == optimum[0] == 0


@given(block_paths())
def test_lru_never_beats_the_optimum(paths) -> None:
    trace = trace_of(paths)
    table = hit_curve(trace, 4 * np.arange(trace.tree.distinct_blocks + 2))
    assert (table["lru_hit_ratio"] <= table["optimal_hit_ratio"] + 1e-12).all()


def test_a_trace_without_blocks_has_no_curve() -> None:
    from dataclasses import replace

    trace = replace(trace_of([[1]]), tree=None)
    with pytest.raises(TraceError, match="no block ids"):
        lru_curve(trace)
