from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import block_paths, trace_of

from smetric_model.workload.reference import prefixes, reused_blocks
from smetric_model.workload.reuse import ideal_reuse, last_touches, reuse_table


@given(block_paths(), st.data())
def test_ideal_reuse_equals_the_block_by_block_reference(paths, data) -> None:
    """Exact to the token: a partly filled last block is clipped to the prompt."""
    prompt = [max(1, len(path) * 4 - data.draw(st.integers(0, 3))) if path else 3 for path in paths]
    trace = trace_of(paths, block_tokens=4, prompt_tokens=prompt)
    expected = [min(4 * hit, size) for hit, size in zip(reused_blocks(paths), prompt, strict=True)]
    assert ideal_reuse(trace).tolist() == expected


@given(block_paths())
def test_pieces_name_the_last_toucher_of_every_block(paths) -> None:
    touches = last_touches(trace_of(paths))
    last: dict[int, int] = {}
    for request, chained in enumerate(prefixes(paths)):
        lo, hi = touches.offsets[request : request + 2]
        named = np.concatenate(
            [
                np.full(touches.last_block[k] - touches.first_block[k], touches.toucher[k])
                for k in range(lo, hi)
            ]
            or [np.zeros(0)]
        )
        expected = [last[block] for block in chained if block in last]
        assert named.tolist() == expected
        # maximal pieces: neighbours have different touchers, and recency falls with depth
        assert (np.diff(touches.toucher[lo:hi]) < 0).all()
        last.update(dict.fromkeys(chained, request))


def test_arithmetic_of_hits() -> None:
    """cases: a gap ends the hit; partial blocks clip; a repeated prompt is reusable whole."""
    trace = trace_of([[1, 2, 3], [9, 2, 3]], block_tokens=16)
    assert ideal_reuse(trace).tolist() == [0, 0]
    trace = trace_of([[1, 2], [1, 2, 3]], block_tokens=16, prompt_tokens=[32, 40])
    assert ideal_reuse(trace).tolist() == [0, 32]
    blocks = list(range(2048))
    trace = trace_of([blocks, blocks], block_tokens=16)
    assert ideal_reuse(trace).tolist() == [0, 32_768]


def test_intervals_count_from_arrival_and_from_completion() -> None:
    trace = trace_of(
        [[1], [1, 2], [1, 2, 3]],
        arrival_s=np.array([0.0, 10.0, 11.0]),
        e2e_s=np.array([4.0, 5.0, np.nan]),
    )
    table = reuse_table(trace)
    assert table["last_toucher"].tolist() == [-1, 0, 1]
    np.testing.assert_array_equal(table["since_last_touch_s"], [np.nan, 10.0, 1.0])
    # the third arrives while the second is still being served
    np.testing.assert_array_equal(table["interval_s"], [np.nan, 6.0, 0.0])
    assert (table["reused_tokens"] + table["new_tokens"]).tolist() == [4, 8, 12]
