"""Quantised checkpoints: bytes of weights and scales, and what stays in the activation type."""

from __future__ import annotations

from typing import Any

import pytest

from smetric_model.catalog.llm import Llm, Quantisation, get_llm
from smetric_model.catalog.llm_config import llm_from_config
from smetric_model.errors import SpecError

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "moe_intermediate_size": 128,
    "intermediate_size": 512,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def read(quantisation: dict[str, Any]) -> Llm:
    return llm_from_config(MOE | {"quantization_config": quantisation}, "test", "config.json")


def total_bytes(llm: Llm, group: str | None = None) -> float:
    return sum(m.count * llm.matrix_bytes(m) for m in llm.matrices if group in (None, m.group))


def kept(llm: Llm) -> set[str]:
    return {m.name for m in llm.matrices if m.convertible and not m.quantised}


class TestBytes:
    @pytest.mark.parametrize(
        ("quantisation", "expected"),
        [
            (Quantisation("fp8", (128, 128), 4.0), 300 * 200 + 3 * 2 * 4),
            (Quantisation("fp8", (0, 0), 4.0), 300 * 200 + 4),
            (Quantisation("fp8", (1, 0), 4.0), 300 * 200 + 300 * 4),
            (Quantisation("int4", (1, 128), 2.0, 0.5), 300 * 200 / 2 + 300 * 2 * 2.5),
        ],
    )
    def test_one_matrix_with_scales(self, quantisation: Quantisation, expected: float) -> None:
        assert quantisation.matrix_bytes(300, 200) == expected

    def test_published_block_fp8_checkpoint(self) -> None:
        llm = get_llm("Qwen3-30B-A3B-FP8")
        p = llm.params
        wide = p.embedding + p.lm_head + p.norms + p.router
        narrow = p.total - wide
        assert total_bytes(llm) == 2 * wide + narrow + 4 * narrow / 128**2

    def test_awq(self) -> None:
        llm = read({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True})
        params = get_group(llm, "routed_experts")
        assert total_bytes(llm, "routed_experts") == params / 2 + params / 128 * 2.5
        assert total_bytes(llm, "router") == 2 * get_group(llm, "router")

    @pytest.mark.parametrize(
        ("extra", "zero_point_bytes"),
        [
            ({"quant_method": "awq", "zero_point": False}, 0.0),
            ({"quant_method": "awq"}, 0.5),
            ({"quant_method": "gptq", "sym": True, "zero_point": False}, 0.5),
        ],
    )
    def test_zero_points(self, extra: dict[str, Any], zero_point_bytes: float) -> None:
        found = read({"bits": 4, "group_size": 128} | extra).quantisation
        assert found is not None
        assert found.zero_point_bytes == zero_point_bytes

    def test_gptq_eight_bit(self) -> None:
        llm = read({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True})
        experts = 3 * 8 * (128 * 256 * 2 + 128 * 3 + 128 * 3 + 256 * 128 + 256 * 3)
        assert total_bytes(llm, "routed_experts") == experts
        assert llm.weight_dtype == "int8"


def get_group(llm: Llm, group: str) -> int:
    value: int = getattr(llm.params, group)
    return value


class TestWhatStays:
    def test_nothing_named_means_all_linear_layers(self) -> None:
        llm = read({"quant_method": "fp8", "weight_block_size": [128, 128]})
        assert kept(llm) == set()
        quantised = {m.group for m in llm.matrices if m.quantised}
        assert quantised == {"attention_sharded", "attention_kv", "dense_ffn", "routed_experts"}

    @pytest.mark.parametrize(
        ("name", "left"),
        [
            ("model.layers.1.self_attn.q_proj", {"self_attn.q_proj"}),
            ("self_attn.o_proj", {"self_attn.o_proj"}),
            ("re:.*self_attn.*", {f"self_attn.{x}_proj" for x in "qkvo"}),
            ("re:.*layers\\.0\\..*mlp.*", {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}),
            ("re:.*experts.*up_proj", {"mlp.experts.*.up_proj"}),
            ("lm_head", set()),
            ("mlp.gate", set()),  # the router, not mlp.gate_proj
            ("mtp.layers.0.mlp.gate_proj", set()),  # the draft layer is another one
            ("vision_tower.encoder.layers.0.mlp.up_proj", set()),
        ],
    )
    def test_named_modules(self, name: str, left: set[str]) -> None:
        assert kept(read({"quant_method": "fp8", "modules_to_not_convert": [name]})) == left

    def test_one_layer_left_alone_counts_for_that_layer_only(self) -> None:
        everything = read({"quant_method": "fp8"})
        llm = read({"quant_method": "fp8", "ignored_layers": ["model.layers.2"]})
        attention, experts = 4 * 256 * 64 * 3, 8 * 3 * 256 * 128
        scales = 4 * (4 + 8 * 3)
        assert total_bytes(llm) - total_bytes(everything) == attention + experts - scales

    def test_single_experts_cannot_be_left_alone(self) -> None:
        with pytest.raises(SpecError, match="single expert"):
            read({"quant_method": "fp8", "ignore": ["model.layers.1.mlp.experts.3.up_proj"]})


class TestCompressedTensors:
    def group(self, **weights: Any) -> dict[str, Any]:
        base = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
        return {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": base | weights}},
            "ignore": ["lm_head"],
        }

    @pytest.mark.parametrize(
        ("weights", "dtype", "block"),
        [
            ({}, "fp8", (1, 0)),
            ({"strategy": "tensor"}, "fp8", (0, 0)),
            ({"strategy": "block", "block_structure": [128, 128]}, "fp8", (128, 128)),
            ({"type": "int"}, "int8", (1, 0)),
            (
                {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32},
                "int4",
                (1, 32),
            ),
        ],
    )
    def test_schemes(self, weights: dict[str, Any], dtype: str, block: tuple[int, int]) -> None:
        found = read(self.group(**weights)).quantisation
        assert found is not None
        assert (found.dtype, found.block) == (dtype, block)

    def test_kv_scheme(self) -> None:
        scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
        assert read(self.group() | scheme).kv_dtype == "fp8"

    def test_kv_cache_stays_bf16_for_fp8_weights(self) -> None:
        assert read(self.group()).kv_dtype == "bf16"

    def test_several_groups_are_refused(self) -> None:
        config = self.group()
        config["config_groups"]["group_1"] = config["config_groups"]["group_0"]
        with pytest.raises(SpecError, match="one group is supported, found 2"):
            read(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "mxfp4"}, "'mxfp4' is not supported; fp8,"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, r"\(NVFP4\) is not supported"),
        ({"bits": 4, "group_size": 64}, "None is not supported"),
        ({"quant_method": "awq", "bits": 3, "group_size": 128}, "3-bit int"),
        ({"quant_method": "awq", "group_size": 128}, "key 'bits' must be a whole number"),
        ({"quant_method": "gptq", "bits": 4}, "key 'group_size' must be a whole number"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size: must be two"),
        ({"quant_method": "fp8", "ignore": [1]}, "must be a list of module names"),
        ({"quant_method": "fp8", "ignore": ["re:("]}, "is no regular expression"),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "dynamic": {"+:x": {"bits": 8}},
            },
            "changes bits per module",
        ),
    ],
)
def test_what_is_not_understood_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(config)
