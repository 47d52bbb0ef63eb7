"""Write-back and fetches from other instances, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from single_instance import NOTHING, inputs_of

from smetric_model.scenario import Scenario
from smetric_model.simulate import engine, reference, simulate_in_detail
from smetric_model.simulate.checks import replay_violations
from smetric_model.simulate.inputs import CLAIRVOYANT, DEAD_FIRST, LRU, Tiers

STEP = NOTHING._replace(gap_s=1e-3)
RUNS = pytest.mark.parametrize("run", [reference.run, engine.run])


def two_blocks_each(sessions, pool_blocks, tiers, arrival_s=None, **fabric):
    """Requests with two blocks of their session and a token more each."""
    paths = [[2 * s, 2 * s + 1] for s in sessions]
    arrival = np.arange(len(sessions)) if arrival_s is None else arrival_s
    inputs = inputs_of(arrival, 33, 1, STEP, paths=paths, pool_tokens=16 * pool_blocks)
    changed = {"recompute_if_faster": 0, **fabric}
    return dataclasses.replace(inputs, tiers=tiers, fabric=inputs.fabric._replace(**changed))


@RUNS
def test_what_is_evicted_is_written_and_found(run):
    # the pool runs one request and keeps nothing else; the global tier holds two sessions
    replay = run(two_blocks_each([0, 1, 2, 0], 3, Tiers(write_back=1), global_blocks=4))
    assert replay.fetched_tokens.tolist() == [0, 0, 0, 32]
    # 0, 1, and (for room for 0, which is read before) 2, which drives out 1
    assert replay.counts["global_written_blocks"] == 6
    assert replay.counts["global_evicted_blocks"] == 2


@RUNS
def test_nothing_is_written_while_nothing_is_evicted(run):
    replay = run(two_blocks_each([0, 1, 2, 0], 100, Tiers(write_back=1), global_blocks=4))
    assert replay.counts["global_written_blocks"] == 0
    assert replay.local_tokens.tolist() == [0, 0, 0, 32]


@RUNS
def test_a_hit_goes_on_in_the_global_tier(run):
    # the third request evicts the tail of the first session, and nothing else
    replay = run(two_blocks_each([0, 1, 2, 0], 6, Tiers(write_back=1), global_blocks=4))
    assert replay.counts["global_written_blocks"] >= 1
    assert replay.local_tokens.tolist() == [0, 0, 0, 16]
    assert replay.fetched_tokens.tolist() == [0, 0, 0, 16]


@RUNS
def test_what_the_global_tier_has_is_not_written_again(run):
    # 0 is fetched, evicted and fetched: the store keeps what is fetched, so it is written once
    replay = run(two_blocks_each([0, 1, 0, 1, 0], 3, Tiers(write_back=1), global_blocks=4))
    assert replay.fetched_tokens.tolist() == [0, 0, 32, 32, 32]
    assert replay.counts["global_written_blocks"] == 4


@RUNS
@pytest.mark.parametrize(("nvlink", "seconds"), [(2e6, 1.0), (0.0, 2e6 / 54e9)])
def test_fetch_on_the_same_node(run, nvlink, seconds):
    tiers = Tiers(peer_fetch=1, peer_bytes_per_s=nvlink)
    replay = run(
        two_blocks_each([0, 0], 100, tiers, instances=2, prefill_instances=2, instances_per_node=2)
    )
    assert replay.instance.tolist() == [0, 1]
    assert replay.peer.tolist() == [-1, 0]
    assert replay.fetched_tokens.tolist() == [0, 32]  # two blocks of 1e6 bytes
    took = (replay.fetch_done[1] - replay.fetch_start[1]) * 1e-12
    assert took == pytest.approx(seconds, abs=2e-12)


@RUNS
def test_fetch_from_another_node(run):
    tiers = Tiers(peer_fetch=1, peer_bytes_per_s=450e9)
    replay = run(
        two_blocks_each(
            [0, 0],
            100,
            tiers,
            instances=2,
            prefill_instances=2,
            instances_per_node=1,
            nodes=2,
            transfer_work_idle=np.arange(100) * 12.5e9,
            nic_work_idle=np.arange(100) * 1.0,
            nic_work_busy=np.arange(100) * 1.0,
        )
    )
    assert replay.peer.tolist() == [-1, 0]
    assert (replay.fetch_done[1] - replay.fetch_start[1]) * 1e-12 == pytest.approx(1.0)


@RUNS
def test_a_longer_hit_elsewhere_is_not_fetched_where_computing_is_faster(run):
    tiers = Tiers(peer_fetch=1, peer_bytes_per_s=2e6)
    inputs = two_blocks_each(
        [0, 0],
        100,
        tiers,
        instances=2,
        prefill_instances=2,
        instances_per_node=2,
        recompute_if_faster=1,
    )
    replay = run(inputs)
    assert replay.peer.tolist() == [-1, -1]
    assert replay.fetched_tokens.tolist() == [0, 0]


@RUNS
def test_what_is_read_is_pinned_until_it_is_read(run):
    # the third request goes to instance 0, whose pool has no room while 1 reads from it
    tiers = Tiers(peer_fetch=1, peer_bytes_per_s=2e6)
    inputs = two_blocks_each(
        [0, 0, 1], 3, tiers, [0.0, 1.0, 1.5], instances=2, prefill_instances=2, instances_per_node=2
    )
    replay = run(inputs)
    assert replay.instance.tolist() == [0, 1, 0]
    assert replay.ready[2] < 1.6e12
    assert replay.admitted[2] == replay.fetch_done[1] == 2 * 10**12


def test_writes_that_lag_behind_are_said():
    base = Scenario(
        workload={"rate_rps": 0.6, "window_s": 600.0, "warmup_s": 300.0},
        cluster={"instances": 4, "gpus_per_node": 2, "nic_bytes_per_s": 5e8},
        global_tier={"bytes_per_node": 5e9},
    )
    slow = simulate_in_detail(base).outcome
    assert "writes to the global tier, which lag behind" in slow["note"]
    assert slow["valid"] is True
    assert slow.number("nic_out_utilisation_ratio") > 0.9
    fast = simulate_in_detail(base.replace(**{"cluster.nic_bytes_per_s": 25e9})).outcome
    assert "lag behind" not in fast["note"]


def test_tiers_of_a_scenario_keep_the_laws():
    base = Scenario(
        workload={"rate_rps": 0.6, "window_s": 600.0, "warmup_s": 600.0},
        cluster={"instances": 4, "gpus_per_node": 2},
        global_tier={"bytes_per_node": 20e9},
        router={"policy": "round-robin"},
    )
    recomputed = {}
    for name, changes in {
        "neither": {},
        "back": {"global_tier.write": "back"},
        "peers": {"global_tier.peer_fetch": True},
    }.items():
        found = simulate_in_detail(base.replace(**changes))
        assert replay_violations(found.prepared.inputs, found.replay) == []
        row = found.outcome
        parts = [row.number(f"{part}_ratio") for part in ("local", "global", "peer", "recomputed")]
        assert sum(parts) == pytest.approx(1.0)
        assert (parts[2] > 0) == (name == "peers")
        recomputed[name] = parts[3]
    assert recomputed["back"] != recomputed["neither"]
    assert recomputed["peers"] < recomputed["neither"]


@RUNS
@pytest.mark.parametrize("eviction", [LRU, DEAD_FIRST, CLAIRVOYANT])
def test_write_back_keeps_the_laws_for_every_eviction(run, eviction):
    tiers = Tiers(eviction, eviction, write_back=1)
    sessions = np.random.default_rng(0).integers(0, 9, 60).tolist()
    inputs = two_blocks_each(sessions, 6, tiers, global_blocks=7)
    assert replay_violations(inputs, run(inputs)) == []
