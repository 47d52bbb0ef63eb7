"""Clients that give up: a try that ends in each state, worked out by hand, and whole scenarios."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from single_instance import NOTHING, inputs_of
from test_engine import assert_equal

from smetric_model.identities import check_identities
from smetric_model.scenario import Scenario
from smetric_model.simulate import engine, reference, simulate
from smetric_model.simulate.checks import replay_violations
from smetric_model.simulate.inputs import TIMED_OUT, Clients

MS = 10**9  # ticks
STEP = NOTHING._replace(gap_s=1e-3)  # every step takes a millisecond
both = pytest.mark.parametrize("run", [reference.run, engine.run])


def patient(timeout_ms, retries=0, backoff_ms=0.0):
    return Clients(int(timeout_ms * MS), retries, int(backoff_ms * MS))


def checked(run, inputs):
    replay = run(inputs)
    assert replay_violations(inputs, replay) == []
    assert_equal(reference.run(inputs), engine.run(inputs, caches=True))
    return replay


def with_requests(inputs, **changes):
    return dataclasses.replace(inputs, requests=inputs.requests._replace(**changes))


def only(replay):
    """The one failed try, as a dict of numbers."""
    assert replay.failed.request.size == 1
    return {name: int(getattr(replay.failed, name)[0]) for name in replay.failed._fields}


@both
def test_with_the_host(run):
    inputs = inputs_of([0.0], 64, 10, STEP, clients=patient(5))
    inputs = with_requests(inputs, host_ticks=np.array([20 * MS]))
    replay = checked(run, inputs)
    lost = only(replay)
    assert (lost["end"], lost["until"], lost["cause"]) == (5 * MS, 5 * MS, TIMED_OUT)
    assert lost["reused_tokens"] == lost["computed_tokens"] == lost["generated_tokens"] == 0
    assert replay.gave_up.tolist() == [5 * MS]
    assert replay.ready.tolist() == [-1]


@both
def test_in_the_queue_and_in_decoding(run):
    # one place; A is done at 8 ms, B runs from there and gives up at 10.5 after three tokens, the
    # third in the step under way; C gives up in the queue at 10.6; D is served from 11 ms on
    arrival = [0.0, 0.0005, 0.0006, 0.005]
    inputs = inputs_of(
        arrival, 16, [8, 10, 10, 2], STEP, max_running_requests=1, clients=patient(10)
    )
    replay = checked(run, inputs)
    lost = replay.failed
    assert lost.request.tolist() == [1, 2]
    assert lost.end.tolist() == [10.5 * MS, 10.6 * MS]
    assert lost.until.tolist() == [11 * MS, 10.6 * MS]
    assert lost.first_token.tolist() == [9 * MS, -1]
    assert lost.computed_tokens.tolist() == [16, 0]
    assert lost.generated_tokens.tolist() == [3, 0]
    assert replay.done.tolist() == [8 * MS, -1, -1, 13 * MS]
    assert replay.generated_tokens.sum() == 8 + 3 + 2


@both
def test_at_the_head_of_the_queue(run):
    # A decodes from 2 ms on, B waits for KV from 5 ms on and gives up at 10; C, behind it, fitted
    # all along and joins at the next step; it is done at 16 ms, the very moment it would give up
    inputs = inputs_of(
        [0.002, 0.0, 0.006],
        [64, 64, 16],
        [40, 40, 5],
        STEP,
        pool_tokens=144,
        clients=patient(10),
    )
    replay = checked(run, with_requests(inputs, host_ticks=np.array([0, 5 * MS, 0])))
    assert replay.failed.request.tolist() == [1, 0]
    assert replay.failed.end.tolist() == [10 * MS, 12 * MS]
    assert replay.failed.generated_tokens.tolist() == [0, 11]
    assert replay.first_step[2] == 11 * MS
    assert replay.done.tolist() == [-1, -1, 16 * MS]


@both
def test_in_a_prompt(run):
    # chunks of 16 tokens: two are done at 2.5 ms and stay cached, the third is under way; the
    # retry waits for its end, finds the two, and gives up at 5 ms as its second token begins
    path = [1, 2, 3, 4]
    inputs = inputs_of(
        [0.0], 64, 10, STEP, paths=[path], token_budget=16, clients=patient(2.5, retries=1)
    )
    replay = checked(run, inputs)
    lost = replay.failed
    assert lost.placed.tolist() == [0, 2.5 * MS]
    assert lost.end.tolist() == [2.5 * MS, 5 * MS]
    assert lost.until.tolist() == [3 * MS, 6 * MS]
    assert lost.first_step.tolist() == [0, 3 * MS]
    assert lost.first_token.tolist() == [-1, 5 * MS]
    assert lost.reused_tokens.tolist() == [0, 32]
    assert lost.computed_tokens.tolist() == [48, 32]
    assert lost.generated_tokens.tolist() == [0, 2]
    assert replay.gave_up.tolist() == [5 * MS]


@both
def test_in_a_fetch(run):
    # the second prompt is in the store: 3 blocks of a megabyte over a gigabyte/s take 3 ms, one
    # too many; its retry goes to where the first one left them
    path = [1, 2, 3, 4]
    inputs = inputs_of(
        [0.0, 0.1], 64, 2, STEP, paths=[path, path], instances=2, clients=patient(2, 1, 7)
    )
    fabric = inputs.fabric._replace(pcie_bytes_per_s=1e9, global_blocks=100, recompute_if_faster=0)
    replay = checked(run, dataclasses.replace(inputs, fabric=fabric))
    lost = only(replay)
    assert (lost["request"], lost["instance"], lost["end"]) == (1, 1, 102 * MS)
    assert lost["reused_tokens"] == lost["computed_tokens"] == 0
    assert replay.pcie_bytes.tolist() == [0.0, pytest.approx(2e6)]  # two of the three came
    assert replay.placed.tolist() == [0, 109 * MS]
    assert replay.instance.tolist() == [0, 0]
    assert replay.local_tokens.tolist() == [0, 48]
    assert replay.done.tolist() == [2 * MS, 111 * MS]


@both
def test_a_session_goes_on_after_what_it_gave_up(run):
    inputs = inputs_of([0.0, 0.0], 16, [9, 2], STEP, window_s=1.0, clients=patient(4, 1, 1))
    inputs = with_requests(
        inputs,
        arrival_tick=np.array([0, -1]),
        think_ticks=np.array([0, 3 * MS]),
        previous=np.array([-1, 0]),
        following=np.array([1, -1]),
    )
    replay = checked(run, inputs)
    assert replay.failed.placed.tolist() == [0, 5 * MS]
    assert replay.gave_up.tolist() == [9 * MS, -1]
    assert replay.arrival.tolist() == [0, 12 * MS]
    assert replay.done.tolist() == [-1, 14 * MS]


def scenario(**changes):
    return Scenario(
        workload={
            "preset": "bailian-trace-1-short",
            "rate_rps": 2.5,
            "window_s": 60.0,
            "warmup_s": 30.0,
        },
        cluster={"instances": 8},
    ).replace(**changes)


def test_outcome_of_clients_that_give_up():
    asked = {"client.timeout_s": 20.0, "client.retries": 2, "client.backoff_s": 0.5}
    outcome = simulate(scenario(**asked), check=True)
    assert check_identities(outcome) == ()
    requests = outcome.requests
    assert 0 < outcome.number("timed_out_ratio") < 1
    lost = requests[requests["status"] == "timed_out"]
    servable = (requests["status"] != "unservable").sum()
    assert outcome.number("timed_out_ratio") == pytest.approx(len(lost) / servable)
    assert (lost["retries"] == 2).all()
    assert lost["e2e_s"].isna().all()
    assert not lost["within_slo"].any()
    assert (lost["reason"] != "").all()
    assert outcome["retries"] == requests["retries"].sum() > 0
    assert 0 < outcome.number("wasted_tps") < outcome.number("total_tps")
    again = requests[(requests["status"] == "served") & (requests["retries"] > 0)]
    assert len(again)
    assert (again["e2e_s"] > 20.5).all()  # from the first try's arrival


def test_who_waits_long_enough_sees_no_difference():
    one, two = (simulate(scenario(**{"client.timeout_s": wait})) for wait in (1e5, np.inf))
    assert one.replace(scenario_id="") == two.replace(scenario_id="")
    assert one.requests.equals(two.requests)
    assert one["retries"] == one["wasted_tps"] == 0
