from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import CASES, case, step_s

from smetric_model.bound.minorant import least_step_s, minorants


def _families(name: str, mixed: bool):
    model, pool, budget, running = case(name)
    return model, pool, minorants(model, budget, running, mixed=mixed)


_CACHE = {(name, mixed): _families(name, mixed) for name in CASES for mixed in (True, False)}


@st.composite
def steps(draw, mixed: bool = True):
    """Chunks (new, cached), contexts of the decoding sequences and their shares of the pool."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    batch = int(rng.choice([0, 1, 2, 5, 20, 256]))
    shares = rng.dirichlet(np.full(batch, rng.choice([0.1, 1.0, 50.0]))) if batch else np.zeros(0)
    shares = shares * rng.choice([0.05, 0.7, 1.0])
    if mixed or batch == 0:
        left = 8192 - batch
        total = int(rng.choice([0, 1, 17, 400, left, rng.integers(1, left)]))
    else:
        total = 0
    if batch == 0:
        total = max(total, 1)
    chunks = rng.multinomial(total, rng.dirichlet(np.ones(3))) if total else np.zeros(3, int)
    cached = rng.integers(0, 200_000, 3)
    return shares, chunks, cached, float(rng.choice([1.0, 1.3]))


def _exact(model, chunks, cached, contexts, sampled: int) -> tuple[float, float, float]:
    """Tokens and pairs of a step's prefill, and what the step takes."""
    used = chunks > 0
    tokens = float(chunks.sum())
    pairs = float((chunks * (cached + 0.5 * chunks))[used].sum())
    keys = float((chunks + cached)[used].sum())
    exact = step_s(model, tokens, pairs, keys, contexts.size, contexts.sum(), sampled)
    return tokens, pairs, exact


@pytest.mark.parametrize("name", list(CASES))
@settings(max_examples=150)
@given(step=steps())
def test_never_above_the_step_time(name, step):
    shares, chunks, cached, more = step
    model, pool, family = _CACHE[name, True]
    # a shared prefix lets contexts exceed what a sequence holds for itself
    contexts = np.floor(shares * pool * more)
    for sampled in (shares.size, shares.size + int((chunks > 0).sum())):
        tokens, pairs, exact = _exact(model, chunks, cached, contexts, sampled)
        for minorant in family:
            bound = minorant.step_s(tokens, pairs, contexts)
            assert bound <= exact * (1 + 1e-9), minorant.label


@pytest.mark.parametrize("name", list(CASES))
@settings(max_examples=60)
@given(step=steps(mixed=False))
def test_pools_that_only_prefill_or_only_decode(name, step):
    shares, chunks, cached, _ = step
    model, pool, family = _CACHE[name, False]
    contexts = np.floor(shares * pool)
    tokens, pairs, exact = _exact(model, chunks, cached, contexts, shares.size)
    for minorant in family:
        assert minorant.step_s(tokens, pairs, contexts) <= exact * (1 + 1e-9), minorant.label


@pytest.mark.parametrize("name", list(CASES))
def test_tight_where_the_pool_is_full_of_equal_sequences(name):
    """Some minorant says almost what a full decode batch, and a full chunk, really take."""
    model, pool, family = _CACHE[name, False]
    for batch in (1, 4, 16):
        contexts = np.full(batch, pool / batch)
        exact = step_s(model, 0, 0, 0, batch, contexts.sum(), batch)
        best = max(m.step_s(0, 0, contexts) for m in family)
        assert best > 0.85 * exact
    exact = step_s(model, 8192, 8192**2 / 2, 8192, 0, 0, 0)
    best = max(m.step_s(8192, 8192**2 / 2, []) for m in family)
    assert best > 0.95 * exact


@pytest.mark.parametrize("name", list(CASES))
@settings(max_examples=60)
@given(step=steps())
def test_least_step_of_a_decoding_sequence(name, step):
    shares, chunks, cached, _ = step
    if not shares.size:
        return
    model, pool, _ = _CACHE[name, True]
    least, key = least_step_s(model, 8192, 256)
    contexts = np.floor(shares * pool)
    used = chunks > 0
    exact = step_s(
        model,
        float(chunks.sum()),
        float((chunks * (cached + 0.5 * chunks))[used].sum()),
        float((chunks + cached)[used].sum()),
        shares.size,
        contexts.sum(),
        shares.size,
    )
    assert least + key * contexts.max() <= exact * (1 + 1e-9)
