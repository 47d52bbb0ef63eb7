"""Hits are counted once, and only what an engine can use (cases from other tools' faults)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import random_inputs
from single_instance import NOTHING, inputs_of

from smetric_model.simulate import engine, reference
from smetric_model.simulate.checks import replay_violations
from smetric_model.simulate.reference_caches import Cache

STEP = NOTHING._replace(gap_s=1e-3)


def test_nothing_is_hit_behind_a_missing_block():
    cache = Cache(pool_tokens=100, block_tokens=16, unused=None)
    cache.cached = {2, 3}
    assert cache.hit([1, 2, 3]) == 0
    cache.cached = {1, 3}
    assert cache.hit([1, 2, 3]) == 1


@pytest.mark.parametrize("run", [reference.run, engine.run])
def test_a_partly_filled_block_is_not_reused(run):
    replay = run(inputs_of([0.0, 1.0], 40, 2, STEP, paths=[[1, 2, 3], [1, 2, 3]]))
    assert replay.local_tokens.tolist() == [0, 32]  # 0.8 of the second prompt


@pytest.mark.parametrize("run", [reference.run, engine.run])
def test_a_hit_counts_once_however_many_chunks(run):
    paths = [list(range(32)), list(range(62))]
    inputs = inputs_of([0.0, 1.0], [512, 1000], 1, STEP, paths=paths, token_budget=200)
    replay = run(inputs)
    assert replay.local_tokens.tolist() == [0, 512]
    assert replay.reused_tokens.sum() == 512
    assert replay.computed_tokens.sum() == 512 + 488
    # 488 tokens in chunks of 200: three steps of a millisecond
    assert replay.done[1] - replay.first_step[1] == 3 * 10**9


@pytest.mark.parametrize("run", [reference.run, engine.run])
def test_the_same_prompt_again_computes_its_last_block(run):
    path = list(range(2048))
    replay = run(inputs_of([0.0, 1.0], 32_768, 1, STEP, paths=[path, path]))
    assert replay.local_tokens.tolist() == [0, 32_752]


def test_random_prompts_hit_nothing_even_where_the_pool_is_tiny():
    paths = [[100 * k + block for block in range(8)] for k in range(200)]
    inputs = inputs_of(np.zeros(200), 128, 300, STEP, paths=paths, pool_tokens=1024)
    replay = engine.run(inputs)
    assert (replay.done >= 0).all()
    assert replay.local_tokens.sum() == 0
    assert replay.counts["evicted_blocks"] > 1000


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_laws_hold(seed):
    inputs = random_inputs(seed)
    assert replay_violations(inputs, engine.run(inputs, caches=True)) == []


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_hits_never_exceed_what_was_computed_before(seed):
    """Ideal reuse: blocks of prompts that were computed when the request was admitted."""
    inputs = random_inputs(seed)
    replay = engine.run(inputs)
    block = inputs.engine.cache_block_tokens
    lost = replay.failed
    prefilled = lost.reused_tokens + lost.computed_tokens
    first = np.concatenate(([0], np.cumsum(inputs.nodes.end - inputs.nodes.start)))

    def path(request):
        depth = inputs.nodes.blocks[request]
        return [
            first[node] + k
            for node in inputs.nodes.path(request)
            for k in range(min(inputs.nodes.end[node], depth) - inputs.nodes.start[node])
        ]

    for request in np.flatnonzero(replay.admitted >= 0):
        before = (replay.first_token >= 0) & (replay.first_token <= replay.admitted[request])
        known = {b for other in np.flatnonzero(before) for b in path(other)}
        for k in np.flatnonzero(lost.placed <= replay.admitted[request]):  # tries given up
            known.update(path(lost.request[k])[: prefilled[k] // block])
        own = path(request)
        ideal = next((k for k, b in enumerate(own) if b not in known), len(own)) * block
        assert replay.local_tokens[request] + replay.fetched_tokens[request] <= ideal


def test_a_larger_pool_never_hits_less_where_requests_come_one_by_one():
    random = np.random.default_rng(0)
    paths = []
    for _ in range(400):
        base = paths[random.integers(len(paths))] if paths and random.random() < 0.7 else []
        keep = base[: random.integers(len(base) + 1)]
        paths.append(keep + random.integers(10**6, 10**9, random.integers(1, 9)).tolist())
    prompt = [16 * len(path) + 1 for path in paths]
    hits = [
        engine.run(
            inputs_of(np.arange(len(paths)) * 10.0, prompt, 3, STEP, paths=paths, pool_tokens=pool)
        ).local_tokens
        for pool in (1024, 2048, 4096, 10**6)
    ]
    sums = [int(hit.sum()) for hit in hits]
    assert sums == sorted(sums)
    assert sums[0] < sums[-1]
