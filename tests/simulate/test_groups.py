"""Unequal instances: equal groups, known answers, links by hand, who refuses them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner
from random_inputs import random_inputs
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve
from single_instance import NOTHING, inputs_of, mean_and_error
from test_engine import assert_equal

from smetric_model.advantage import advantage
from smetric_model.analytic.cluster_capacity import predicted_capacity
from smetric_model.analytic.demand import cluster_of, instance_of
from smetric_model.analytic.predict import predict
from smetric_model.bound import bound
from smetric_model.capacity import capacity
from smetric_model.cli.simulate import command
from smetric_model.designing import plan
from smetric_model.errors import SpecError
from smetric_model.operations import (
    cold_recovery,
    kv_cache_dtype,
    node_loss,
    router_replicas,
    tenant_isolation,
)
from smetric_model.routing.registry import make_policy
from smetric_model.scenario import Scenario
from smetric_model.simulate import engine, reference, simulate_in_detail
from smetric_model.simulate.checks import replay_violations
from smetric_model.simulate.faults import DOWN
from smetric_model.simulate.inputs import Group
from smetric_model.simulate.prepare import prepare
from smetric_model.simulate.steps import decode_tables
from smetric_model.simulate.workload import replayed_trace
from smetric_model.tuning import tune

MS = 10**9
BOTH = pytest.mark.parametrize("run", [reference.run, engine.run])
MIXED = [{"instances": 2}, {"gpu": "H100", "instances": 2, "tp": 2, "nics_per_node": 4}]


def scenario(small_trace, groups=MIXED, **changes):
    content = {
        "workload": {
            "trace": str(small_trace),
            "rate_rps": "trace",
            "warmup_s": 20.0,
            "window_s": 150.0,
            "start": "cold",
        },
        "cluster": {"gpus_per_node": 2},
        "groups": groups,
    }
    return Scenario.from_dict(content).replace(**changes)


def with_models(inputs, models, **engine_changes):
    """Groups of one instance and node each, which differ by their step times."""
    fabric = inputs.fabric._replace(nodes=len(models), instances_per_node=1)
    groups = tuple(
        Group(
            1,
            inputs.engine._replace(**engine_changes),
            model,
            decode_tables(model, inputs.engine.max_running_requests),
            fabric,
            0.0,
            inputs.requests.host_ticks,
        )
        for model in models
    )
    first = groups[0]
    return dataclasses.replace(
        inputs,
        groups=groups,
        engine=first.engine,
        model=first.model,
        decode=first.decode,
        fabric=fabric,
    )


# --- equal groups -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_equal_groups_are_one_group(seed):
    inputs = random_inputs(seed, unequal=False)
    fabric, whole = inputs.fabric, inputs.kinds[0]
    first = fabric.instances_per_node * (fabric.nodes // 2)
    counts = [count for count in (first, fabric.instances - first) if count]
    groups = tuple(whole._replace(instances=count) for count in counts)
    two = dataclasses.replace(inputs, groups=groups)
    assert_equal(engine.run(inputs, caches=True), engine.run(two, caches=True))
    assert_equal(reference.run(inputs), reference.run(two))


@pytest.mark.parametrize("pools", [{}, {"prefill_instances": 3, "decode_instances": 3}])
def test_equal_groups_of_a_scenario_are_one_group(small_trace, pools):
    cluster = {"gpus_per_node": 2, **pools}
    if pools:
        cluster["serving"] = "disaggregated"
    groups = [{"instances": 4}, {"instances": 2, "gpu": "H20", "tp": 1}]
    two = scenario(small_trace, groups, cluster=cluster)
    one = two.replace(groups=None)
    assert one.cluster.instances == 6
    found, expected = simulate_in_detail(two, check=True), simulate_in_detail(one, check=True)
    assert_equal(found.replay, expected.replay)
    assert found.outcome.replace(scenario_id="") == expected.outcome.replace(scenario_id="")


# --- known answers ------------------------------------------------------------------------------


def joined_shorter_queue(rate, slow, fast, most=120):
    """Mean requests of a slow and a fast server, and the slow one's share of the arrivals.

    Stationary law of (requests here, there, who is next where they tie), by balance.
    """

    def at(m, n, tie):
        return (m * most + n) * 2 + tie

    flows = lil_matrix((2 * most * most, 2 * most * most))
    joins = np.zeros(2 * most * most)

    def flow(source, target, speed):
        flows[target, source] += speed
        flows[source, source] -= speed

    for m in range(most):
        for n in range(most):
            for tie in (0, 1):
                here = at(m, n, tie)
                chosen = tie if m == n else int(n < m)
                joins[here] = chosen == 0
                if max(m + (chosen == 0), n + (chosen == 1)) < most:
                    flow(here, at(m + (chosen == 0), n + (chosen == 1), 1 - chosen), rate)
                if m:
                    flow(here, at(m - 1, n, tie), slow)
                if n:
                    flow(here, at(m, n - 1, tie), fast)
    flows[0, :] = 1.0
    right = np.zeros(2 * most * most)
    right[0] = 1.0
    law = spsolve(flows.tocsc(), right)
    m, n = np.divmod(np.arange(2 * most * most) // 2, most)
    return float(law @ m), float(law @ n), float(law @ joins)


def test_the_shorter_queue_of_two_speeds():
    # one request at a time; a token takes 1 ms on one instance, .25 ms on the other
    rate, output = 3.5, np.random.default_rng(2).geometric(1e-3, 400_000)
    arrival = np.cumsum(np.random.default_rng(3).exponential(1 / rate, output.size))
    inputs = inputs_of(
        arrival, 1, output, NOTHING._replace(gap_s=1e-3), instances=2, max_running_requests=1
    )
    inputs = dataclasses.replace(inputs, policy=make_policy("load-balance"))
    inputs = with_models(inputs, [NOTHING._replace(gap_s=s) for s in (1e-3, 0.25e-3)])
    replay = engine.run(inputs)
    slow, fast, share = joined_shorter_queue(rate, 1.0, 4.0, most=60)
    here = replay.instance == 0
    mean, error = mean_and_error(here)
    assert error < 0.01
    assert abs(mean - share) < 3 * error
    for where, number in ((here, slow), (~here, fast)):
        time_s = np.where(where, (replay.done - replay.arrival) / 1e12, 0.0)
        mean, error = mean_and_error(time_s)  # a request: number / rate, by Little's law
        assert error < 0.03 * number / rate
        assert abs(mean - number / rate) < 3 * error
    assert replay_violations(inputs, replay) == []


def test_prompts_at_random_are_an_m_d_1_each():
    # 4,096 tokens take .41 s on one, .2 s on the other; each gets half the requests
    rate, count = 3.4, 200_000
    models = [NOTHING._replace(linear_token_s=s) for s in (1e-4, 5e-5)]
    arrival = np.cumsum(np.random.default_rng(5).exponential(1 / rate, count))
    inputs = inputs_of(arrival, 4096, 1, models[0], instances=2, token_budget=4096)
    inputs = dataclasses.replace(inputs, policy=make_policy("random"))
    inputs = with_models(inputs, models)
    replay = engine.run(inputs)
    for instance, service_s in enumerate((0.4096, 0.2048)):
        rows = np.flatnonzero(replay.instance == instance)
        wait = (replay.first_step - replay.arrival)[rows] / 1e12
        load = rate / 2 * service_s
        mean, error = mean_and_error(wait)
        expected = load * service_s / (2 * (1 - load))  # Pollaczek and Khinchine
        assert error < 0.05 * expected
        assert abs(mean - expected) < 3 * error


@BOTH
def test_each_group_has_its_own_limits(run):
    # three prompts each, at the same moment: one place here, two prompts a step there, where the
    # first begins a step alone
    inputs = inputs_of(
        [0.0] * 6, 64, 1, NOTHING._replace(gap_s=1e-3), instances=2, token_budget=128
    )
    inputs = dataclasses.replace(inputs, policy=make_policy("round-robin"))
    two = with_models(inputs, [inputs.model, inputs.model])
    first = two.groups[0]
    narrow = first._replace(
        engine=first.engine._replace(max_running_requests=1),
        decode=decode_tables(inputs.model, 1),
    )
    replay = run(
        dataclasses.replace(two, groups=(narrow, first), engine=narrow.engine, decode=narrow.decode)
    )
    assert sorted(replay.done[replay.instance == 0]) == [1 * MS, 2 * MS, 3 * MS]
    assert sorted(replay.done[replay.instance == 1]) == [1 * MS, 2 * MS, 2 * MS]


# --- links of unequal nodes -----------------------------------------------------------------------


def two_nodes(prefill_links, decode_links, arrivals, decode=1):
    """A node that prefills and one that decodes; 2.5 MB of line capacity a block between them."""
    step = NOTHING._replace(gap_s=1e-3)
    inputs = inputs_of(arrivals, 1600, 2, step, instances=1 + decode, prefill_instances=1)
    size = np.arange(10_000.0)
    groups = []
    for count, links in ((1, prefill_links), (decode, decode_links)):
        fabric = inputs.fabric._replace(
            nodes=2,
            instances_per_node=count,
            node_nic_bytes_per_s=links * 25e9,
            flow_nic_bytes_per_s=links * 25e9,
            nic_work_idle=size,
            nic_work_busy=size,
            transfer_work_idle=size * 2.5e6,
            transfer_work_busy=size * 2.5e6,
        )
        groups.append(inputs.kinds[0]._replace(instances=count, fabric=fabric))
    return dataclasses.replace(
        inputs,
        groups=tuple(groups),
        fabric=groups[0].fabric,
        policy=make_policy("round-robin"),
    )


@BOTH
@pytest.mark.parametrize(
    ("prefill", "decode", "ms"), [(1, 1, 10), (1, 4, 10), (4, 1, 10), (4, 4, 2.5)]
)
def test_kv_goes_at_the_pace_of_the_slower_node(run, prefill, decode, ms):
    # 250 MB of line capacity, 10 ms at 25 GB/s
    replay = run(two_nodes(prefill, decode, [0.0]))
    assert replay.transfer_done[0] - replay.transfer_start[0] == ms * MS


@BOTH
def test_two_transfers_share_a_wide_link(run):
    replay = run(two_nodes(4, 4, [0.0, 0.0], decode=2))
    took = replay.transfer_done - replay.transfer_start
    # the second begins a step of 1 ms later: 1.5 ms of the first are left then, 3 at half the pace;
    # then 1 ms of the second is left
    assert sorted(took.tolist()) == [4 * MS, 4 * MS]


# --- scenarios ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["smetric", "smetric-slo", "lmetric", "load-balance"])
def test_unequal_instances_keep_all_laws(small_trace, policy):
    asked = scenario(small_trace, **{"router.policy": policy})
    found = simulate_in_detail(asked, check=True)
    groups = found.groups()
    instances = found.outcome.instances
    assert instances["group"].tolist() == [0, 0, 1, 1]
    assert groups["gpu"].tolist() == ["H20", "H100"]
    assert groups["tp"].tolist() == [1, 2]
    assert groups["instances"].tolist() == [2, 2]
    assert groups["requests"].sum() == found.outcome["requests"]
    assert groups["total_tps"].sum() == pytest.approx(found.outcome["total_tps"])
    assert groups["compute_utilisation_ratio"].mean() == pytest.approx(
        found.outcome["compute_utilisation_ratio"]
    )
    served = found.outcome.requests
    first = served[(served["instance"] < 2) & (served["status"] == "served")]
    assert groups["ttft_mean_s"][0] == pytest.approx(first["ttft_s"].mean())
    assert groups["tpot_p90_s"][0] == pytest.approx(np.nanquantile(first["tpot_s"], 0.9))
    inputs = found.prepared.inputs
    assert inputs.node_of.tolist() == [0, 0, 1, 2]  # two GPUs a node
    pools = [kind.engine.pool_tokens for kind in inputs.kinds]
    assert pools[0] != pools[1]
    steps = [int(kind.decode.base[8]) for kind in inputs.kinds]
    assert steps[0] != steps[1]


def test_the_smallest_pool_decides_what_can_be_served(small_trace):
    groups = [{"instances": 2}, {"instances": 1, "kv_pool_tokens": 8_000}]
    asked = scenario(small_trace, groups)
    prepared = prepare(asked, replayed_trace(asked)[0])
    data = prepared.inputs.requests
    too_long = data.prompt_tokens + data.output_tokens > 8_000
    assert too_long.any()
    np.testing.assert_array_equal(data.unservable > 0, too_long)
    assert "the smallest instance's KV pool = 8000 tokens" in prepared.reasons[1]


def test_prefill_and_decode_on_unequal_instances(small_trace):
    groups = [{"instances": 2, "gpu": "H100"}, {"instances": 2}]
    cluster = {
        "serving": "disaggregated",
        "prefill_instances": 2,
        "decode_instances": 2,
        "gpus_per_node": 2,
    }
    found = simulate_in_detail(scenario(small_trace, groups, cluster=cluster), check=True)
    table = found.groups()
    assert table["computed_prompt_tps"][0] > table["computed_prompt_tps"][1] == 0
    assert np.isnan(table["ttft_mean_s"][1])
    assert np.isnan(table["tpot_mean_s"][0])
    assert table["tpot_mean_s"][1] > 0


def test_a_node_that_fails_takes_its_own_instances(small_trace):
    failures = [{"node": 1, "at_s": 50.0, "down_s": 20.0}]
    asked = scenario(small_trace, [{"instances": 3}, *MIXED[1:]], failures=failures)
    prepared = prepare(asked, replayed_trace(asked)[0])
    faults = prepared.inputs.faults
    assert faults.where[faults.what == DOWN].tolist() == [2]  # nodes: 0 0 | 1 | 2 | 3
    instances = simulate_in_detail(asked, check=True).outcome.instances
    assert instances["failures"].tolist() == [0, 0, 1, 0, 0]
    assert instances["down_s"].tolist() == [0, 0, 20, 0, 0]


def test_host_times_are_those_of_the_group(small_trace):
    asked = scenario(small_trace)
    inputs = prepare(asked, replayed_trace(asked)[0]).inputs
    assert all(kind.host_ticks is inputs.requests.host_ticks for kind in inputs.kinds)
    slower = inputs.groups[1]._replace(host_ticks=inputs.requests.host_ticks * 3)
    changed = dataclasses.replace(inputs, groups=(inputs.groups[0], slower))
    one, two = engine.run(inputs), engine.run(changed)
    for run, factor in ((one, 1), (two, 3)):
        there = (run.instance >= 2) & (run.ready >= 0)
        waited = (run.ready - run.placed)[there]
        assert (waited >= factor * inputs.requests.host_ticks[there]).all()


# --- who refuses them -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("predict", predict),
        ("capacity in closed form", predicted_capacity),
        ("capacity in closed form", capacity),
        ("bound", bound),
        ("tune", tune),
        ("plan", plan),
        ("advantage", advantage),
        ("operations node-loss", node_loss),
        ("operations recovery", lambda asked: cold_recovery(asked, "cluster")),
        ("operations routers", router_replicas),
        ("operations tenants", tenant_isolation),
        ("operations kv-dtype", kv_cache_dtype),
        ("this", instance_of),
        ("this", cluster_of),
    ],
)
def test_who_takes_equal_instances_only_says_so(small_trace, name, ask):
    with pytest.raises(SpecError, match=rf"groups = 2 x H20, 2 x \(2 x H100\): {name} takes"):
        ask(scenario(small_trace))


def test_capacity_by_simulation_takes_them(small_trace):
    asked = scenario(small_trace, **{"workload.loop": "open"})
    found = capacity(asked, "simulate", seeds=1, tolerance=0.3, start_rps=0.5)
    assert found.rate_rps > 0


def test_groups_on_the_command_line(small_trace):
    options = ["--trace", str(small_trace), "--window", "60", "--warmup", "0"]
    runner = CliRunner()
    result = runner.invoke(command, [*options, "--group", "H20", "2", "--group", "H100", "1"])
    assert result.exit_code == 0, result.output
    table = result.output[result.output.index("Groups of instances") :]
    assert "H20" in table
    assert "H100" in table
    wrong = runner.invoke(command, [*options, "--group", "H20", "2", "--instances", "2"])
    assert wrong.exit_code == 2
    assert "--group and --instances exclude each other" in wrong.output
