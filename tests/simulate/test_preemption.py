"""KV that grows with the output: one preemption worked out by hand, and laws."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_inputs import random_inputs
from single_instance import NOTHING, inputs_of
from test_engine import assert_equal

from smetric_model.scenario import Scenario
from smetric_model.simulate import engine, reference, simulate
from smetric_model.simulate.checks import replay_violations

MS = 10**9  # ticks
STEP = NOTHING._replace(gap_s=1e-3)  # every step takes a millisecond
both = pytest.mark.parametrize("run", [reference.run, engine.run])


def preempting(*arguments, **settings):
    inputs = inputs_of(*arguments, **settings)
    return dataclasses.replace(inputs, engine=inputs.engine._replace(preempt=1))


def checked(run, inputs):
    replay = run(inputs)
    assert replay_violations(inputs, replay) == []
    assert_equal(reference.run(inputs), engine.run(inputs, caches=True))
    return replay


@both
def test_two_requests_and_one_preemption(run):
    # Six blocks of 16: both start with two and take a third at 1 and 2 ms; the first wants a fourth
    # at 17 ms. The second gives way with 16 tokens made; at 40 ms the first is done, and 32 + 16
    # tokens are computed again by one step, which also makes the next token; 23 more follow.
    replay = checked(run, preempting([0.0, 0.0], 32, 40, STEP, pool_tokens=96))
    assert replay.preemptions.tolist() == [0, 1]
    assert replay.repeated_tokens.tolist() == [0, 48]
    assert replay.first_token.tolist() == [MS, 2 * MS]
    assert replay.done.tolist() == [40 * MS, 64 * MS]
    assert replay.generated_tokens.sum() == 80
    assert replay.computed_tokens.sum() == 64  # what is computed again counts once


@both
def test_what_is_still_cached_is_not_computed_again(run):
    # As above, with prompts that are cached: of the two blocks of the second, the first's fifth
    # block of KV (33 ms) evicts the last one.
    paths = [[1, 2], [3, 4]]
    replay = checked(run, preempting([0.0, 0.0], 32, 40, STEP, paths=paths, pool_tokens=96))
    assert replay.preemptions.tolist() == [0, 1]
    assert replay.repeated_tokens.tolist() == [0, 48 - 16]
    assert replay.local_tokens.tolist() == [0, 0]
    assert replay.done.tolist() == [40 * MS, 64 * MS]


@both
def test_reserved_kv_is_never_taken(run):
    replay = checked(run, inputs_of([0.0, 0.0], 32, 40, STEP, pool_tokens=96))
    assert replay.preemptions.tolist() == [0, 0]
    assert replay.admitted.tolist() == [0, 40 * MS]
    assert replay.done.tolist() == [40 * MS, 80 * MS]


@both
def test_whoever_comes_later_gives_way_and_all_are_served(run):
    # ten requests of which any two collide in the end: first come, first done
    inputs = preempting(np.arange(10) * 1e-3, 16, 70, STEP, pool_tokens=112)
    replay = checked(run, inputs)
    assert (replay.done >= 0).all()
    assert (np.diff(replay.done) > 0).all()
    assert replay.preemptions[0] == 0
    assert replay.preemptions.sum() > 5


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_a_pool_that_never_fills_makes_no_difference(seed):
    inputs = random_inputs(seed, unequal=False)
    if inputs.fabric.prefill_instances < inputs.fabric.instances:
        return
    replays = [
        engine.run(
            dataclasses.replace(
                inputs, engine=inputs.engine._replace(pool_tokens=10**7, preempt=preempt)
            )
        )
        for preempt in (0, 1)
    ]
    for name in ("done", "first_token", "instance", "local_tokens", "failed", "gave_up"):
        np.testing.assert_array_equal(*(getattr(replay, name) for replay in replays))
    assert not replays[1].preemptions.any()


def test_outcome_of_an_engine_that_preempts():
    asked = Scenario(
        workload={
            "preset": "bailian-trace-1-short",
            "rate_rps": 2.5,
            "window_s": 60.0,
            "warmup_s": 30.0,
        },
        cluster={"instances": 4},
        engine={"memory_utilisation": 0.7, "kv_admission": "preempt"},
    )
    outcome = simulate(asked, check=True)
    requests = outcome.requests
    assert outcome["preemptions"] == requests["preemptions"].sum() > 0
    assert outcome.number("repeated_tps") == pytest.approx(requests["repeated_tokens"].sum() / 60.0)
    reserving = simulate(asked.replace(**{"engine.kv_admission": "reserve"}))
    assert reserving["preemptions"] == reserving["repeated_tps"] == 0
