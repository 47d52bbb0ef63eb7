"""Rows that count engine time and the pool beside it: shared out, they are never too much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import CASES, case, step_s

from smetric_model.bound.minorant import minorants
from smetric_model.bound.rows import Workload, fit_row, least_token_s

WEIGHTS = (0.0, 0.1, 0.35, 0.6, 1.0)


def _fitted(name: str, fixed_tokens: float):
    """Some rows of a model, fitted to shares of all sizes."""
    model, pool, budget, running = case(name)
    family = minorants(model, budget, running)
    rng = np.random.default_rng(7)
    share = np.clip(rng.lognormal(-3, 1.2, 500), 1e-4, 1.0)
    load = Workload(float(pool), fixed_tokens, share, rng.exponential(300, 500))
    few = family[:: max(1, len(family) // 4)]
    return model, pool, load, [fit_row(m, v, load) for m in few for v in WEIGHTS]


_CACHE = {(name, fixed): _fitted(name, fixed) for name in CASES for fixed in (0.0, 700.0)}


@st.composite
def batches(draw):
    """Shares that decoding, prefilling and other running requests hold; chunks; what is cached."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    decoding = int(rng.choice([0, 1, 2, 3, 7, 30, 256]))
    prefilling = int(rng.choice([0, 1, 3]))
    if decoding + prefilling == 0:
        decoding = 1
    spread = rng.choice([0.1, 1.0, 50.0])
    shares = rng.dirichlet(np.full(decoding + prefilling + 1, spread))  # the last one waits
    shares *= rng.choice([0.05, 0.6, 1.0])
    chunks = np.zeros(prefilling)
    if prefilling:
        total = int(rng.integers(prefilling, 8192 - decoding))
        chunks = 1.0 + rng.multinomial(total - prefilling, np.full(prefilling, 1 / prefilling))
    return shares[:decoding], shares[decoding:-1], float(shares[-1]), chunks


@pytest.mark.parametrize(("name", "fixed"), list(_CACHE))
@settings(max_examples=60)
@given(batch=batches(), seed=st.integers(0, 1000))
def test_never_above_engine_time_and_pool(name, fixed, batch, seed):
    decoding, prefilling, waiting, chunks = batch
    model, pool, _, rows = _CACHE[name, fixed]
    rng = np.random.default_rng(seed)
    more = rng.choice([1.0, 1.4])  # shared prefixes: contexts longer than what each holds
    contexts = np.maximum(decoding * pool - fixed, 1.0) * more
    cached = rng.integers(0, 100_000, chunks.size)
    pairs = chunks * (cached + 0.5 * chunks)
    exact = step_s(
        model,
        chunks.sum(),
        pairs.sum(),
        (chunks + cached).sum(),
        decoding.size,
        contexts.sum(),
        decoding.size,
    )
    used = decoding.sum() + prefilling.sum() + waiting
    for row in rows:
        v = row.pool_weight
        charged = row.prefill_s(chunks, pairs, prefilling).sum()
        charged += row.decode_s(np.ones(decoding.size), contexts, decoding).sum()
        assert charged <= (1 - v + v * used) * exact * (1 + 1e-9), row.label


@pytest.mark.parametrize(("name", "fixed"), list(_CACHE))
def test_concave_and_below_the_least_of_all_equal_batches(name, fixed):
    """Jensen's inequality needs both, between the points of the table too."""
    _, pool, load, rows = _CACHE[name, fixed]
    share = np.unique(np.concatenate((np.linspace(0, 1, 4001), 1.0 / np.arange(1, 300))))
    for row in rows:
        value = row.decode_s(np.ones(share.size), np.zeros(share.size), share)
        least = least_token_s(row.minorant, row.pool_weight, pool, load.fixed_tokens, share)
        assert (value <= least * (1 + 1e-9) + 1e-15).all(), row.label
        slope = np.diff(row.token_s) / np.diff(row.share)
        assert (np.diff(slope) <= 1e-9 * np.abs(slope).max()).all(), row.label
        assert (value >= 0).all()


@pytest.mark.parametrize("name", list(CASES))
def test_little_is_lost_by_sharing_out(name):
    """For sequences of one size the row says almost what the best batch of them takes."""
    model, pool, budget, running = case(name)
    family = minorants(model, budget, running)
    for share in (0.02, 0.1, 0.3):
        load = Workload(float(pool), 0.0, np.full(10, share), np.ones(10))
        for v in WEIGHTS[:-1]:
            least = [least_token_s(m, v, float(pool), 0.0, np.array([share]))[0] for m in family]
            row = fit_row(family[int(np.argmax(least))], v, load)
            assert row.decode_s(1.0, 0.0, share) > 0.85 * max(least)


def test_dearer_where_the_pool_counts():
    """A row of both charges more than engine time and pool, each at its own best batch."""
    model, pool, budget, running = case("moe")
    minorant = minorants(model, budget, running)[0]
    share = np.array([0.05, 0.1])
    engine = least_token_s(minorant, 0.0, pool, 0.0, share)
    held = least_token_s(minorant, 1.0, pool, 0.0, share)
    for v in (0.2, 0.5, 0.8):
        both = least_token_s(minorant, v, pool, 0.0, share)
        assert (both > (1 - v) * engine + v * held).all()
