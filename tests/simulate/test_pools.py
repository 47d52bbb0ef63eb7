"""Disaggregated serving: times by hand, queues with known laws, outcomes of both pools."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from random_inputs import random_inputs
from single_instance import NOTHING, inputs_of, mean_and_error

from smetric_model.analytic.queueing import erlang_c
from smetric_model.errors import SpecError
from smetric_model.identities import check_identities
from smetric_model.routing.registry import POLICIES, make_policy
from smetric_model.scenario import Scenario
from smetric_model.simulate import engine, reference, simulate, simulate_in_detail
from smetric_model.simulate.checks import replay_violations
from smetric_model.simulate.inputs import Clients
from smetric_model.simulate.outcome_row import nic_utilisations
from smetric_model.simulate.tables import inflight_bins

MS = 10**9
STEP = NOTHING._replace(gap_s=1e-3)
BOTH = pytest.mark.parametrize("run", [reference.run, engine.run])


def pools(prefill, decode, *arguments, per_node=None, fabric=None, **settings):
    """Inputs with two pools; 1 MB a block, 2.5 MB of line capacity between nodes (5 if busy)."""
    inputs = inputs_of(
        *arguments, instances=prefill + decode, prefill_instances=prefill, **settings
    )
    per_node = per_node or prefill + decode
    nodes = -(-(prefill + decode) // per_node)
    size = np.arange(10_000.0)
    changes = {
        "instances_per_node": per_node,
        "nodes": nodes,
        "nic_work_idle": size * 1e6,
        "nic_work_busy": size * 1e6,
        "transfer_work_idle": size * 2.5e6,
        "transfer_work_busy": size * 5e6,
    }
    fabric = inputs.fabric._replace(**changes | (fabric or {}))
    return dataclasses.replace(inputs, fabric=fabric, policy=make_policy("round-robin"))


# --- one request, by hand -------------------------------------------------------------------------


@BOTH
def test_one_request_between_nodes(run):
    # 1,600 tokens are 100 blocks: 250 MB of line capacity, 10 ms at 25 GB/s
    replay = run(pools(1, 1, [0.0], 1600, 6, STEP, per_node=1))
    assert replay.first_token.tolist() == [1 * MS]
    assert replay.transfer_start.tolist() == [1 * MS]
    assert replay.transfer_done.tolist() == [11 * MS]
    assert replay.decode_start.tolist() == [11 * MS]
    assert replay.done.tolist() == [16 * MS]  # five tokens more
    assert (replay.instance.tolist(), replay.decode_instance.tolist()) == ([0], [1])
    assert replay.generated_tokens.sum(axis=1).tolist() == [1, 5]
    assert replay.computed_tokens.sum(axis=1).tolist() == [1600, 0]
    assert replay.busy_ticks.tolist() == [1 * MS, 5 * MS]
    work = [[0, 0], [0, 0], [0, 250e6], [250e6, 0]]  # KV into node 1, out of node 0
    np.testing.assert_allclose(replay.nic_work_bytes, work, rtol=1e-9)


@BOTH
def test_within_a_node_the_network_is_not_used(run):
    replay = run(pools(1, 1, [0.0], 1600, 6, STEP))
    assert replay.transfer_done[0] - replay.transfer_start[0] == math.ceil(100e6 / 54e9 * 1e12)
    assert not replay.nic_work_bytes.any()
    assert replay.pcie_bytes[1] == pytest.approx(100e6)
    assert replay.pcie_bytes[0] == 0.0


@BOTH
def test_a_slow_pcie_holds_up_a_transfer_between_nodes(run):
    slow = {"pcie_bytes_per_s": 1e9}
    replay = run(pools(1, 1, [0.0], 1600, 2, STEP, per_node=1, fabric=slow))
    assert replay.transfer_done[0] - replay.transfer_start[0] == 100 * MS


@BOTH
def test_one_token_needs_no_decode_pool(run):
    replay = run(pools(1, 1, [0.0], 1600, 1, STEP, per_node=1))
    assert replay.done.tolist() == [1 * MS]
    assert replay.transfer_start.tolist() == [-1]
    assert replay.decode_instance.tolist() == [-1]


@BOTH
def test_fixed_state_is_sent_too(run):
    inputs = pools(1, 1, [0.0], 1600, 2, STEP, per_node=1)
    inputs = dataclasses.replace(inputs, engine=inputs.engine._replace(fixed_state_tokens=160))
    assert run(inputs).transfer_done[0] == 12 * MS  # 110 blocks


# --- several, by hand -----------------------------------------------------------------------------


@BOTH
def test_transfers_into_one_node_share_its_link(run):
    # from nodes 0 and 1 into node 2; the second begins 4 ms after the first.  6 ms of the first
    # are left, which take 12 at half the rate; then the second has 4 ms left, alone
    fast = {"node_nic_bytes_per_s": 25e9, "transfer_work_busy": np.arange(10_000.0) * 2.5e6}
    replay = run(pools(2, 1, [0.0, 0.004], 1600, 2, STEP, per_node=1, fabric=fast))
    assert replay.transfer_start.tolist() == [1 * MS, 5 * MS]
    assert replay.transfer_done.tolist() == [17 * MS, 21 * MS]


@BOTH
def test_transfers_between_different_nodes_do_not_share(run):
    replay = run(pools(2, 2, [0.0, 0.0], 1600, 2, STEP, per_node=1))
    assert sorted(replay.decode_instance) == [2, 3]
    assert replay.transfer_done.tolist() == [11 * MS, 11 * MS]


@BOTH
def test_transfers_out_of_one_node_share_its_link(run):
    # a millisecond apart: 9 of the first are left, which take 18; then the second has 1 left
    replay = run(pools(1, 2, [0.0, 0.0], 1600, 2, STEP, per_node=1))
    assert sorted(replay.decode_instance) == [1, 2]
    assert replay.transfer_start.tolist() == [1 * MS, 2 * MS]
    np.testing.assert_allclose(replay.transfer_done, [20 * MS, 21 * MS], rtol=0, atol=1)


@BOTH
def test_a_transfer_shares_its_link_with_writes_to_the_global_tier(run):
    # both leave node 0 at once: 250 MB of KV, and a write of 100 blocks, 100 MB of capacity.  At
    # half the rate the write takes 8 ms, in which 100 MB are sent; the rest takes 6 ms
    paths, store = [list(range(100))], {"global_blocks": 1000}
    inputs = pools(1, 1, [0.0], 1600, 2, STEP, paths, per_node=1, fabric=store)
    assert run(inputs).transfer_done[0] - run(inputs).transfer_start[0] == 14 * MS


@BOTH
def test_a_transfer_while_an_instance_computes_is_less_efficient(run):
    # the second prompt is computed in the second step, with 0 or 100 tokens of the third
    for budget, milliseconds in ((1600, 10), (1700, 20)):
        inputs = pools(1, 1, np.zeros(3), 1600, [1, 2, 1], STEP, per_node=1, token_budget=budget)
        replay = run(inputs)
        assert replay.transfer_start[1] == 2 * MS
        assert replay.transfer_done[1] - replay.transfer_start[1] == milliseconds * MS


@BOTH
def test_kv_stays_where_it_was_computed_until_it_has_been_sent(run):
    """Room for one request on either side: each waits for the one before, on both sides."""
    local = {"block_bytes": 54e6}  # a millisecond a block
    replay = run(
        pools(1, 1, np.zeros(3), 160, 33, STEP, pool_tokens=200, fabric=local, block_tokens=8)
    )
    sent = replay.transfer_done
    np.testing.assert_array_equal(sent - replay.transfer_start, 20 * MS)
    np.testing.assert_array_equal(replay.admitted[1:], sent[:-1])
    np.testing.assert_array_equal(replay.transfer_start[1:], replay.done[:-1])
    np.testing.assert_array_equal(replay.done - sent, 32 * MS)


@BOTH
def test_the_prefix_stays_after_the_transfer(run):
    path = list(range(101))
    replay = run(pools(1, 1, [0.0, 1.0], 1610, 2, STEP, [path, path], per_node=1))
    assert replay.local_tokens.tolist() == [0, 1600]
    np.testing.assert_array_equal(np.diff(replay.transfer_start), 10**12)  # sent as a whole again


@BOTH
def test_the_decode_instance_with_most_free_kv_takes_the_request(run):
    # prompts of 160, 320 and 480 tokens on three instances; the next goes where the first is
    prompt = [160, 320, 480, 160, 160]
    inputs = pools(1, 3, np.arange(5) * 0.1, prompt, 3000, STEP, pool_tokens=10_000)
    first, second, third, fourth, fifth = run(inputs).decode_instance.tolist()
    assert sorted([first, second, third]) == [1, 2, 3]
    assert fourth == first  # 3,160 tokens there, then 6,320
    assert fifth == second


@BOTH
def test_routers_balance_unprefilled_tokens_or_requests(run):
    # a prompt of 8,000 tokens goes to one instance, then three of 100
    inputs = pools(2, 1, np.zeros(4), [8000, 100, 100, 100], 2, STEP, token_budget=100)
    inputs = dataclasses.replace(inputs, policy=make_policy("load-balance"))
    assert run(inputs).instance.tolist() == [0, 1, 0, 1]
    tokens = dataclasses.replace(inputs, signals=inputs.signals._replace(token_load=1))
    assert run(tokens).instance.tolist() == [0, 1, 1, 1]


# --- clients that give up -------------------------------------------------------------------------


def impatient(inputs, timeout_ms, retries=0):
    patience = Clients(timeout_ticks=timeout_ms * MS, retries=retries, backoff_ticks=0)
    return dataclasses.replace(inputs, clients=patience)


@BOTH
def test_who_gives_up_while_kv_is_sent_frees_it_on_both_sides(run):
    """Room for one request on either side; sending takes 20 ms, patience ends after 15."""
    settings = {"pool_tokens": 200, "block_tokens": 8, "fabric": {"block_bytes": 54e6}}
    replay = run(impatient(pools(1, 1, [0.0, 0.010], 160, 33, STEP, **settings), 15))
    assert replay.gave_up.tolist() == [15 * MS, 25 * MS]
    assert replay.failed.first_token.tolist() == [1 * MS, 16 * MS]  # the second enters at 15 ms
    assert replay.failed.decode_instance.tolist() == [1, 1]
    assert replay.failed.transfer_done.tolist() == [-1, -1]
    assert replay.failed.generated_tokens.tolist() == [1, 1]
    assert replay.pcie_bytes[1] == pytest.approx(23e-3 * 54e9)  # 14 ms of one, 9 of the other
    assert (replay.transfer_start == -1).all()


@BOTH
def test_a_transfer_that_is_given_up_leaves_its_link_to_others(run):
    # the first would take 100 ms and is given up after 20; the second shares its link for 4 ms,
    # in which it gets 2 of its 10, and is alone then
    fast = {"transfer_work_busy": np.arange(10_000.0) * 2.5e6}
    inputs = pools(2, 1, [0.0, 0.015], [16_000, 1600], 2, STEP, per_node=1, fabric=fast)
    inputs = dataclasses.replace(inputs, engine=inputs.engine._replace(token_budget=16_000))
    replay = run(impatient(inputs, 20))
    assert replay.gave_up.tolist() == [20 * MS, -1]
    assert abs(replay.transfer_done[1] - 28 * MS) <= 1
    assert replay.done[1] == replay.transfer_done[1] + MS


@BOTH
def test_who_gives_up_in_the_decode_pool_makes_room_for_the_next(run):
    """The retry is prefilled again, from its cached prefix, and waits behind the other."""
    path = [list(range(10)), list(range(100, 110))]
    settings = {"pool_tokens": 400, "fabric": {"block_bytes": 1.0}}
    inputs = pools(1, 1, [0.0, 0.020], 170, [200, 15], STEP, path, **settings)
    replay = run(impatient(inputs, 50, retries=1))
    failed = replay.failed
    assert failed.request.tolist() == [0, 0]
    assert failed.end.tolist() == [50 * MS, 100 * MS]
    assert failed.reused_tokens.tolist() == [0, 160]
    # room for one of them; the step under way at 50 ms goes on
    assert replay.transfer_start[1] == 50 * MS
    assert replay.done[1] == replay.decode_start[1] + 14 * MS
    assert replay.done[1] < failed.decode_start[1] < replay.done[1] + MS
    # a token a millisecond, and the one of the step under way
    decoding = failed.until - failed.decode_start
    np.testing.assert_array_equal(failed.generated_tokens, 1 + decoding // MS)


# --- laws of queues -------------------------------------------------------------------------------


def seconds(replay, later, earlier):
    return (getattr(replay, later) - getattr(replay, earlier)) / 1e12


def test_a_prefill_pool_of_one_is_m_d_1():
    model = NOTHING._replace(linear_token_s=1e-4)
    service_s, load = 0.4096, 0.7
    arrival = np.cumsum(np.random.default_rng(1).exponential(service_s / load, 200_000))
    inputs = pools(1, 1, arrival, 4096, 2, model, token_budget=4096)
    replay = engine.run(inputs)
    np.testing.assert_allclose(seconds(replay, "first_token", "first_step"), service_s, rtol=1e-12)
    mean, error = mean_and_error(seconds(replay, "first_step", "arrival"))
    expected = load * service_s / (2 * (1 - load))  # Pollaczek and Khinchine
    assert error < 0.05 * expected
    assert abs(mean - expected) < 3 * error


def test_a_decode_pool_of_equal_steps_is_m_m_c():
    # 5 instances with 2 places each; every step takes a millisecond, outputs are geometric.  One
    # queue for the whole pool, so it is M/M/10, not five times M/M/2
    step_s, rate = 1e-3, 8.0
    random = np.random.default_rng(2)
    output = 1 + random.geometric(1e-3, 400_000)  # decoding takes a second on average
    arrival = np.cumsum(random.exponential(1 / rate, output.size))
    inputs = pools(
        *(1, 5, arrival, 1, output, STEP),
        max_running_requests=2,
        fabric={"block_bytes": 1.0},
    )
    # the prefill instance has two places as well: more than enough at 8 requests/s and 1 ms each
    replay = engine.run(inputs)
    wait = seconds(replay, "transfer_start", "first_token")
    assert seconds(replay, "first_token", "arrival").mean() < 2 * step_s
    blocked, mean_wait = 0.409180, 0.204590
    assert abs(erlang_c(10, rate) - blocked) < 1e-6
    mean, error = mean_and_error(wait > 0)
    assert error < 0.05 * blocked
    assert abs(mean - blocked) < 3 * error + step_s * rate
    mean, error = mean_and_error(wait)
    assert abs(mean - mean_wait) < 3 * error + step_s
    # never more than there are places
    running = np.argsort(np.concatenate((replay.done, replay.transfer_start)), kind="stable")
    change = np.where(running < output.size, -1, 1)
    assert np.cumsum(change).max() == 10


@pytest.mark.parametrize(("gpus_per_node", "path"), [(1, "rdma"), (2, "dram")])
def test_a_request_alone_takes_the_models_times(gpus_per_node, path):
    """Prefill and decode as the step model says, the transfer as the fabric model says."""
    from smetric_model.analytic.demand import cluster_of, instance_of
    from smetric_model.analytic.fabric import fetch_bytes_per_s
    from smetric_model.analytic.latency import request_latency
    from smetric_model.analytic.memory import kv_bytes_per_token
    from smetric_model.simulate.loads import fixed_length_trace, with_fixed_load

    one_each = {"serving": "disaggregated", "prefill_instances": 1, "decode_instances": 1}
    asked = Scenario(cluster={**one_each, "gpus_per_node": gpus_per_node})
    trace = fixed_length_trace(4800, 100, 5, 0.01, arrivals="uniform")
    outcome = simulate(with_fixed_load(asked, trace), trace)
    instance, cluster = instance_of(asked), cluster_of(asked)
    alone = request_latency(instance, 4800, 100)
    size = 4800 * kv_bytes_per_token(instance)
    sent_s = size / fetch_bytes_per_s(cluster, instance.gpu, 1, path, size, busy=False)
    assert outcome.number("ttft_p50_s") == pytest.approx(alone.ttft_s, rel=1e-9)
    assert outcome.number("transfer_p50_s") == pytest.approx(sent_s, rel=1e-9)
    assert outcome.number("tpot_p50_s") == pytest.approx(alone.tpot_s + sent_s / 99, rel=1e-4)


# --- random clusters, outcomes --------------------------------------------------------------------


def test_random_clusters_wait_and_send_in_every_way():
    """What the comparison with the reference runs over includes every path of the code."""
    ways = ("pools", "waits", "local", "remote", "together", "drop_wait", "drop_sent", "drop_run")
    seen = dict.fromkeys(ways, 0)
    policies = set()
    for seed in range(400):
        inputs = random_inputs(seed)
        fabric = inputs.fabric
        if fabric.prefill_instances == fabric.instances:
            continue
        policies.add((inputs.policy.name, inputs.signals.token_load))
        replay = engine.run(inputs)
        assert replay_violations(inputs, replay) == []
        sent = replay.transfer_start >= 0
        start, done = replay.transfer_start[sent], replay.transfer_done[sent]
        source = inputs.node_of[replay.instance[sent]]
        target = inputs.node_of[replay.decode_instance[sent]]
        seen["pools"] += 1
        seen["waits"] += int((start > replay.first_token[sent]).sum())
        seen["local"] += int((source == target).sum())
        seen["remote"] += int((source != target).sum())
        away = (source != target) & (done >= 0)
        order = np.argsort(start[away])
        seen["together"] += int((start[away][order][1:] < done[away][order][:-1]).sum())
        lost = replay.failed
        prefilled, chosen = lost.first_token >= 0, lost.decode_instance >= 0
        seen["drop_wait"] += int((prefilled & ~chosen).sum())
        seen["drop_sent"] += int((chosen & (lost.decode_start < 0)).sum())
        seen["drop_run"] += int((lost.decode_start >= 0).sum())
    assert all(count > 5 for count in seen.values()), seen
    assert len({name for name, _ in policies}) == len(POLICIES)


def busy_pools(**changes):
    work = {"preset": "bailian-trace-1-short", "rate_rps": 4.0, "window_s": 60.0, "warmup_s": 30.0}
    cluster = {"serving": "disaggregated", "prefill_instances": 4, "decode_instances": 2}
    return Scenario(workload=work, cluster=cluster).replace(**changes)


def disaggregated(small_trace, **changes):
    content = {
        "workload": {
            "trace": str(small_trace),
            "rate_rps": "trace",
            "warmup_s": 20.0,
            "window_s": 150.0,
            "start": "cold",
        },
        "cluster": {
            "serving": "disaggregated",
            "prefill_instances": 3,
            "decode_instances": 2,
            "gpus_per_node": 2,
        },
    }
    return Scenario.from_dict(content).replace(**changes)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_outcome_keeps_all_laws(small_trace, policy):
    outcome = simulate(disaggregated(small_trace, **{"router.policy": policy}), check=True)
    assert check_identities(outcome) == ()
    assert outcome["valid"] is True
    served = outcome.requests[outcome.requests["status"] == "served"]
    assert set(served["instance"]) <= {0, 1, 2}
    several = served["output_tokens"] > 1
    assert set(served["decode_instance"][several]) <= {3, 4}
    assert (served["decode_instance"][~several] == -1).all()


def test_tables_and_columns_of_the_pools(small_trace):
    result = simulate_in_detail(disaggregated(small_trace))
    outcome, instances = result.outcome, result.outcome.instances
    assert instances["role"].tolist() == ["prefill"] * 3 + ["decode"] * 2
    roles = result.series().groupby("instance")["role"].unique()
    assert [role for (role,) in roles] == instances["role"].tolist()
    several = (outcome.requests["decode_instance"] >= 0).sum()
    assert instances["requests"][3:].sum() == several
    assert instances["prompt_tps"][3:].sum() == 0.0
    # the first token of a request comes from the prefill pool, all others from the decode pool
    assert 0 < instances["output_tps"][:3].sum() < instances["output_tps"][3:].sum()
    for pool, rows in (("prefill", slice(0, 3)), ("decode", slice(3, 5))):
        for resource in ("compute", "kv", "pcie"):  # of instances
            column = f"{resource}_utilisation_ratio"
            mean = instances[column][rows].mean()
            assert outcome.number(f"{pool}_{column}") == pytest.approx(mean)
            assert mean > 0 or (pool, resource) == ("prefill", "pcie")
    served = outcome.requests[outcome.requests["status"] == "served"]
    spent = served["ttft_s"] + served["transfer_wait_s"] + served["transfer_s"]
    assert (spent[served["output_tokens"] > 1] < served["e2e_s"][served["output_tokens"] > 1]).all()
    assert outcome.number("transfer_mean_s") == pytest.approx(served["transfer_s"].mean())
    # two instances a node: nodes 0 and 1 hold prefill, 1 and 2 decode
    name = "nic_in_utilisation_ratio"
    prefill, decode = outcome.number(f"prefill_{name}"), outcome.number(f"decode_{name}")
    inward, outward = nic_utilisations(result.prepared.inputs, result.replay)
    assert prefill == pytest.approx(inward[:2].mean())
    assert decode == pytest.approx(inward[1:].mean())
    assert outcome.number(name) == pytest.approx(outward.mean())
    assert decode > prefill
    # imbalance is that of the prefill pool
    bins = inflight_bins(result.prepared.inputs, result.replay)["unprefilled_tokens"]
    assert (bins[3:] == 0).all()
    pool = bins[:3, : bins.shape[1] // 2 * 2].reshape(3, -1, 2).sum(axis=2)
    ratio = pool.max(axis=0)[pool.sum(axis=0) > 0] / pool.mean(axis=0)[pool.sum(axis=0) > 0]
    assert outcome.number("imbalance_unprefilled_tokens_60s_mean") == pytest.approx(ratio.mean())


def test_colocated_outcomes_leave_the_columns_of_pools_empty(small_trace):
    scenario = disaggregated(small_trace).replace(cluster={"instances": 5})
    outcome = simulate(scenario)
    assert math.isnan(outcome.number("transfer_mean_s"))
    assert math.isnan(outcome.number("decode_kv_utilisation_ratio"))
    assert "decode_instance" not in outcome.requests


def test_the_load_indicator_follows_the_serving_unless_it_is_named():
    base = busy_pools(**{"router.policy": "load-balance"})
    placed = {
        indicator: simulate(base.replace(**{"router.load_indicator": indicator})).requests
        for indicator in ("serving", "requests", "unprefilled_tokens")
    }
    same = placed["unprefilled_tokens"]["instance"]
    assert placed["serving"]["instance"].equals(same)
    assert not placed["requests"]["instance"].equals(same)
    colocated = base.replace(cluster={"instances": 6})
    by_requests = simulate(colocated.replace(**{"router.load_indicator": "requests"}))
    assert simulate(colocated).requests["instance"].equals(by_requests.requests["instance"])


def test_a_small_decode_pool_makes_requests_wait_and_is_named_as_what_binds():
    def outcome(count):
        key = {"cluster.decode_instances": count, "cluster.instances": None}
        return simulate(busy_pools(**key), check=True)

    one, four = outcome(1), outcome(4)
    assert one.number("transfer_wait_p90_s") > 1.0 > four.number("transfer_wait_p90_s")
    assert one["binding_resource"] == "decode_kv"
    assert one.number("decode_kv_utilisation_ratio") > 0.9
    # what is done with prefill and waits holds KV of the prefill pool
    pool = "prefill_kv_utilisation_ratio"
    assert one.number(pool) > 2 * four.number(pool)


def test_a_network_too_slow_for_the_kv_is_named_as_what_binds():
    """One decode node takes in all KV: its network is full where the mean of all is not."""
    slow = {"prefill_instances": 8, "instances": None, "gpus_per_node": 4, "nic_efficiency": 0.1}
    outcome = simulate(busy_pools(**{f"cluster.{key}": value for key, value in slow.items()}))
    assert outcome["binding_resource"] == "decode_nic_in"
    assert outcome.number("decode_nic_in_utilisation_ratio") > 0.95
    assert outcome.number("nic_in_utilisation_ratio") < 0.6  # of three nodes


def test_clients_may_give_up_in_either_pool():
    key = {"client.timeout_s": 10.0, "client.retries": 1, "cluster.decode_instances": 1}
    outcome = simulate(busy_pools(**key, **{"cluster.instances": None}), check=True)
    assert outcome.number("timed_out_ratio") > 0
    assert outcome.number("retries") > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("engine.kv_admission", "preempt"), ("failures", [{"instance": 0, "at_s": 10.0}])],
)
def test_what_is_not_simulated_with_pools_is_refused(small_trace, key, value):
    with pytest.raises(SpecError, match=key):
        simulate(disaggregated(small_trace, **{key: value}))
