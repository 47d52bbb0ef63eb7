"""Set-ups with known answers: M/D/1, M/M/c, M/G/1 with processor sharing."""

from __future__ import annotations

import numpy as np
import pytest
from single_instance import NOTHING, inputs_of, mean_and_error

from smetric_model.analytic._step_kernels import prefill_time_s as compiled_prefill_time_s
from smetric_model.analytic.latency import prefill_time_s
from smetric_model.analytic.queueing import erlang_c
from smetric_model.simulate import engine

SECOND = 1e12


def poisson(rate_rps, count, seed):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_rps, count))


def seconds(replay, later, earlier):
    return (getattr(replay, later) - getattr(replay, earlier)) / SECOND


def assert_within(values, expected):
    """Three standard errors (batch means); the seed is fixed, so this holds or does not."""
    mean, error = mean_and_error(values)
    assert error < 0.05 * expected
    assert abs(mean - expected) < 3 * error


def test_prompts_one_by_one_are_m_d_1():
    # the budget is one prompt, so a step serves one: 4,096 tokens at 100 µs each
    model = NOTHING._replace(linear_token_s=1e-4)
    service_s, load = 0.4096, 0.7
    arrival = poisson(load / service_s, 200_000, 1)
    replay = engine.run(inputs_of(arrival, 4096, 1, model, token_budget=4096))
    np.testing.assert_allclose(seconds(replay, "done", "first_step"), service_s, rtol=1e-12)
    wait = seconds(replay, "first_step", "arrival")
    assert_within(wait, load * service_s / (2 * (1 - load)))  # Pollaczek and Khinchine
    assert_within(wait > 0, load)


def test_places_in_the_batch_are_m_m_c():
    # every step takes a millisecond, whatever it does; outputs are geometric, 1,000 on average
    step_s, places, rate = 1e-3, 10, 8.0
    random = np.random.default_rng(2)
    output = random.geometric(1e-3, 400_000)
    replay = engine.run(
        inputs_of(
            poisson(rate, output.size, 3),
            1,
            output,
            NOTHING._replace(gap_s=step_s),
            max_running_requests=places,
        )
    )
    # a step under way is waited for also where a place is free: half a step on average
    wait = seconds(replay, "first_step", "arrival")
    queued = wait > step_s
    blocked, mean_wait = 0.409180, 0.204590
    assert abs(erlang_c(places, rate) - blocked) < 1e-6
    mean, error = mean_and_error(queued)
    assert abs(mean - blocked) < 3 * error + step_s * rate
    mean, error = mean_and_error(wait)
    assert abs(mean - mean_wait) < 3 * error + step_s


def test_decoding_together_is_processor_sharing():
    # a step takes 10 µs a sequence, so each of d runs at 1/d of the speed: the mean time in the
    # system is E[S]/(1 - load) whatever the law of the outputs
    token_s, load = 1e-5, 0.7
    random = np.random.default_rng(4)
    output = np.where(random.random(300_000) < 0.9, 100, 2_000)
    mean_s = output.mean() * token_s  # a step for the prompt, and one for each further token
    replay = engine.run(
        inputs_of(
            poisson(load / mean_s, output.size, 5),
            1,
            output,
            NOTHING._replace(linear_token_s=token_s),
        )
    )
    mean, error = mean_and_error(seconds(replay, "done", "arrival"))
    expected = mean_s / (1 - load)
    assert error < 0.05 * expected
    assert abs(mean - expected) < 3 * error + 0.01 * expected  # a step's granularity


def test_what_a_request_costs_the_engine_counts_once():
    # two chunks of 4,096 tokens at 100 µs each, then 5 ms for the request
    model = NOTHING._replace(linear_token_s=1e-4, request_s=5e-3)
    replay = engine.run(inputs_of([0.0, 10.0], 8192, 1, model, token_budget=4096))
    np.testing.assert_allclose(seconds(replay, "done", "first_step"), 0.8242, rtol=1e-12)
    assert prefill_time_s(model, 8192, 0, 4096) == pytest.approx(0.8242)
    assert compiled_prefill_time_s(model, 8192, 0, 4096) == pytest.approx(0.8242)
    assert prefill_time_s(model, 0, 8192, 4096) == 0.0


def test_a_request_waits_through_steps_under_way():
    # a sequence decodes at 10 ms a step; another request comes in the middle of a step
    model = NOTHING._replace(gap_s=0.01, wait_steps=2.0)
    replay = engine.run(inputs_of([0.0, 0.105], 1, np.array([100, 1]), model))
    # taken up by the first step that begins 20 ms later
    assert seconds(replay, "first_step", "arrival")[1] == pytest.approx(0.025)
    alone = engine.run(inputs_of([0.0, 5.105], 1, np.array([100, 1]), model))
    assert seconds(alone, "first_step", "arrival")[1] == 0.0
