"""Instances and nodes that fail: what happens at a known time, worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from single_instance import NOTHING, inputs_of
from test_engine import assert_equal

from smetric_model.errors import SpecError
from smetric_model.identities import check_identities
from smetric_model.scenario import Scenario
from smetric_model.simulate import engine, reference, simulate, simulate_in_detail
from smetric_model.simulate.checks import replay_violations
from smetric_model.simulate.faults import (
    DOWN,
    HIDDEN,
    SEEN,
    UP,
    Faults,
    fault_rows,
    faults_of,
    lies_on,
)
from smetric_model.simulate.inputs import FAILED, Clients

MS = 10**9  # ticks
STEP = NOTHING._replace(gap_s=1e-3)  # every step takes a millisecond
PATH = [1, 2, 3, 4]
both = pytest.mark.parametrize("run", [reference.run, engine.run])


def failing(where, at_ms, down_ms=-1, detection_ms=0.0, node=-1, drain_ms=0.0):
    """Inputs' ``faults``: an instance, or (``node``) a node whose only instance that is."""
    down = -1 if down_ms < 0 else int(down_ms * MS)
    at, detection, drain = int(at_ms * MS), int(detection_ms * MS), int(drain_ms * MS)
    return Faults.of(fault_rows([where], at, down, detection, node, drain))


def store_lost(node, at_ms, down_ms):
    """Inputs' ``faults``: a node's share of the global tier, while its instances go on."""
    return Faults.of(fault_rows([], int(at_ms * MS), int(down_ms * MS), 0, node))


def rows_of(faults):
    return list(zip(*(column.tolist() for column in faults), strict=True))


def checked(run, inputs):
    replay = run(inputs)
    assert replay_violations(inputs, replay) == []
    assert_equal(reference.run(inputs), engine.run(inputs, caches=True))
    return replay


@both
def test_until_the_routers_know_an_instance_that_is_down_draws_requests(run):
    # A runs on instance 0, which fails at 5.5 ms with five tokens made; its retry comes at 7.5 ms,
    # finds 0 the emptier and is refused; the routers know from that moment on (after arrivals); the
    # next one runs on 1 beside B, from the step at 10 ms on
    inputs = inputs_of(
        [0.0, 0.0],
        64,
        [20, 50],
        STEP,
        instances=2,
        clients=Clients(-1, 2, 2 * MS),
        faults=failing(0, 5.5, 30, 2),
    )
    replay = checked(run, inputs)
    lost = replay.failed
    assert lost.request.tolist() == [0, 0]
    assert lost.cause.tolist() == [FAILED, FAILED]
    assert lost.placed.tolist() == [0, 7.5 * MS]
    assert lost.end.tolist() == [5.5 * MS, 7.5 * MS]
    assert lost.computed_tokens.tolist() == [64, 0]
    assert lost.generated_tokens.tolist() == [5, 0]
    assert replay.placed.tolist() == [9.5 * MS, 0]
    assert replay.instance.tolist() == [1, 1]
    assert replay.done.tolist() == [30 * MS, 50 * MS]
    assert replay.busy_ticks.tolist() == [5.5 * MS, 50 * MS]


@both
@pytest.mark.parametrize(("drain_ms", "lost"), [(25, False), (15, True)])
def test_an_instance_that_is_taken_away_finishes_first(run, drain_ms, lost):
    # A begins on 0 at once and takes 20 ms; 0 goes at 30 ms, nothing new from 5 or 15 ms on;
    # C comes at 12 ms, when 0 and 1 have one request each: to 1 once 0 drains, else to 0, where it
    # is not done by 30 ms
    inputs = inputs_of(
        [0.0, 0.0, 0.012],
        64,
        [20, 60, 25],
        STEP,
        instances=2,
        faults=failing(0, 30, -1, 0, drain_ms=drain_ms),
    )
    replay = checked(run, inputs)
    assert replay.done[0] == 20 * MS
    assert replay.instance.tolist()[:2] == [0, 1]
    assert (replay.failed.request.size > 0) is lost
    if lost:
        assert replay.failed.request.tolist() == [2]
        assert replay.gave_up[2] == 30 * MS
    else:
        assert replay.instance[2] == 1
        assert replay.done[2] > 0


