from __future__ import annotations

import pytest
from trace_mutations import check


@pytest.mark.parametrize("block", range(10))
def test_mutated_files_load_right_or_say_what_is_wrong(tmp_path, block) -> None:
    """A sample of benchmarks/trace_fuzz.py, which runs 10,000."""
    outcomes = {check(seed, tmp_path) for seed in range(50 * block, 50 * block + 50)}
    assert any("loaded" in outcome for outcome in outcomes)
    assert any("TraceError" in outcome for outcome in outcomes)
