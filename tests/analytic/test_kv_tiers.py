from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic.kv_tiers import ReuseProfile


def some_profile(seed, requests=40):
    random = np.random.default_rng(seed)
    pieces = random.integers(0, 4, requests)
    request = np.repeat(np.arange(requests), pieces)
    gap = random.lognormal(3.0, 1.5, request.size)
    # deeper pieces were never touched later
    for r in range(requests):
        gap[request == r] = np.sort(gap[request == r])
    return ReuseProfile(
        tokens=random.integers(1, 20_000, request.size).astype(float),
        gap_s=gap,
        request=request,
        requests=requests,
        new_tokens=float(random.integers(1, 3000)),
    )


SEEDS = st.integers(0, 10_000)


@given(seed=SEEDS, capacity=st.floats(1.0, 1e9), rate=st.floats(1e-3, 100.0))
def test_retention_inverts_content(seed, capacity, rate):
    profile = some_profile(seed)
    retention = profile.retention_s(capacity, rate)
    assert retention > 0
    assert rate * profile.resident_token_s(retention) == pytest.approx(capacity, rel=1e-6)
    # and content the retention
    content = rate * profile.resident_token_s(7.5)
    assert profile.retention_s(content, rate) == pytest.approx(7.5, rel=1e-6)


@given(seed=SEEDS)
def test_content_and_hits_grow_with_retention(seed):
    profile = some_profile(seed)
    ages = np.concatenate(([0.0], np.geomspace(0.1, 1e4, 40)))
    content = profile.resident_token_s(ages)
    assert content[0] == 0
    assert (np.diff(content) > 0).all()
    hits = np.array([profile.hit_ratio(age) for age in ages])
    assert (np.diff(hits) >= 0).all()
    assert ((hits >= 0) & (hits <= 1)).all()
    if profile.tokens.size:
        assert profile.hit_ratio(np.inf) == pytest.approx(1.0)
        each = profile.hit_tokens(50.0)
        assert each.sum() == pytest.approx(profile.hit_ratio(50.0) * profile.tokens.sum())
        for ratio in (0.2, 0.9, 1.0):
            age = profile.retention_for(ratio)
            assert profile.hit_ratio(age) >= ratio * (1 - 1e-9)
            assert profile.hit_ratio(age * (1 - 1e-9)) < ratio


@given(seed=SEEDS, rate=st.floats(0.01, 10.0))
def test_a_larger_store_or_a_lower_rate_keeps_longer(seed, rate):
    profile = some_profile(seed)
    kept = [profile.retention_s(capacity, rate) for capacity in (1e3, 1e5, 1e7)]
    assert kept == sorted(kept)
    assert profile.retention_s(1e5, 0.5 * rate) >= kept[1]
    assert profile.retention_s(0.0, rate) == 0.0
    assert profile.retention_s(1e5, 0.0) == np.inf


def test_store_that_forgets_nothing_for_a_workload_that_adds_nothing():
    profile = ReuseProfile(np.array([10.0]), np.array([5.0]), np.array([0]), 1, 0.0)
    assert profile.retention_s(1e6, 1.0) == np.inf


def test_without_reuse():
    empty = np.empty(0)
    profile = ReuseProfile(empty, empty, np.empty(0, np.int64), 5, 100.0)
    assert profile.retention_s(1000.0, 2.0) == pytest.approx(5.0)
    assert profile.hit_ratio(10.0) == 0.0
    assert profile.retention_for(0.9) == 0.0
    assert profile.hit_tokens(1.0) == pytest.approx(np.zeros(5))


def sessions(seed, span_s, rate_rps):
    """Turns of growing sessions: (time, session, blocks reused, blocks of the prompt)."""
    random = np.random.default_rng(seed)
    turns = []
    for start in np.cumsum(random.exponential(1 / rate_rps, int(span_s * rate_rps))):
        length, clock = 0, start
        session = len(turns)
        for _ in range(random.geometric(0.12)):
            added = int(random.integers(2, 20))
            turns.append((clock, session, length, length + added))
            length += added
            clock += random.lognormal(3.0, 1.0)
    return sorted(turns)


def lru(turns, capacity, seen_from):
    """Naive LRU over blocks; a hit ends at the first block that is missing.  Returns hit ratio."""
    store = OrderedDict()
    hit = reusable = 0
    for clock, session, old, new in turns:
        kept = 0
        while kept < old and (session, kept) in store:
            kept += 1
        if clock >= seen_from:
            hit += kept
            reusable += old
        # the tail leaves first: touch from the end
        for block in range(new - 1, -1, -1):
            store[session, block] = None
            store.move_to_end((session, block))
        while len(store) > capacity:
            store.popitem(last=False)
    return hit / reusable


@pytest.mark.parametrize("capacity", [900, 2000, 4000])
def test_characteristic_time_against_lru(capacity):
    turns = sessions(4, 1500.0, 0.5)
    seen_from, until = 400.0, 1400.0
    seen = [(c, s, o, n) for c, s, o, n in turns if seen_from <= c < until]
    last = {}
    gaps = {}
    for clock, session, old, _ in turns:
        gaps[clock, session, old] = clock - last.get(session, -np.inf)
        last[session] = clock
    reused = [(i, turn) for i, turn in enumerate(seen) if turn[2] > 0]
    profile = ReuseProfile(
        tokens=np.array([float(turn[2]) for _, turn in reused]),
        gap_s=np.array([gaps[turn[:3]] for _, turn in reused]),
        request=np.array([i for i, _ in reused]),
        requests=len(seen),
        new_tokens=float(np.mean([new - old for _, _, old, new in seen])),
    )
    rate = len(seen) / (until - seen_from)
    retention = profile.retention_s(capacity, rate)
    simulated = lru([t for t in turns if t[0] < until], capacity, seen_from)
    assert 0.02 < simulated < 0.999
    assert profile.hit_ratio(retention) == pytest.approx(simulated, abs=0.04)
