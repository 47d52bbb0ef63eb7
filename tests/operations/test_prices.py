"""Routers, tenants, KV types, unequal instances: no price where nothing differs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from smetric_model.analytic.cluster_capacity import predicted_capacity
from smetric_model.analytic.demand import Demand, demand_of
from smetric_model.errors import SpecError
from smetric_model.operations import (
    Finding,
    kv_cache_dtype,
    mixed_cluster,
    router_replicas,
    salted,
    tenant_isolation,
)
from smetric_model.operations.routers import own_view_overload
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import Trace

LAW = np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.05, 0.05])
MEAN = float(LAW @ np.arange(7))


def test_one_router_sees_the_loads_themselves() -> None:
    above = LAW[np.arange(7) > 2 * MEAN].sum()
    assert own_view_overload(LAW, MEAN, 2.0, 0.0, 1) == pytest.approx(above)
    assert own_view_overload(LAW, MEAN, math.inf, 0.0, 4) == 0
    assert own_view_overload(LAW, MEAN, 2.0, 10.0, 4) == 0


def test_what_several_routers_see_is_what_is_drawn() -> None:
    rng = np.random.default_rng(0)
    loads = rng.choice(7, size=200_000, p=LAW)
    seen = rng.binomial(loads, 1 / 4)
    drawn = (seen > 2 * MEAN / 4).mean()
    assert own_view_overload(LAW, MEAN, 2.0, 0.0, 4) == pytest.approx(drawn, abs=4e-3)


def test_more_routers_move_more(scenario: Scenario, demand: Demand) -> None:
    found = router_replicas(scenario, (1, 2, 8), seeds=0, demand=demand)
    seen = found.tables["routers"]["seen_overloaded_ratio"].to_numpy()
    assert (np.diff(seen) > 0).all()
    scraped = scenario.replace(**{"router.load_source": "scraped"})
    same = router_replicas(scraped, (1, 8), seeds=0, demand=demand).tables["routers"]
    assert same["seen_overloaded_ratio"].nunique() == 1
    other = scenario.replace(**{"router.policy": "bailian"})
    unknown = router_replicas(other, (1, 8), seeds=0, demand=demand)
    assert unknown.tables["routers"]["seen_overloaded_ratio"].isna().all()
    assert "no closed form" in unknown.notes[0]


def test_one_router_has_no_price(scenario: Scenario, demand: Demand) -> None:
    found = router_replicas(scenario, (1, 8), seeds=2, demand=demand)
    assert found["lost_ratio_1_routers"] == 0
    moved = found["migrated_overload_ratio_8_routers"]
    assert moved > found["migrated_overload_ratio_1_routers"]
    with pytest.raises(SpecError, match="replicas = 0"):
        router_replicas(scenario, (0,), demand=demand)
    with pytest.raises(SpecError, match="ages_s = -1"):
        router_replicas(scenario, (1,), (-1.0,), demand=demand)


def test_one_tenant_has_no_price(scenario: Scenario, trace: Trace) -> None:
    found = tenant_isolation(scenario, 1, trace=trace)
    assert found["salted_more_ratio"] == found["partitioned_more_ratio"] == 0
    assert found["salted_ideal_reuse_ratio"] == found["shared_ideal_reuse_ratio"]


def test_tenants_apart_reuse_less_and_need_more(scenario: Scenario, trace: Trace) -> None:
    found = tenant_isolation(scenario, 4, 1.0, seeds=1, trace=trace)
    assert found["salted_ideal_reuse_ratio"] < found["shared_ideal_reuse_ratio"]
    assert found["salted_instances"] >= found["shared_instances"]
    assert found["partitioned_instances"] > found["shared_instances"]
    table = found.tables["partitions"]
    assert table["rate_rps"].sum() == pytest.approx(6.0)
    assert table["instances"].sum() == found["partitioned_instances"]
    reuse = {
        name: found[f"simulated_{name}_local_ratio"] + found[f"simulated_{name}_global_ratio"]
        for name in ("shared", "salted")
    }
    assert reuse["salted"] < reuse["shared"]


def test_salting_changes_who_shares_and_nothing_else(scenario: Scenario, trace: Trace) -> None:
    apart = salted(trace, 8, seed=1)
    assert len(apart) == len(trace)
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert sorted(apart.column(name)) == sorted(trace.column(name))
    few, many = (demand_of(scenario, salted(trace, k)).reusable_tokens.sum() for k in (2, 64))
    whole = demand_of(scenario, trace).reusable_tokens.sum()
    assert many < few < whole
    for wrong in ({"tenants": 0}, {"tenants": 2, "zipf_exponent": -1.0}):
        with pytest.raises(SpecError):
            salted(trace, **wrong)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def same_dtype(scenario: Scenario, trace: Trace) -> Finding:
    return kv_cache_dtype(scenario, "bf16", trace=trace)


def test_the_same_type_changes_nothing(same_dtype: Finding) -> None:
    assert same_dtype["instances_saved"] == 0
    assert same_dtype["other_attainment_rps"] == same_dtype["own_attainment_rps"]


def test_fp8_halves_a_token(scenario: Scenario, trace: Trace) -> None:
    given = scenario.replace(**{"engine.kv_pool_tokens": 250_000})
    found = kv_cache_dtype(given, trace=trace)
    assert found["other_kv_bytes_per_token"] == found["own_kv_bytes_per_token"] / 2
    assert found["own_pool_tokens"] == 250_000
    assert found["other_pool_tokens"] == 500_000
    assert found["other_attainment_rps"] > found["own_attainment_rps"]
    assert found["instances_saved"] >= 0
    json.dumps(found.to_dict(), allow_nan=False, default=float)
    with pytest.raises(SpecError, match="kv_dtype"):
        kv_cache_dtype(scenario, "fp3", trace=trace)


def test_alike_instances_are_a_sum(scenario: Scenario, trace: Trace, demand: Demand) -> None:
    groups = [{"gpu": "H20", "instances": 10}, {"tp": 1, "instances": 6}]
    found = mixed_cluster(scenario.replace(groups=groups), trace=trace)
    whole = predicted_capacity(scenario, demand=demand).rate_rps
    assert found["sum_attainment_rps"] == pytest.approx(whole)
    assert found["equal_share_attainment_rps"] == pytest.approx(whole)
    assert found["equal_load_attainment_rps"] == pytest.approx(whole, rel=0.03)
    assert found["bound_rps"] == pytest.approx(whole, rel=0.05)
    assert found["bound_rps"] >= found["sum_attainment_rps"]


def test_unequal_instances_are_simulated(scenario: Scenario, trace: Trace) -> None:
    groups = [{"gpu": "H20", "instances": 10}, {"tp": 1, "instances": 6}]
    short = scenario.replace(groups=groups).replace(
        **{"workload.window_s": 200.0, "workload.warmup_s": 200.0}
    )
    found = mixed_cluster(short, seeds=1, trace=trace)
    # ten of sixteen get ten sixteenths, by either source; at equal shares the SLO is nearly met
    for source in ("equal_load", "simulated"):
        assert found[f"{source}_share_0_ratio"] == pytest.approx(10 / 16, abs=0.04)
        shares = [found[f"{source}_share_{group}_ratio"] for group in (0, 1)]
        assert sum(shares) == pytest.approx(1.0, abs=0.02)
    assert found["simulated_equal_share_within_slo_ratio"] > 0.9
    assert set(found.tables["simulated"]["at"]) == {"equal_load", "equal_share"}
    assert any("Simulated under smetric" in text for text in found.words)


def test_unequal_instances_are_in_order(scenario: Scenario, trace: Trace) -> None:
    groups = [{"instances": 8}, {"gpu": "H100", "instances": 8}]
    found = mixed_cluster(scenario.replace(groups=groups), trace=trace)
    equal, balanced, alone, bound = (
        found[name]
        for name in (
            "equal_share_attainment_rps",
            "equal_load_attainment_rps",
            "sum_attainment_rps",
            "bound_rps",
        )
    )
    assert 0 < equal < alone <= bound
    assert 0 < balanced <= bound * 1.005
    with pytest.raises(SpecError, match="at least one table"):
        mixed_cluster(scenario, trace=trace)
    pools = {"serving": "disaggregated", "prefill_instances": 8, "decode_instances": 8}
    with pytest.raises(SpecError, match="answers 'colocated'"):
        mixed_cluster(scenario.replace(groups=groups, cluster=pools), trace=trace)


def test_figures_know_their_source(same_dtype: Finding) -> None:
    assert {figure.source for figure in same_dtype.figures} == {"closed form"}
    with pytest.raises(KeyError, match="instances_saved"):
        same_dtype["nothing"]
