"""Laws of the memory model, the answers known from arithmetic, and published start-up logs."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smetric_model.analytic import memory
from smetric_model.analytic.engine_memory import activation_peak_bytes, engine_memory
from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec, tensor_parallel_problem
from smetric_model.catalog.llm import get_llm, llm_names
from smetric_model.catalog.llm_config import llm_from_config
from smetric_model.errors import SpecError
from smetric_model.units import GIB


def instance(name: str, **settings: Any) -> InstanceSpec:
    return InstanceSpec(get_llm(name), get_gpu(settings.pop("gpu", "H20")), **settings)


@st.composite
def splits(draw: st.DrawFn) -> InstanceSpec:
    """Any model of the catalog, split in any way it can be."""
    llm = get_llm(draw(st.sampled_from(llm_names())))
    pairs = [
        (tp, ep)
        for tp in (1, 2, 4, 8, 16)
        for ep in (1, 2, 4, 8, 16)
        if tensor_parallel_problem(llm, tp, ep) is None
    ]
    tp, ep = draw(st.sampled_from(pairs))
    return InstanceSpec(
        llm,
        get_gpu(draw(st.sampled_from(["H20", "H100", "L40S"]))),
        tp=tp,
        ep=ep,
        weight_dtype=draw(st.sampled_from([None, "bf16", "fp8", "int4"])),
        kv_dtype=draw(st.sampled_from([None, "fp8"])),
        memory_utilisation=draw(st.sampled_from([0.5, 0.9, 1.0])),
    )


class TestWeights:
    @given(splits())
    def test_all_gpus_together_hold_the_model_and_the_copies(self, spec: InstanceSpec) -> None:
        whole = memory.weight_bytes_per_gpu_by_group(replace(spec, tp=1, ep=1))
        each = memory.weight_bytes_per_gpu_by_group(spec)
        copies = dict.fromkeys(whole, 1.0)
        copies.update(dict.fromkeys(("norms", "router", "attention_replicated"), float(spec.tp)))
        if spec.llm.attention.kind == "gqa":
            copies["attention_kv"] = max(1.0, spec.tp / spec.llm.attention.kv_heads)
        for group, total in whole.items():
            held = spec.tp * each[group]
            assert held == pytest.approx(total * copies[group])

    @given(splits())
    def test_more_gpus_never_hold_more_each(self, spec: InstanceSpec) -> None:
        one = replace(spec, tp=1, ep=1)
        assert memory.weight_bytes_per_gpu(spec) <= memory.weight_bytes_per_gpu(one) * (1 + 1e-12)

    @pytest.mark.parametrize("name", llm_names())
    def test_sixteen_bit_weights_take_two_bytes_each(self, name: str) -> None:
        spec = instance(name, weight_dtype="bf16")
        assert memory.weight_bytes_per_gpu(spec) == 2 * spec.llm.params.total

    @pytest.mark.parametrize("name", llm_names())
    def test_narrower_types_take_less(self, name: str) -> None:
        sizes = [
            memory.weight_bytes_per_gpu(instance(name, weight_dtype=dtype))
            for dtype in ("bf16", "fp8", "int4")
        ]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[1] > get_llm(name).params.total  # embeddings, norms and scales come on top

    def test_whole_experts_or_slices_make_no_difference_where_they_divide(self) -> None:
        sliced = memory.expert_weight_bytes_per_gpu(instance("Qwen3-235B-A22B", tp=8))
        for ep in (2, 4, 8):
            whole = memory.expert_weight_bytes_per_gpu(instance("Qwen3-235B-A22B", tp=8, ep=ep))
            assert whole == pytest.approx(sliced)

    @pytest.mark.parametrize(("tp", "ep", "slices_of_experts"), [(4, 4, 3), (8, 4, 1.5), (8, 8, 2)])
    def test_experts_that_do_not_divide_fill_the_fullest_gpu(
        self, tp: int, ep: int, slices_of_experts: float
    ) -> None:
        config = {
            "model_type": "qwen3_moe",
            "hidden_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "head_dim": 32,
            "moe_intermediate_size": 64,
            "num_experts": 10,
            "num_experts_per_tok": 2,
            "vocab_size": 512,
            "max_position_embeddings": 1024,
        }
        llm = llm_from_config(config, "ten experts", "config.json")
        spec = InstanceSpec(llm, get_gpu("H20"), tp=tp, ep=ep)
        expert_bytes = 3 * 256 * 64 * 2
        held = memory.expert_weight_bytes_per_gpu(spec)
        assert held == pytest.approx(3 * slices_of_experts * expert_bytes)
        assert tp * held > 2 * llm.params.routed_experts


class TestKv:
    @given(splits())
    def test_splitting_never_helps_the_instance_and_never_hurts_a_gpu(
        self, spec: InstanceSpec
    ) -> None:
        one = replace(spec, tp=1, ep=1)
        assert memory.kv_bytes_per_token(spec) >= memory.kv_bytes_per_token(one)
        assert memory.kv_bytes_per_token_per_gpu(spec) <= memory.kv_bytes_per_token_per_gpu(one)
        if spec.llm.attention.kind == "gqa" and spec.tp <= spec.llm.attention.kv_heads:
            assert memory.kv_bytes_per_token(spec) == memory.kv_bytes_per_token(one)

    @given(splits())
    def test_half_the_element_is_half_the_cache(self, spec: InstanceSpec) -> None:
        wide, narrow = replace(spec, kv_dtype="bf16"), replace(spec, kv_dtype="fp8")
        assert memory.kv_bytes_per_token(wide) == 2 * memory.kv_bytes_per_token(narrow)

    @pytest.mark.parametrize(
        ("name", "expected"), [("Qwen3-30B-A3B", 98_304), ("Qwen3-32B", 262_144)]
    )
    def test_known_answers(self, name: str, expected: int) -> None:
        assert memory.kv_bytes_per_token(instance(name)) == expected

    def test_tensor_parallel_beyond_the_kv_heads(self) -> None:
        each = {
            tp: memory.kv_bytes_per_token_per_gpu(instance("Qwen3-30B-A3B", tp=tp))
            for tp in (1, 2, 4, 8)
        }
        assert each == {1: 98_304, 2: 49_152, 4: 24_576, 8: 24_576}
        assert memory.kv_bytes_per_token(instance("Qwen3-30B-A3B", tp=8)) == 196_608

    def test_latent_cache(self) -> None:
        one = memory.kv_bytes_per_token(instance("DeepSeek-V3"))
        assert one == 61 * (512 + 64) * 2
        assert memory.kv_bytes_per_token(instance("DeepSeek-V3", tp=8)) == 8 * one

    def test_only_full_attention_layers_count(self) -> None:
        assert memory.kv_bytes_per_token(instance("Qwen3-Next-80B-A3B")) == 24_576

    @pytest.mark.shared
    def test_shared_table(self, shared_dir: Path) -> None:
        import json

        table = json.loads((shared_dir / "measurements" / "model_configs.json").read_text())
        for name, entry in table.items():
            for dtype in ("bf16", "fp8"):
                found = memory.kv_bytes_per_token(instance(name, kv_dtype=dtype))
                assert found == entry[f"kv_bytes_per_token_{dtype}"], name

    def test_fixed_state(self) -> None:
        state = memory.fixed_state_bytes_per_request(instance("Qwen3-Next-80B-A3B"))
        assert state == 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
        assert memory.fixed_state_bytes_per_request(instance("Qwen3-32B")) == 0


class TestLocalTier:
    def test_figures_of_an_engine_log(self) -> None:
        spec = instance("Qwen3-30B-A3B-FP8", kv_dtype="fp8")
        tier = memory.local_tier(spec, 5.59 * GIB, 49_139)
        assert tier.tokens == pytest.approx(122_147, abs=1)
        assert tier.blocks == tier.tokens // 16
        assert memory.local_tier(spec, 5.59 * GIB).tokens == pytest.approx(122_115, abs=1)
        assert memory.local_tier(spec, 10.55 * GIB, 49_139).tokens == pytest.approx(230_528, abs=1)

    @given(splits())
    def test_blocks_are_whole_and_fit(self, spec: InstanceSpec) -> None:
        tier = memory.local_tier(spec)
        assert tier.blocks * spec.block_tokens <= tier.tokens
        assert tier.tokens < (tier.blocks + 1) * spec.block_tokens
        per_token = memory.kv_bytes_per_token(spec)
        assert tier.tokens * per_token <= tier.bytes
        assert tier.bytes < (tier.tokens + 1) * per_token or tier.bytes == 0

    @given(splits())
    def test_fitting_and_missing_bytes_agree(self, spec: InstanceSpec) -> None:
        missing = memory.missing_bytes(spec)
        assert memory.fits(spec) == (missing == 0)
        if missing:
            larger = replace(
                spec.gpu,
                memory_bytes=spec.gpu.memory_bytes
                + int(missing / spec.tp / spec.memory_utilisation)
                + 4096,
            )
            assert memory.fits(replace(spec, gpu=larger))
        else:
            assert memory.local_tier(spec).blocks >= 1

    @given(splits())
    def test_smallest_tp_is_the_smallest(self, spec: InstanceSpec) -> None:
        least = memory.min_tp(spec)
        if memory.fits(spec):
            assert least is not None
            assert least <= spec.tp
        for tp in range(1, (least or spec.llm.attention.heads + 1)):
            if tensor_parallel_problem(spec.llm, tp, spec.ep) is None:
                assert not memory.fits(replace(spec, tp=tp))
        if least is not None:
            assert memory.fits(replace(spec, tp=least))

    @given(splits(), st.floats(0.1, 0.9))
    def test_more_memory_holds_more(self, spec: InstanceSpec, utilisation: float) -> None:
        less, more = (
            replace(spec, memory_utilisation=utilisation),
            replace(spec, memory_utilisation=utilisation + 0.1),
        )
        assert memory.local_tier(less).tokens <= memory.local_tier(more).tokens
        assert memory.missing_bytes(less) >= memory.missing_bytes(more)

    @pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
    def test_impossible_figures_of_a_log(self, value: float) -> None:
        with pytest.raises(SpecError, match=r"kv_bytes = .*must be a finite number > 0"):
            memory.local_tier(instance("Qwen3-32B"), kv_bytes=value)
        with pytest.raises(SpecError, match=r"kv_bytes_per_token = .*must be a finite"):
            memory.local_tier(instance("Qwen3-32B"), kv_bytes_per_token=value)

    def test_one_block_and_one_fixed_state_must_fit(self) -> None:
        spec = instance("Qwen3-Next-80B-A3B", tp=2)
        block = 16 * memory.kv_bytes_per_token(spec)
        state = memory.fixed_state_bytes_per_request(spec)
        assert memory.missing_bytes(spec, kv_bytes=block + state) == 0
        assert memory.missing_bytes(spec, kv_bytes=block) == state

    def test_too_large_is_an_answer(self) -> None:
        spec = instance("Qwen3-Coder-480B-A35B-Instruct", tp=8)
        assert not memory.fits(spec)
        assert memory.local_tier(spec) == memory.LocalTier(0.0, 0, 0)
        assert memory.missing_bytes(spec) > 8 * 30e9
        assert memory.min_tp(spec) == 16

    def test_nothing_helps(self) -> None:
        assert memory.min_tp(instance("Qwen3-32B", gpu="L40S", memory_utilisation=0.01)) is None


LATENT = {
    "model_type": "deepseek_v2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 16,
    "max_position_embeddings": 1024,
}


class TestOverhead:
    @given(splits(), st.integers(1, 16384), st.integers(1, 2048))
    def test_peak_grows_with_tokens_and_requests(
        self, spec: InstanceSpec, tokens: int, requests: int
    ) -> None:
        spec = replace(spec, token_budget=tokens, max_running_requests=requests)
        peak = activation_peak_bytes(spec)
        assert peak > 0
        assert activation_peak_bytes(replace(spec, token_budget=2 * tokens)) > peak
        assert activation_peak_bytes(replace(spec, max_running_requests=requests + 1)) >= peak

    def test_peak_does_not_depend_on_the_context_length(self) -> None:
        spec = instance("Qwen3-32B")
        longer = replace(spec, max_context_tokens=131_072)
        assert activation_peak_bytes(spec) == activation_peak_bytes(longer)

    def test_few_requests_leave_the_forward_pass_as_peak(self) -> None:
        spec = instance("Qwen3-32B", max_running_requests=1)
        assert activation_peak_bytes(spec) >= 8192 * 3 * 25_600 * 2
        assert activation_peak_bytes(replace(spec, tp=8)) < activation_peak_bytes(spec)

    def test_forward_pass_of_the_experts(self) -> None:
        # 62 layers do not add up: one layer's tensors at a time; slices or whole experts differ
        settings = {"max_running_requests": 1, "tp": 8}
        sliced = activation_peak_bytes(instance("Qwen3-Coder-480B-A35B-Instruct", **settings))
        whole = activation_peak_bytes(instance("Qwen3-Coder-480B-A35B-Instruct", ep=8, **settings))
        # per token: twice the hidden size, 8 copies of the larger of two projections or the
        # output, 8 of the activated width, router scores and the sum
        assert sliced == 8192 * 2 * (2 * 6144 + 8 * (6144 + 320) + 160 + 6144)
        assert whole == 8192 * 2 * (2 * 6144 + 8 * (6144 + 2560) + 160 + 6144)

    def test_forward_pass_of_latent_attention(self) -> None:
        spec = instance("DeepSeek-V3", max_running_requests=1)
        unfolded = 128 * (192 + 128 + 2 * 128)  # queries, keys, values and output of the heads
        attention = 1536 + 512 + 64 + unfolded + 7168
        experts = 8 * (7168 + 2048) + 3 * 2048 + 256 + 7168
        assert attention < experts
        assert activation_peak_bytes(spec) == 8192 * 2 * (2 * 7168 + experts)
        lite = llm_from_config(LATENT, "latent, dense", "config.json")
        spec = InstanceSpec(lite, get_gpu("H20"), max_running_requests=1)
        attention = 32 + 8 + 4 * (24 + 16 + 2 * 16) + 64
        assert attention > 3 * 64 + 64
        assert activation_peak_bytes(spec) == 8192 * 2 * (2 * 64 + attention)

    def test_a_step_samples_no_more_requests_than_it_has_tokens(self) -> None:
        spec = instance("Qwen3-32B", token_budget=64, max_running_requests=64)
        more = replace(spec, max_running_requests=1024)
        assert activation_peak_bytes(more) == activation_peak_bytes(spec)

    def test_no_graphs_in_eager_mode(self) -> None:
        graph, eager = instance("Qwen3-32B"), instance("Qwen3-32B", mode="eager")
        difference = memory.local_tier(eager).bytes - memory.local_tier(graph).bytes
        assert difference == pytest.approx(64 * engine_memory("vllm").graph_bytes_per_layer)

    def test_unknown_engine(self) -> None:
        with pytest.raises(SpecError, match=r"'vlm' is not known\. Did you mean 'vllm'"):
            memory.memory_budget(instance("Qwen3-32B", engine="vlm"))


#: Published start-up logs: settings, then weights, activation peak and KV pool per GPU [GiB].
#: All but the last: llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md (vLLM 0.11,
#: which leaves the graphs out of the budget); the last: a log of vLLM 0.10.2 on two H200.
LOGS: list[tuple[str, dict[str, Any], float, float, float]] = [
    ("Qwen3-0.6B", {}, 1.12, 5.56, 64.45),
    ("Qwen3-32B", {}, 61.03, 5.64, 4.45),
    ("Qwen3-32B", {"tp": 2}, 30.59, 5.64, 34.49),
    ("Llama-3.1-8B-Instruct", {}, 14.99, 4.76, 51.38),
    ("Llama-3.3-70B-Instruct", {"tp": 2, "weight_dtype": "fp8"}, 33.88, 4.84, 32.00),
    ("Qwen3-Next-80B-A3B", {"tp": 2, "gpu": "H200"}, 74.28, 5.58, 44.59),
]


@pytest.mark.parametrize(("name", "settings", "weights", "peak", "pool"), LOGS)
def test_published_start_up_logs(
    name: str, settings: dict[str, Any], weights: float, peak: float, pool: float
) -> None:
    spec = instance(
        name, **{"gpu": "H100", "max_running_requests": 1024, "mode": "eager"} | settings
    )
    budget = memory.memory_budget(spec)
    assert budget.weight_bytes / GIB == pytest.approx(weights, rel=0.01)
    assert budget.activation_peak_bytes / GIB == pytest.approx(peak, rel=0.01)
    assert budget.pool_bytes / GIB == pytest.approx(pool, rel=0.02)


def test_fp8_model_on_four_gpus_of_two_engines() -> None:
    # vllm issue 21348: Qwen3-235B-A22B-FP8 on four H100, 8.11 GiB per GPU under vLLM
    spec = instance("Qwen3-235B-A22B-FP8", gpu="H100", tp=4, max_running_requests=1024)
    tier = memory.local_tier(spec)
    assert tier.bytes / 4 / GIB == pytest.approx(8.11, rel=0.02)
    assert tier.tokens == pytest.approx(178_880, rel=0.02)
    # and 367,404 tokens under SGLang with a static fraction of 0.93 (its constant is fitted here)
    tier = memory.local_tier(replace(spec, engine="sglang", memory_utilisation=0.93))
    assert tier.tokens == pytest.approx(367_404, rel=0.02)


@pytest.mark.shared
def test_kv_pool_of_the_reference_row(shared_dir: Path) -> None:
    with (shared_dir / "measurements" / "h20.csv").open() as file:
        (row,) = (row for row in csv.DictReader(file) if row["id"] == "KVC-kvpool")
    tier = memory.local_tier(instance(row["model"]))
    assert tier.bytes == pytest.approx(float(row["value"]) * 1e9, rel=0.05)
    assert tier.tokens == pytest.approx(285_000, rel=0.05)
