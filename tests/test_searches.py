"""Searches find the edge of what is good."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.searches import fewest, largest


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e3))
def test_largest_finds_a_limit_from_either_side(limit: float, start: float) -> None:
    found = largest(lambda value: value <= limit, start)
    reach = 2.0**12
    if start > limit * reach:
        assert found is None
    elif start * reach <= limit:
        assert found == math.inf
    elif found is not None and math.isfinite(found):
        assert found <= limit
        assert limit <= 1.011 * found
    else:
        # at the very ends of the search
        assert limit == pytest.approx(start * reach, rel=1.0) or limit == pytest.approx(
            start / reach, rel=1.0
        )


@given(st.integers(1, 5000), st.integers(1, 200))
def test_fewest_is_the_first_that_is_enough(limit: int, start: int) -> None:
    tried: list[int] = []

    def enough(count: int) -> bool:
        tried.append(count)
        return count >= limit

    assert fewest(enough, start) == limit
    assert len(tried) < 40


def test_fewest_gives_up_where_nothing_is_enough() -> None:
    assert fewest(lambda _n: False, 3, most=100) is None
    assert largest(lambda _v: False, 1.0) is None
    assert largest(lambda _v: True, 1.0) == math.inf
