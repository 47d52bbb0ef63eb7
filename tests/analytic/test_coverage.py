"""No key of a scenario is ignored in silence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from smetric_model.analytic.cluster_capacity import predicted_capacity
from smetric_model.analytic.coverage import (
    COVERAGE,
    coverage_markdown,
    left_out,
    notes_left_out,
    too_far,
    two_states,
)
from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import cluster_form, predict
from smetric_model.scenario import Scenario
from smetric_model.schema import load_schema
from smetric_model.workload.trace import load_trace

ROOT = Path(__file__).parents[2]
BASE = Scenario.from_toml(ROOT / "data" / "scenarios" / "agents-small.toml")
TRACE = load_trace(ROOT / "data" / "traces" / "agents-small.parquet")

#: key -> changes under which it is asked for, and left out
NOTED = {
    "engine.kv_admission": {"engine.kv_admission": "preempt"},
    "global_tier.fetch": {"global_tier.fetch": "stall"},
    "global_tier.peer_fetch": {"global_tier.peer_fetch": True},
    "global_tier.eviction": {"global_tier.eviction": "dead-first"},
    "local_tier.eviction": {"local_tier.eviction": "dead-first"},
    "workload.start": {"workload.start": "cold", "workload.session_start": "poisson"},
    "workload.loop": {"workload.loop": "open"},
    "client.timeout_s": {"client.timeout_s": 5.0},
    "client.retries": {"client.timeout_s": 5.0, "client.retries": 2},
    "client.backoff_s": {"client.timeout_s": 5.0, "client.retries": 2, "client.backoff_s": 1.0},
    "router.tie_break": {"router.policy": "bailian", "router.tie_break": "first"},
    "router.load_indicator": {"router.load_indicator": "unprefilled_tokens"},
    "router.hit_index": {"router.hit_index": "blind"},
    "router.hit_index_age_s": {"router.hit_index": "delayed", "router.hit_index_age_s": 60.0},
    "router.load_source": {"router.load_source": "scraped"},
    "router.load_age_s": {"router.load_age_s": 10.0},
    "router.detection_s": {"failures": [{"instance": 1, "at_s": 100.0}]},
    "router.replicas": {"router.replicas": 4},
    "failures.*": {"failures": [{"instance": 1, "at_s": 100.0}]},
}

#: key -> another value, and what else it takes to matter; same workload, LLM and engine
MODELLED = {
    "cluster.instances": (64, {}),
    "cluster.gpus_per_node": (4, {}),
    "cluster.nics_per_node": (8, {}),
    "cluster.nic_bytes_per_s": (2e9, {}),
    "cluster.nic_efficiency": (0.2, {}),
    "global_tier.bytes_per_node": (0.0, {}),
    "global_tier.write": ("back", {"global_tier.bytes_per_node": 20e9}),
    "global_tier.recompute_if_faster": (False, {"cluster.nic_bytes_per_s": 4e9}),
    "workload.rate_rps": (5.0, {}),
    "workload.window_s": (300.0, {"workload.start": "cold"}),
    "workload.warmup_s": (100.0, {"workload.start": "cold"}),
    "router.policy": ("load-balance", {}),
    "router.overload": (1.0, {}),
    "router.hit_ratio": (0.95, {"cluster.instances": 16}),
    "router.overload_floor": (20.0, {}),
    "router.subtract_shared_prefix": (True, {"cluster.instances": 16, "router.hit_ratio": 0.9}),
    "router.hit_weight": (0.2, {"router.policy": "bailian"}),
    "router.load_normalisation": ("max", {"router.policy": "bailian"}),
    "router.count_self": (False, {"router.policy": "lmetric"}),
    "slo.ttft_base_s": (0.1, {}),
    "slo.ttft_per_prompt_token_s": (0.0, {"slo.ttft_base_s": 1.0}),
    "slo.tpot_s": (0.01, {}),
    "slo.attainment": (0.9999, {}),
}
#: what the workload's demand is worked out from: other tests hold it, or it takes another workload
_OF_DEMAND = ("llm.", "engine.", "workload.trace", "workload.preset")
#: both pools have tests of their own; the DRAM is the limit of the global tier
_ELSEWHERE = {
    *("cluster.serving", "cluster.prefill_instances", "cluster.decode_instances"),
    "cluster.dram_bytes_per_node",
}


@cache
def demand():
    return demand_of(BASE, TRACE)


@cache
def base():
    return predict(BASE, demand=demand())


def asked(**changes):
    return predict(BASE.replace(**changes), demand=demand())


def keys() -> list[str]:
    found = []
    for name, field in Scenario.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += [f"{name}.{key}" for key in kind.model_fields]
        else:
            found.append(f"{name}.*" if name in ("groups", "failures") else name)
    return found


def test_every_key_of_a_scenario_has_its_entry():
    assert sorted(COVERAGE) == sorted(keys())


def test_the_documentation_has_the_table():
    assert coverage_markdown() in (ROOT / "docs" / "cluster-model.md").read_text()


def test_every_key_is_held_by_a_test():
    assert set(NOTED) == {key for key, one in COVERAGE.items() if one.predict == "noted"}
    modelled = {
        key
        for key, one in COVERAGE.items()
        if one.predict == "modelled" and not key.startswith(_OF_DEMAND)
    }
    assert set(MODELLED) == modelled - _ELSEWHERE


@pytest.mark.parametrize("key", NOTED)
def test_what_is_left_out_is_named(key):
    scenario = BASE.replace(**NOTED[key])
    assert key.removesuffix(".*") in left_out(scenario)
    assert not left_out(BASE)
    (note,) = notes_left_out(scenario)
    assert note in str(predict(scenario, demand=demand())["note"])
    if COVERAGE[key].plan == "noted":
        assert key.removesuffix(".*") in left_out(scenario, policy="")
        assert key.removesuffix(".*") in str(predict(scenario, "tiers", demand=demand())["note"])
    if COVERAGE[key].plan == "unused":
        assert key.removesuffix(".*") not in left_out(scenario, policy="")


@pytest.mark.parametrize("key", MODELLED)
def test_what_is_modelled_moves_the_answer(key):
    value, others = MODELLED[key]
    scenario = BASE.replace(**others)
    before = predict(scenario, demand=demand()).to_dict()
    after = predict(scenario.replace(**{key: value}), demand=demand()).to_dict()
    ignored = ("scenario_id", "arrival_rate_rps", "warmup_s", "window_s", "requests", "policy")
    if key == "slo.attainment":  # the wanted share is no figure of an outcome: it says what binds
        assert before["binding_resource"] != after["binding_resource"]
    assert any(before[name] != after[name] for name in before if name not in ignored)


@pytest.mark.parametrize(
    ("near", "far"),
    [
        ({"client.timeout_s": 1e5}, {"client.timeout_s": 5.0}),
        ({"router.load_age_s": 0.01}, {"router.load_age_s": 10.0}),
        (
            {"router.hit_index": "delayed", "router.hit_index_age_s": 1e-3},
            {"router.hit_index": "delayed", "router.hit_index_age_s": 60.0},
        ),
        (
            {"global_tier.fetch": "stall"},
            {
                "global_tier.fetch": "stall",
                "router.policy": "load-balance",
                "cluster.nic_bytes_per_s": 16e9,
                "global_tier.recompute_if_faster": False,
            },
        ),
        (
            {"failures": [{"instance": 0, "at_s": 1e6}]},
            {"failures": [{"instance": 0, "at_s": 950.0}]},
        ),
        (
            {"global_tier.peer_fetch": True},
            {
                "global_tier.peer_fetch": True,
                "router.policy": "load-balance",
                "global_tier.bytes_per_node": 0.0,
            },
        ),
        (
            {"router.replicas": 2, "router.load_source": "scraped", "workload.rate_rps": 1.0},
            {"router.replicas": 8},
        ),
    ],
)
def test_an_answer_is_invalid_where_what_is_left_out_matters(near, far):
    assert asked(**near)["valid"] is True
    row = asked(**far)
    assert row["valid"] is False
    assert np.isfinite(row.number("total_within_slo_tps"))


def test_preemption_is_invalid_where_the_pool_is_tight():
    cluster = cluster_form(BASE.replace(**{"engine.kv_admission": "preempt"}), demand())
    state = cluster.at(3.0)
    latencies = {"fetch_mean_s": 0.0, "tpot_p99_s": 0.01, "ttft_p99_s": 1.0}
    assert state.pinned_tokens < 0.5 * demand().pool_tokens
    assert too_far(cluster, state, latencies) == ()
    tight = replace(state, pinned_tokens=0.6 * demand().pool_tokens)
    (reason,) = too_far(cluster, tight, latencies)
    assert "60% of the pool" in reason


def test_a_policy_that_does_not_look_is_not_excused():
    blind = {"router.replicas": 8, "router.load_age_s": 9.0, "router.hit_index": "blind"}
    assert left_out(BASE.replace(**blind, **{"router.policy": "random"})) == ()
    assert left_out(BASE.replace(**blind, **{"router.policy": "load-balance"})) == (
        "router.load_age_s",
        "router.replicas",
    )
    assert left_out(BASE.replace(**blind, **{"cluster.instances": 1})) == ()


def test_capacity_does_not_mistake_invalid_for_unstable():
    patient = predicted_capacity(BASE, demand=demand())
    hasty = predicted_capacity(BASE.replace(**{"client.timeout_s": 1.0}), demand=demand())
    assert hasty.rate_rps == pytest.approx(patient.rate_rps)
    assert hasty.outcome["valid"] is False


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "cluster.serving": "disaggregated",
            "cluster.instances": None,
            "cluster.prefill_instances": 16,
            "cluster.decode_instances": 16,
            "workload.rate_rps": 2.0,
        },
    ],
    ids=["colocated", "disaggregated"],
)
def test_the_schema_says_which_columns_are_filled(changes):
    row = asked(**changes)
    for name, column in load_schema().items():
        if column.kind != "number" or (column.group == "pools" and not changes):
            continue
        assert np.isfinite(row.number(name)) == ("predict" in column.verbs), name


def test_a_cluster_without_host_memory_has_no_tier():
    row = asked(**{"cluster.dram_bytes_per_node": 0.0, "global_tier.bytes_per_node": 0.0})
    assert row.number("global_ratio") == 0


def test_hardly_any_requests_are_no_numbers_trouble():
    row = asked(**{"workload.rate_rps": 1e-4, "cluster.instances": 1000})
    assert row.number("imbalance_requests_60s_p99") <= 1000


def test_a_cluster_that_its_links_cannot_fill_again_may_have_two_states():
    demand = demand_of(BASE, TRACE)

    def reasons(nic_bytes_per_s, share):
        """At a share of the largest stable rate."""
        scenario = BASE.replace(**{"cluster.nic_bytes_per_s": nic_bytes_per_s})
        cluster = cluster_form(scenario, demand)
        state = cluster.at(0.5)
        most = cluster.instances * state.loaded.instance.stability_rps
        return two_states(cluster, cluster.at(share * most))

    assert reasons(400e9, 0.75) == ()
    (reason,) = reasons(25e9, 0.75)
    assert "full KV pools" in reason
    # with time to drain there is one state
    assert reasons(25e9, 0.3) == ()
    # nobody fetches: nothing to say
    assert two_states(*_without_tier(demand)) == ()


def _without_tier(demand):
    cluster = cluster_form(BASE.replace(**{"global_tier.bytes_per_node": 0.0}), demand)
    return cluster, cluster.at(1.0)