def test_drained_before_it_goes_and_back_when_known():
    rows = rows_of(Faults.of(fault_rows([3], 100, 50, 7, drain=40)))
    assert rows == [(60, HIDDEN, 3), (100, DOWN, 3), (150, UP, 3), (157, SEEN, 3)]
    # no longer than there is time, and also where the absence is too short to be noticed
    assert rows_of(Faults.of(fault_rows([3], 10, 2, 7, drain=40)))[0] == (0, HIDDEN, 3)


@both
def test_without_a_retry_the_request_is_lost(run):
    inputs = inputs_of([0.0], 64, 20, STEP, faults=failing(0, 3, 5))
    replay = checked(run, inputs)
    assert replay.gave_up.tolist() == [3 * MS]
    assert replay.failed.generated_tokens.tolist() == [3]


@both
def test_where_none_is_up_a_request_fails_at_once(run):
    inputs = inputs_of([0.0, 0.005], 64, 2, STEP, faults=failing(0, 3))
    replay = checked(run, inputs)
    assert replay.done.tolist() == [2 * MS, -1]
    assert replay.failed.instance.tolist() == [-1]
    assert replay.failed.end.tolist() == [5 * MS]


@both
@pytest.mark.parametrize(
    ("faults", "store", "local", "fetched"),
    [
        (Faults.none(), 0, 48, 0),
        (failing(0, 10, 10), 0, 0, 0),
        (failing(0, 10, 10), 100, 0, 48),
        (failing(0, 10, 10, 0, node=0), 100, 0, 0),
        (store_lost(0, 10, 10), 0, 48, 0),
        (store_lost(0, 10, 10), 100, 48, 0),
        (Faults.of([*rows_of(failing(0, 10, 10)), *rows_of(store_lost(0, 5, 1))]), 100, 0, 0),
    ],
)
def test_what_is_left_after_the_restart(run, faults, store, local, fetched):
    # the same prompt again: an instance that failed is cold, its node's share of the store is lost
    # only if the node or the store failed, which here is all of it
    inputs = inputs_of([0.0, 0.03], 64, 2, STEP, paths=[PATH, PATH], faults=faults)
    fabric = inputs.fabric._replace(global_blocks=store, recompute_if_faster=0)
    replay = checked(run, dataclasses.replace(inputs, fabric=fabric))
    assert replay.local_tokens.tolist() == [0, local]
    assert replay.fetched_tokens.tolist() == [0, fetched]
    assert (replay.done >= 0).all()


@both
@pytest.mark.parametrize("node", [0, 1])
def test_of_two_nodes_one_takes_what_lies_behind_its_blocks_with_it(run, node):
    path = list(range(40))
    inputs = inputs_of(
        *([0.0, 0.1], 640, 2, STEP),
        paths=[path, path],
        instances=2,
        faults=failing(node, 10, 5, 0, node),
    )
    fabric = inputs.fabric._replace(
        instances_per_node=1,
        nodes=2,
        global_blocks=100,
        recompute_if_faster=0,
        nic_work_idle=np.arange(100) * 1e6,
        nic_work_busy=np.arange(100) * 1e6,
        transfer_work_idle=np.arange(100) * 1e6,
        transfer_work_busy=np.arange(100) * 1e6,
    )
    replay = checked(run, dataclasses.replace(inputs, fabric=fabric))
    kept = next(block for block in range(40) if lies_on(block, 2) == node)
    assert replay.instance.tolist() == [0, 1]
    assert replay.fetched_tokens.tolist() == [0, 16 * kept]


def test_blocks_are_spread_evenly():
    for nodes in (2, 3, 8):
        share = np.bincount([lies_on(block, nodes) for block in range(8000)]) / 8000
        np.testing.assert_allclose(share, 1 / nodes, atol=0.02)


def scenario(**changes):
    return Scenario(
        workload={
            "preset": "bailian-trace-1-short",
            "rate_rps": 2.0,
            "window_s": 240.0,
            "warmup_s": 30.0,
        },
        cluster={"instances": 8, "gpus_per_node": 4},
        client={"retries": 3, "backoff_s": 1.0},
    ).replace(**changes)


