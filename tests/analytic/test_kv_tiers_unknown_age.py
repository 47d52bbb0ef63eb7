"""Reuse of unknown age (sessions that share no clock): kept by no finite retention time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic.kv_tiers import ReuseProfile

ages = st.lists(st.one_of(st.floats(0, 1e4), st.just(float("inf"))), min_size=1, max_size=20)


@given(ages, st.floats(0.1, 1e4), st.integers(0, 100))
def test_unknown_ages_count_as_never_seen_again(gaps: list[float], tau: float, zero: int) -> None:
    gap = np.array(gaps)
    tokens = np.arange(1.0, gap.size + 1)
    tokens[zero % gap.size] = 0.0  # a capped prompt reuses nothing of a piece
    profile = ReuseProfile(tokens, gap, np.arange(gap.size), gap.size, 3.0)
    expected = (tokens * np.minimum(gap, tau)).sum() / gap.size + 3.0 * tau
    assert np.isclose(profile.resident_token_s(tau), expected)
    assert profile.resident_token_s(np.inf) == np.inf
    # and back: the store of that size keeps that long
    assert np.isclose(profile.retention_s(7.0 * expected, 7.0), tau, rtol=1e-6)
