from __future__ import annotations

import pytest
from tiny import best_placement, tiny_scenario


@pytest.mark.parametrize("seed", range(4))
def test_no_placement_beats_the_bound(seed):
    """All 32 placements of five requests on two instances, each simulated."""
    scenario, trace = tiny_scenario(seed)
    best, bound, offered, placements = best_placement(scenario, trace)
    assert placements == 32
    assert best <= bound * (1 + 1e-9)
    assert bound <= offered * (1 + 1e-9)