def test_outcome_and_series_of_a_node_that_fails_and_recovers():
    asked = scenario(
        failures=[{"node": 1, "at_s": 90.0, "down_s": 60.0}, {"instance": 0, "at_s": 40.0}]
    )
    result = simulate_in_detail(asked, check=True)
    outcome, series = result.outcome, result.series()
    assert check_identities(outcome) == ()
    instances = outcome.instances
    assert instances["failures"].tolist() == [1, 0, 0, 0, 1, 1, 1, 1]
    assert instances["down_s"].tolist() == [230.0, 0, 0, 0, 60.0, 60.0, 60.0, 60.0]
    assert instances["failed_tries"].sum() > 0
    assert outcome["retries"] > 0
    assert outcome.number("wasted_tps") > 0
    requests = outcome.requests
    failed = requests["status"] == "failed"
    assert outcome.number("failed_ratio") == pytest.approx(failed.mean())
    # nothing on node 1 while it is down (whole intervals of it), work again afterwards
    node = series[series["instance"] >= 4]
    down = (node["start_s"] >= 90.0) & (node["start_s"] + node["length_s"] <= 150.0)
    assert node[down]["total_tokens"].sum() == 0
    assert node[node["start_s"] > 180.0]["total_tokens"].sum() > 0
    calm = simulate(scenario())
    assert calm["failed_ratio"] == calm["retries"] == calm["wasted_tps"] == 0
    assert outcome.number("e2e_mean_s") > calm.number("e2e_mean_s")


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ([{"instance": 8, "at_s": 1.0}], r"failures\[0\].instance = 8: the cluster has 8"),
        ([{"node": 2, "at_s": 1.0}], r"failures\[0\].node = 2: the cluster has 2"),
        (
            [{"node": 0, "at_s": 9.0, "down_s": 9.0}, {"instance": 2, "at_s": 20.0}],
            r"failures\[1\].at_s = 20: instance 2 is down, .* until 23 s \(failures\[0\]\)",
        ),
        (
            [{"instance": 1, "at_s": 9.0}, {"instance": 1, "at_s": 20.0}],
            r"failures\[1\].at_s = 20: instance 1 is down, .* until inf s",
        ),
        (
            [
                {"instance": 1, "at_s": 9.0, "down_s": 9.0},
                {"instance": 1, "at_s": 30.0, "drain_s": 20.0},
            ],
            r"failures\[1\].at_s = 30: instance 1 is down, .* or begins to drain, at 10 s",
        ),
        ([{"store": 2, "at_s": 1.0}], r"failures\[0\].store = 2: the cluster has 2"),
        (
            [{"node": 1, "at_s": 9.0, "down_s": 20.0}, {"store": 1, "at_s": 20.0}],
            r"failures\[1\].at_s = 20: the store of node 1 is lost until 29 s \(failures\[0\]\)",
        ),
    ],
)
def test_failures_that_cannot_be(failures, message):
    with pytest.raises(SpecError, match=message):
        faults_of(scenario(failures=failures), np.arange(8) // 4)


def test_a_store_that_is_lost_takes_no_request_with_it():
    lost = [{"store": node, "at_s": 30.0, "down_s": 1.0} for node in range(2)]
    calm, broken = simulate(scenario()), simulate(scenario(failures=lost), check=True)
    assert broken["failed_ratio"] == broken["retries"] == 0
    assert broken["requests"] > 0
    assert broken.instances["failures"].tolist() == [0] * 8
    assert broken.number("global_ratio") < calm.number("global_ratio")


def test_failures_of_disaggregated_serving_are_refused():
    cluster = {"serving": "disaggregated", "prefill_instances": 2, "decode_instances": 2}
    for changes in (
        {"failures": [{"instance": 0, "at_s": 1.0}]},
        {"engine.kv_admission": "preempt"},
    ):
        with pytest.raises(SpecError, match="with disaggregated serving"):
            simulate(scenario(cluster=cluster, **changes))
