"""What the tiers evict first: by hand, and by the laws of the clairvoyant rule."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single_instance import NOTHING, inputs_of

from smetric_model.simulate import engine, reference
from smetric_model.simulate.inputs import CLAIRVOYANT, DEAD_FIRST, LRU, Tiers
from smetric_model.workload.curves import optimal_hit_tokens
from smetric_model.workload.prefix_tree import PrefixTreeBuilder
from smetric_model.workload.trace import LoadReport, Trace

STEP = NOTHING._replace(gap_s=1e-3)


def with_sessions(inputs, session):
    """The same requests as turns of sessions, open loop."""
    last, n = {}, len(session)
    previous, following = np.full(n, -1), np.full(n, -1)
    for row, name in enumerate(session):
        if name in last:
            previous[row], following[last[name]] = last[name], row
        last[name] = row
    requests = inputs.requests._replace(previous=previous, following=following)
    return dataclasses.replace(inputs, requests=requests)


def two_blocks_each(sessions, pool_blocks, tiers, global_blocks=0):
    """Requests a second apart, with two blocks of their session and a token more each."""
    paths = [[2 * s, 2 * s + 1] for s in sessions]
    inputs = inputs_of(
        np.arange(len(sessions)), 33, 1, STEP, paths=paths, pool_tokens=16 * pool_blocks
    )
    fabric = inputs.fabric._replace(global_blocks=global_blocks, recompute_if_faster=0)
    return dataclasses.replace(with_sessions(inputs, sessions), tiers=tiers, fabric=fabric)


@pytest.mark.parametrize("run", [reference.run, engine.run])
@pytest.mark.parametrize(
    ("eviction", "sessions", "last_hits"),
    [
        # the pool holds two sessions and the tail of none: the third request evicts a block
        (LRU, [0, 1, 2, 0], [16]),
        (DEAD_FIRST, [0, 1, 2, 0], [32]),  # session 1 is over
        (CLAIRVOYANT, [0, 1, 2, 0], [32]),
        (LRU, [0, 1, 2, 0, 1], [16]),
        (DEAD_FIRST, [0, 1, 2, 0, 1], [16]),  # 0 and 1 go on: the oldest
        (CLAIRVOYANT, [0, 1, 2, 0, 1], [32]),  # 1 comes later than 0
    ],
)
def test_local_tier_by_hand(run, eviction, sessions, last_hits):
    replay = run(two_blocks_each(sessions, 6, Tiers(local_eviction=eviction)))
    assert replay.local_tokens[:4].tolist() == [0, 0, 0, *last_hits]


@pytest.mark.parametrize("run", [reference.run, engine.run])
@pytest.mark.parametrize(
    ("eviction", "sessions", "fetched"),
    [
        # the pool runs one request and keeps nothing else; the global tier holds two sessions
        (LRU, [0, 1, 2, 0], [0, 0, 0, 0]),
        (DEAD_FIRST, [0, 1, 2, 0], [0, 0, 0, 32]),
        (CLAIRVOYANT, [0, 1, 2, 0], [0, 0, 0, 32]),
        (LRU, [0, 1, 2, 0, 1], [0, 0, 0, 0, 0]),
        (DEAD_FIRST, [0, 1, 2, 0, 1], [0, 0, 0, 0, 32]),  # 0 went for 2, then 2 for 0
        (CLAIRVOYANT, [0, 1, 2, 0, 1], [0, 0, 0, 32, 32]),  # 2 is not written at all
    ],
)
def test_global_tier_by_hand(run, eviction, sessions, fetched):
    replay = run(two_blocks_each(sessions, 3, Tiers(global_eviction=eviction), global_blocks=4))
    assert replay.fetched_tokens.tolist() == fetched
    if eviction == CLAIRVOYANT:
        assert replay.counts["global_written_blocks"] == 4


@pytest.mark.parametrize("run", [reference.run, engine.run])
def test_a_block_of_a_finished_session_that_is_used_again_is_alive(run):
    """Demoted blocks return to the line of the living when another session uses them."""
    # 1 is over; 3 uses its blocks and goes on; 2 is over: then 4 evicts a block of 2
    sessions, prefix = [0, 1, 3, 2, 4, 3, 0], [0, 1, 1, 2, 4, 1, 0]
    inputs = inputs_of(
        np.arange(7), 33, 1, STEP, paths=[[2 * s, 2 * s + 1] for s in prefix], pool_tokens=16 * 8
    )
    inputs = dataclasses.replace(
        with_sessions(inputs, sessions), tiers=Tiers(local_eviction=DEAD_FIRST)
    )
    assert run(inputs).local_tokens.tolist() == [0, 0, 32, 0, 0, 32, 32]


def one_by_one(seed, single):
    """Requests for paths of blocks, each long done when the next arrives."""
    random = np.random.default_rng(seed)
    paths = []
    for _ in range(80):
        if single:
            paths.append([int(random.integers(12))])
            continue
        base = paths[random.integers(len(paths))] if paths and random.random() < 0.8 else []
        keep = base[: random.integers(len(base) + 1)]
        paths.append(keep + random.integers(10**6, 10**9, random.integers(0, 3)).tolist())
    pool = 16 * (1 + max(len(path) for path in paths) + int(random.integers(0, 12)))
    prompt = [16 * len(path) + 1 for path in paths]
    return paths, inputs_of(np.arange(len(paths)), prompt, 1, STEP, paths=paths, pool_tokens=pool)


def hits(inputs, eviction):
    replay = engine.run(dataclasses.replace(inputs, tiers=Tiers(local_eviction=eviction)))
    return int(replay.local_tokens.sum()) // 16


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=60)
def test_clairvoyant_never_misses_more(seed, single):
    _, inputs = one_by_one(seed, single)
    best = hits(inputs, CLAIRVOYANT)
    assert best >= hits(inputs, LRU)
    assert best >= hits(inputs, DEAD_FIRST)


def trace_of(paths):
    builder = PrefixTreeBuilder()
    root = builder.root(None)
    for path in paths:
        builder.add_ids([root], np.array(path, dtype=np.int64), [0, len(path)])
    rows = np.arange(len(paths))
    lengths = np.array([16 * len(path) for path in paths])
    table = pd.DataFrame(
        {
            "request_id": rows,
            "session_id": rows,
            "turn": 0,
            "parent": -1,
            "arrival_s": rows.astype(float),
            "prompt_tokens": lengths,
            "output_tokens": 1,
            "think_time_s": np.nan,
            "e2e_s": np.nan,
            "trigger": pd.Categorical([None] * rows.size, categories=[]),
            "model": pd.Categorical([None] * rows.size, categories=[]),
            "source_line": -1,
        }
    )
    return Trace(table, builder.build(), 16, "shared", LoadReport(), "paths", "test")


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=60)
def test_clairvoyant_lies_at_the_offline_optimum(seed, single):
    """A running request needs room for itself, which the optimum with bypass does not charge."""
    paths, inputs = one_by_one(seed, single)
    pool = inputs.engine.pool_tokens // 16
    longest = 1 + max(len(path) for path in paths)
    trace = trace_of(paths)
    found = hits(inputs, CLAIRVOYANT)
    assert found <= optimal_hit_tokens(trace, 16 * pool).sum() // 16
    assert found >= optimal_hit_tokens(trace, 16 * (pool - longest)).sum() // 16
    everything = 16 * sum(len(path) for path in paths)
    roomy = dataclasses.replace(inputs, engine=inputs.engine._replace(pool_tokens=everything + 32))
    assert hits(roomy, CLAIRVOYANT) == optimal_hit_tokens(trace, everything).sum() // 16


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_clairvoyant_is_beladys_rule_on_single_blocks(seed):
    paths, inputs = one_by_one(seed, single=True)
    objects = [path[0] for path in paths]
    most = inputs.engine.pool_tokens // 16 - 1  # the last token of the prompt has a block
    cached, expected = set(), 0
    for row, name in enumerate(objects):
        expected += name in cached
        cached.add(name)
        if len(cached) > most:
            future = objects[row + 1 :]
            later = {o: future.index(o) if o in future else 10**9 for o in cached}
            cached.remove(max(cached - {name}, key=later.__getitem__))
    assert hits(inputs, CLAIRVOYANT) == expected
