"""The capacity plan: identities between its numbers, and what it says where there is no answer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from smetric_model.analytic.demand import demand_of
from smetric_model.analytic.predict import Prediction
from smetric_model.errors import SpecError
from smetric_model.planning import ENDS, Plan, plan
from smetric_model.planning.capacity import capacity
from smetric_model.planning.tiers import fetch_advice
from smetric_model.scenario import Scenario
from smetric_model.workload.trace import Trace, load_trace

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "data" / "scenarios" / "agents-small.toml"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario.from_toml(SHIPPED)


@pytest.fixture(scope="module")
def trace(scenario: Scenario) -> Trace:
    return load_trace(scenario.trace_path())


@pytest.fixture(scope="module")
def shipped(scenario: Scenario, trace: Trace) -> Plan:
    return plan(scenario, trace)


def test_more_reuse_never_serves_less(shipped: Plan) -> None:
    ends = [shipped.ends[name] for name in ENDS]
    for key in ("reused_ratio", "saturation_rps", "peak_within_slo_tps", "attainment_rps"):
        values = [getattr(end, key) for end in ends]
        assert values == sorted(values), key
    assert ends[0].reused_ratio == 0
    needed = [end.instances_needed for end in ends]
    assert needed == sorted(needed, reverse=True)


def test_rates_are_ordered(shipped: Plan) -> None:
    for end in shipped.ends.values():
        assert end.attainment_rps is not None
        assert 0 < end.attainment_rps <= end.saturation_rps * (1 + 1e-9)
        assert end.peak_rps <= end.saturation_rps
        assert end.peak_within_slo_tps <= end.saturation_tps
        assert max(end.within_slo_tps) <= end.peak_within_slo_tps * (1 + 1e-9)
        assert all(0 <= share <= 1 for share in end.within_slo_ratio)


def test_the_attainment_rate_attains_and_a_little_more_does_not(
    shipped: Plan, scenario: Scenario, trace: Trace
) -> None:
    demand = demand_of(scenario, trace)
    for name in ENDS:
        prediction = Prediction(scenario, demand, name)
        rate = shipped.ends[name].attainment_rps
        assert rate is not None
        assert prediction.within_slo(rate)[0] >= scenario.slo.attainment
        assert prediction.within_slo(1.03 * rate)[0] < scenario.slo.attainment


def test_the_fewest_instances_suffice_and_one_less_does_not(
    shipped: Plan, scenario: Scenario, trace: Trace
) -> None:
    demand = demand_of(scenario, trace)
    needed = shipped.ends["tiers"].instances_needed
    assert needed is not None
    assert shipped.rate_rps is not None
    for instances, enough in ((needed, True), (needed - 1, False)):
        other = scenario.replace(**{"cluster.instances": instances})
        share, _ = Prediction(other, demand, "tiers").within_slo(shipped.rate_rps)
        assert (share >= scenario.slo.attainment) is enough


def test_a_larger_cluster_serves_in_proportion(scenario: Scenario, trace: Trace) -> None:
    """Without links between nodes, capacity without reuse is exactly proportional."""
    demand = demand_of(scenario, trace)
    rates = []
    for instances in (8, 16):
        other = scenario.replace(**{"cluster.instances": instances})
        rates.append(Prediction(other, demand, "none").stability_rps)
    assert rates[1] == pytest.approx(2 * rates[0])


def test_tiers_and_links(shipped: Plan) -> None:
    tiers = shipped.tiers
    sizes = list(tiers.global_bytes.values())
    assert sizes == sorted(sizes)
    assert 0 < tiers.pinned_bytes < tiers.local_bytes
    total = tiers.local_ratio + tiers.global_ratio
    assert total == pytest.approx(shipped.ends["ideal"].reused_ratio, abs=0.005)
    # bytes per second are cluster traffic over nodes, by hand
    assert tiers.link_bytes_per_s_per_node < tiers.link_capacity_bytes_per_s_per_node
    fetch = shipped.fetch
    assert fetch is not None
    size = fetch.prefix_tokens * shipped.instance["kv_bytes_per_token"]
    assert fetch.break_even_bytes_per_s == pytest.approx(size / fetch.recompute_s)


def test_a_slow_link_makes_reuse_a_loss_and_the_plan_says_so(
    scenario: Scenario, trace: Trace
) -> None:
    slow = scenario.replace(**{"cluster.nic_bytes_per_s": 1e8, "cluster.nic_efficiency": 1.0})
    result = plan(slow, trace)
    assert result.fetch is not None
    assert "recomputing is faster" in result.fetch.verdict
    assert result.ends["ideal"].binding_resource == "nic"
    assert result.ends["ideal"].saturation_rps < result.ends["tiers"].saturation_rps * 1.001


def test_no_rate_means_capacity_only(scenario: Scenario, trace: Trace) -> None:
    own_clocks = Trace(
        trace.requests,
        trace.tree,
        trace.block_tokens,
        "per-session",
        trace.report,
        trace.source,
        trace.format,
    )
    result = plan(scenario.replace(**{"workload.rate_rps": "trace"}), own_clocks)
    assert result.rate_rps is None
    assert all(end.instances_needed is None for end in result.ends.values())
    assert any("no rate" in note for note in result.notes)
    assert result.ends["ideal"].attainment_rps is not None


def test_an_slo_that_nothing_meets(scenario: Scenario, trace: Trace) -> None:
    result = plan(scenario.replace(**{"slo.tpot_s": 0.001}), trace)
    for end in result.ends.values():
        assert end.attainment_rps is None
        assert end.instances_needed is None
        assert end.limited_by.startswith("no rate: even idle, ")
        assert end.tpot_ceiling_rps == 0
        assert end.saturation_tps > 0


def test_an_llm_that_does_not_fit(scenario: Scenario, trace: Trace) -> None:
    large = scenario.replace(
        **{"llm.name": "Qwen3-235B-A22B", "llm.weight_dtype": None, "llm.kv_dtype": None}
    )
    with pytest.raises(SpecError, match=r"GiB are missing .* smallest tp that fits is 8"):
        plan(large, trace)


def test_everything_is_plain_for_json(shipped: Plan) -> None:
    def leaves(value: object) -> list[object]:
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in leaves(item)]
        if isinstance(value, list | tuple):
            return [leaf for item in value for leaf in leaves(item)]
        return [value]

    for leaf in leaves(shipped.to_dict()):
        assert leaf is None or isinstance(leaf, str | int | float | bool), leaf
        assert not isinstance(leaf, np.generic)
    assert math.isfinite(shipped.elapsed_s)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "unservable", "rate"),
    [
        ("mooncake-conversation.jsonl.gz", 0.0, True),
        # 7.8 % of the requests exceed 262,144 tokens or one H20's pool
        ("weka-claude-code-120.jsonl.gz", 0.078, False),
    ],
)
def test_the_shared_traces(
    shared_dir: Path, scenario: Scenario, name: str, unservable: float, rate: bool
) -> None:
    result = plan(
        scenario.replace(**{"workload.rate_rps": "trace"}), load_trace(shared_dir / "traces" / name)
    )
    assert result.workload["unservable_ratio"] == pytest.approx(unservable, abs=0.001)
    assert (result.rate_rps is not None) is rate
    ends = [result.ends[end].saturation_tps for end in ENDS]
    assert ends == sorted(ends)
    assert result.ends["ideal"].peak_within_slo_tps > 2e4


def test_tokens_are_rate_times_the_mean_request(shipped: Plan) -> None:
    """Also where the law of requests is worked out on representatives of a longer trace."""
    workload = shipped.workload
    assert workload["requests"] > 4096
    mean = workload["prompt_tokens_mean"] + workload["output_tokens_mean"]
    for end in shipped.ends.values():
        assert end.saturation_tps == pytest.approx(end.saturation_rps * mean, rel=1e-12)
        assert end.attainment_rps is not None
        assert end.attainment_tps == pytest.approx(end.attainment_rps * mean, rel=1e-12)
        for rate, tps in zip(end.rates_rps, end.within_slo_tps, strict=True):
            assert tps <= rate * mean * (1 + 1e-12)


def _azure(folder: Path, requests: int) -> Path:
    rows = "".join(f"2023-11-16 18:00:{i:02d}.0000000,{900 + i},20\n" for i in range(requests))
    path = folder / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    return path


def test_unknown_reuse_is_not_called_none(scenario: Scenario, tmp_path: Path) -> None:
    azure = load_trace(_azure(tmp_path, 30))
    result = plan(scenario.replace(**{"workload.rate_rps": "trace"}), azure)
    assert result.workload["ideal_reuse_ratio"] is None
    assert any("carries no block ids: its reuse is unknown" in note for note in result.notes)
    assert result.rate_rps == pytest.approx(1.0)


def test_one_request_has_no_rate(scenario: Scenario, tmp_path: Path) -> None:
    one = load_trace(_azure(tmp_path, 1))
    result = plan(scenario.replace(**{"workload.rate_rps": "trace"}), one)
    assert result.rate_rps is None
    assert any("its requests all arrive at once" in note for note in result.notes)


def test_one_node_fetches_nothing_over_rdma(scenario: Scenario, trace: Trace) -> None:
    alone = scenario.replace(**{"cluster.instances": 8})
    advice = fetch_advice(Prediction(alone, demand_of(alone, trace), "ideal"))
    assert advice is not None
    assert advice.verdict.startswith("fetch, from the node's DRAM")


def test_not_quite_everybody_is_not_everybody(scenario: Scenario, trace: Trace) -> None:
    strict = scenario.replace(**{"slo.attainment": 1.0})
    end = capacity(Prediction(strict, demand_of(strict, trace), "ideal"), None, lambda _: None)
    assert end.attainment_rps is None
    assert "even idle, >99.9% of requests" in end.limited_by


def test_no_end_reuses_more_than_there_is(shipped: Plan) -> None:
    ideal = shipped.workload["ideal_reuse_ratio"]
    assert shipped.ends["ideal"].reused_ratio == pytest.approx(ideal, rel=1e-12)
    assert shipped.ends["tiers"].reused_ratio <= ideal * (1 + 1e-12)


def test_instances_for_a_rate_no_cluster_is_built_for(scenario: Scenario, tmp_path: Path) -> None:
    demand = demand_of(scenario, load_trace(_azure(tmp_path, 30)))
    end = capacity(Prediction(scenario, demand, "none"), 1e8, lambda _: None)
    assert end.attainment_rps is not None
    one = end.attainment_rps / scenario.cluster.instances
    assert end.instances_needed == pytest.approx(1e8 / one, rel=0.01)
