from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from smetric_model.catalog.gpu import get_gpu
from smetric_model.catalog.instance import InstanceSpec, tensor_parallel_problem
from smetric_model.catalog.llm import get_llm
from smetric_model.catalog.llm_config import llm_from_config
from smetric_model.errors import SpecError


def instance(name: str, **settings: Any) -> InstanceSpec:
    return InstanceSpec(get_llm(name), get_gpu(settings.pop("gpu", "H20")), **settings)


def test_defaults_are_filled_in() -> None:
    spec = instance("Qwen3-32B")
    assert (spec.weight_dtype, spec.kv_dtype, spec.max_context_tokens) == ("bf16", "bf16", 40960)


def test_kv_cache_of_an_fp8_checkpoint_is_bf16_unless_asked_otherwise() -> None:
    assert instance("Qwen3-32B-FP8").kv_dtype == "bf16"
    assert instance("Qwen3-32B-FP8", kv_dtype="fp8").kv_dtype == "fp8"


def test_the_model_is_kept_as_it_is_served() -> None:
    spec = instance("Qwen3-32B", weight_dtype="fp8")
    assert spec.llm.quantisation == get_llm("Qwen3-32B-FP8").quantisation
    assert replace(spec, tp=2).llm == spec.llm


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Qwen3-32B", {"tp": 3}, "tp = 3: .* 64 attention heads.*divisors: 1, 2, 4"),
        ("Qwen3-14B", {"tp": 5}, "tp = 5: .* 8 KV heads"),
        ("Qwen3-30B-A3B", {"tp": 4, "ep": 3}, "ep = 3: must divide tp = 4"),
        ("Qwen3-32B", {"tp": 2, "ep": 2}, "has no experts"),
        ("Qwen3-Next-80B-A3B", {"tp": 32}, "16 attention heads"),
        ("Qwen3-32B", {"tp": 0}, "tp = 0: must be a whole number >= 1"),
        ("Qwen3-32B", {"tp": 2.0}, "tp = 2.0: must be a whole number"),
        ("Qwen3-32B", {"memory_utilisation": 1.1}, r"must be in \(0, 1\]"),
        ("Qwen3-32B", {"memory_utilisation": float("nan")}, r"must be in \(0, 1\]"),
        ("Qwen3-32B", {"mode": "fast"}, "mode 'fast' is not known; one of graph, eager"),
        ("Qwen3-32B", {"kv_dtype": "int4"}, "kv_dtype 'int4' is not known"),
        ("Qwen3-32B", {"weight_dtype": "fp6"}, "weight_dtype 'fp6' is not known"),
        ("Qwen3-32B", {"block_tokens": 0}, "block_tokens = 0"),
        ("Qwen3-32B", {"max_context_tokens": -1}, "max_context_tokens = -1"),
    ],
)
def test_what_cannot_be_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        instance(name, **settings)


def test_widths_must_be_split_evenly() -> None:
    config = {
        "model_type": "glm4_moe",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 8,
        "intermediate_size": 100,
        "moe_intermediate_size": 20,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
    }
    llm = llm_from_config(config, "narrow", "config.json")
    assert tensor_parallel_problem(llm, 4) is None
    assert "feed-forward width 100" in (tensor_parallel_problem(llm, 8, 8) or "")
    wider = llm_from_config(config | {"intermediate_size": 128}, "narrow", "config.json")
    assert "an expert of narrow is 20 wide" in (tensor_parallel_problem(wider, 8) or "")
    assert "the shared expert of narrow is 20 wide" in (tensor_parallel_problem(wider, 8, 8) or "")
    assert tensor_parallel_problem(get_llm("Qwen3-30B-A3B"), 32, 32) is None


def test_kv_heads_are_split_then_replicated() -> None:
    heads = [instance("Qwen3-30B-A3B", tp=tp).kv_heads_per_gpu for tp in (1, 2, 4, 8, 16)]
    assert heads == [4, 2, 1, 1, 1]


class TestNotes:
    def test_nothing_to_say(self) -> None:
        assert instance("Qwen3-32B").notes == ()

    def test_replicated_kv_heads(self) -> None:
        assert "each is kept 2 times" in instance("Qwen3-30B-A3B", tp=8).notes[0]

    def test_latent_cache_is_whole_on_each_gpu(self) -> None:
        assert any("latent" in note for note in instance("DeepSeek-V3", tp=8).notes)

    def test_type_the_gpu_does_not_multiply(self) -> None:
        assert "A100 does not multiply fp8" in instance("Qwen3-32B-FP8", gpu="A100").notes[0]

    def test_expert_rows_against_scale_blocks(self) -> None:
        # 1536 / 8 = 192 rows per GPU, blocks of 128
        assert any("192 rows" in n for n in instance("Qwen3-235B-A22B-FP8", tp=8).notes)
        assert not any("rows" in n for n in instance("Qwen3-235B-A22B-FP8", tp=4).notes)
        assert not any("rows" in n for n in instance("Qwen3-235B-A22B-FP8", tp=8, ep=8).notes)
