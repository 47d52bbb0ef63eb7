from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import block_paths, trace_of

from smetric_model.errors import SpecError
from smetric_model.workload.intervals import reuse_intervals, share_within, working_set
from smetric_model.workload.reference import prefixes
from smetric_model.workload.reuse import ideal_reuse


@given(block_paths(), st.lists(st.floats(0, 20), min_size=25, max_size=25))
def test_working_set_equals_counting_blocks(paths, gaps) -> None:
    arrival_s = np.cumsum(gaps[: len(paths)])
    trace = trace_of(paths, block_tokens=4, arrival_s=arrival_s)
    table = working_set(trace, window_s=30.0)
    window = ((arrival_s - arrival_s[0]) // 30.0).astype(int)
    chained = prefixes(paths)
    last_use = {block: row for row, path in enumerate(chained) for block in path}
    seen: set[int] = set()
    for index in range(len(table)):
        rows = np.flatnonzero(window == index)
        touched = {block for row in rows for block in chained[row]}
        # a path of no blocks stands for a prompt of one token outside any block
        bare = sum(not chained[row] for row in rows)
        assert table["touched_tokens"][index] == 4 * len(touched) + bare
        assert table["new_tokens"][index] == 4 * len(touched - seen) + bare
        seen |= touched
        live = {block for block in seen if window[last_use[block]] > index}
        assert table["live_tokens"][index] == 4 * len(live)
        # blocks seen by then that a later request touches, after each request of the window
        most = [
            len({b for path in chained[: row + 1] for b in path if last_use[b] > row})
            for row in rows
        ]
        at_start = table["live_tokens"][index - 1] if index else 0
        assert table["live_tokens_max"][index] == max(at_start, *(4 * n for n in most), 0)


@given(block_paths())
def test_intervals_cover_all_reuse(paths) -> None:
    trace = trace_of(paths)
    table = reuse_intervals(trace)
    assert table["tokens"].sum() == ideal_reuse(trace).sum()
    assert (table["start_to_start_s"] == table["request"] - table["toucher"]).all()


def test_share_within_is_weighted_and_leaves_out_the_unknown() -> None:
    shares = share_within([1.0, 5.0, np.nan], [3, 1, 100], [0.5, 1, 4.9, 5])
    np.testing.assert_allclose(shares, [0, 0.75, 0.75, 1])
    assert np.isnan(share_within([np.nan], [1], [1])).all()


@pytest.mark.parametrize("window_s", [0.0, -1.0, float("nan"), 1e-9])
def test_senseless_windows_are_refused(window_s) -> None:
    with pytest.raises(SpecError, match="window"):
        working_set(trace_of([[1], [2]], arrival_s=np.array([0.0, 1e3])), window_s)
