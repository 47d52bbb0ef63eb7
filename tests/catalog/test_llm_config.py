"""Configuration files: families, traps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smetric_model.catalog.llm import Llm, get_llm
from smetric_model.catalog.llm_config import llm_from_config
from smetric_model.errors import SpecError

DENSE: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 192,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
MOE = DENSE | {
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
MLA = DENSE | {
    "model_type": "deepseek_v3",
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
NEXT = MOE | {
    "model_type": "qwen3_next",
    "shared_expert_intermediate_size": 32,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
OLD = {"torch_dtype": "bfloat16", "tie_word_embeddings": False}
#: Public configurations of other families, with their published parameter totals.
FAMILIES: list[tuple[str, dict[str, Any], int]] = [
    (
        "Mistral-7B-v0.2",
        OLD
        | {
            "model_type": "mistral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "sliding_window": None,
        },
        7_241_732_096,
    ),
    (
        "Qwen2.5-7B: biases on queries, keys and values",
        OLD
        | {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
            "max_position_embeddings": 32768,
            "use_sliding_window": False,
            "sliding_window": 131072,
        },
        7_615_616_512,
    ),
    (
        "Qwen2.5-0.5B: tied embeddings",
        OLD
        | {
            "model_type": "qwen2",
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151936,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
        494_032_768,
    ),
    (
        "Mixtral-8x7B",
        OLD
        | {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
        46_702_792_704,
    ),
    (
        "Qwen1.5-MoE-A2.7B: gated shared expert",
        OLD
        | {
            "model_type": "qwen2_moe",
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "vocab_size": 151936,
            "max_position_embeddings": 8192,
        },
        14_315_784_192,
    ),
    (
        "DeepSeek-V2-Lite: MLA without query compression",
        OLD
        | {
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "topk_method": "greedy",
            "vocab_size": 102400,
            "max_position_embeddings": 163840,
        },
        15_706_484_224,
    ),
]


def read(config: dict[str, Any], **changes: Any) -> Llm:
    merged = {key: value for key, value in (config | changes).items() if value != "absent"}
    return llm_from_config(merged, "test", "config.json")


@pytest.mark.parametrize(("config", "total"), [case[1:] for case in FAMILIES])
def test_published_totals_of_other_families(config: dict[str, Any], total: int) -> None:
    assert read(config).params.total == total


def test_qwen3_5_counts_as_published_without_vision_and_draft() -> None:
    # Qwen3.5-397B-A17B: 397 billion parameters, 17 of them active
    text = {
        "model_type": "qwen3_5_moe_text",
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "head_dim": 256,
        "hidden_size": 4096,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 1024,
        "num_attention_heads": 32,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 60,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 1024,
        "vocab_size": 248320,
    }
    llm = read({"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": False})
    assert llm.params.total == pytest.approx(397e9, rel=0.003)
    # the name counts the embedding as active, like 3.3 of Qwen3-30B-A3B
    assert llm.params.active + llm.params.embedding == pytest.approx(17e9, rel=0.03)
    assert llm.attention.layers == 15


class TestHeadDim:
    def test_stated_head_dim_wins_over_hidden_by_heads(self) -> None:
        assert read(DENSE).attention.head_dim == 16  # 64 / 8 would be 8

    def test_hidden_by_heads_only_where_head_dim_is_absent(self) -> None:
        assert read(DENSE, head_dim="absent").attention.head_dim == 8
        assert read(DENSE, head_dim=None).attention.head_dim == 8

    def test_no_guess_where_it_does_not_divide(self) -> None:
        with pytest.raises(SpecError, match="'head_dim' is missing, and hidden_size 60"):
            read(DENSE, head_dim="absent", hidden_size=60)


class TestAttention:
    def test_llama_without_kv_heads_is_multi_head(self) -> None:
        llm = read(DENSE, model_type="llama", num_key_value_heads="absent")
        assert llm.attention.kv_heads == 8

    def test_elsewhere_missing_kv_heads_are_an_omission(self) -> None:
        with pytest.raises(SpecError, match=r"config\.json: key 'num_key_value_heads' is missing"):
            read(DENSE, num_key_value_heads="absent")

    def test_query_and_key_norms_belong_to_qwen3(self) -> None:
        with_norms, without = read(DENSE).params, read(DENSE, model_type="llama").params
        assert with_norms.total - without.total == 4 * 2 * 16

    def test_biases(self) -> None:
        plain, biased = read(DENSE).params, read(DENSE, attention_bias=True).params
        assert biased.total - plain.total == 4 * (8 * 16 + 2 * 2 * 16 + 64)
        glm = MOE | {"model_type": "glm4_moe", "n_routed_experts": 8, "num_experts": "absent"}
        plain, biased = read(glm).params, read(glm, attention_bias=True).params
        assert biased.total - plain.total == 4 * (8 * 16 + 2 * 2 * 16)  # none on the output
        llama = DENSE | {"model_type": "llama"}
        plain, biased = read(llama).params, read(llama, mlp_bias=True).params
        assert biased.total - plain.total == 4 * (2 * 192 + 64)

    def test_mla_caches_latent_and_rope_part_only(self) -> None:
        attention = read(MLA).attention
        assert attention.kind == "mla"
        assert attention.kv_elements_per_token_per_layer == 32 + 8


class TestMoe:
    def test_dense_layers_first(self) -> None:
        llm = read(MLA)
        assert llm.moe is not None
        assert (llm.moe.layers, llm.dense_layers) == (3, 1)
        assert llm.params.dense_ffn == 3 * 64 * 192
        assert llm.moe.shared_expert_params == 2 * 3 * 64 * 32

    @pytest.mark.parametrize(
        ("changes", "moe_layers"),
        [
            ({}, 4),
            ({"decoder_sparse_step": 2}, 2),
            ({"mlp_only_layers": [0, 3]}, 2),
            ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, 1),
            ({"moe_layer_freq": 2}, 2),
            ({"moe_layer_freq": [0, 1, 1, 1]}, 3),
            ({"num_experts": 0}, 0),
        ],
    )
    def test_which_layers_have_experts(self, changes: dict[str, Any], moe_layers: int) -> None:
        llm = read(MOE, **changes)
        assert (llm.moe.layers if llm.moe else 0) == moe_layers
        assert llm.dense_layers == 4 - moe_layers
        assert llm.params.dense_ffn == (4 - moe_layers) * 3 * 64 * 192

    def test_shared_size_in_a_qwen3_moe_file_means_nothing(self) -> None:
        assert read(MOE, shared_expert_intermediate_size=0).params == read(MOE).params

    def test_dense_width_may_be_absent_where_all_layers_have_experts(self) -> None:
        assert read(MOE, intermediate_size="absent").params == read(MOE).params

    def test_more_chosen_than_there_are(self) -> None:
        with pytest.raises(SpecError, match="'num_experts_per_tok' is 9: more than 8"):
            read(MOE, num_experts_per_tok=9)

    @pytest.mark.parametrize("key", ["num_experts", "num_experts_per_tok", "moe_intermediate_size"])
    def test_missing_keys(self, key: str) -> None:
        with pytest.raises(SpecError, match=rf"config\.json: key '{key}' is missing"):
            read(MOE, **{key: "absent"})


class TestLinearAttention:
    def test_interval_and_list_of_types_say_the_same(self) -> None:
        types = ["linear_attention"] * 3 + ["full_attention"]
        by_list = read(NEXT, layer_types=types, full_attention_interval="absent")
        assert by_list.matrices == read(NEXT).matrices
        assert by_list.attention.layers == 1

    def test_list_of_wrong_length(self) -> None:
        with pytest.raises(SpecError, match="'layer_types' must list 4 layers"):
            read(NEXT, layer_types=["full_attention"])

    def test_only_linear_layers_are_refused(self) -> None:
        with pytest.raises(SpecError, match="no layer with full attention"):
            read(NEXT, layer_types=["linear_attention"] * 4)

    def test_linear_layers_of_an_unknown_kind_are_refused(self) -> None:
        with pytest.raises(SpecError, match="linear_attention, not modelled for 'qwen3'"):
            read(DENSE, layer_types=["linear_attention"] * 3 + ["full_attention"])


class TestContext:
    def test_plain(self) -> None:
        assert read(DENSE).max_context_tokens == 4096

    @pytest.mark.parametrize(
        ("scaling", "longest"),
        [
            (
                {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
                131072,
            ),
            ({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840),
            ({"type": "linear", "factor": 2.0}, 8192),
            ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
            ({"rope_type": "default"}, 4096),
            (None, 4096),
        ],
    )
    def test_scaling(self, scaling: dict[str, Any] | None, longest: int) -> None:
        assert read(DENSE, rope_scaling=scaling).max_context_tokens == longest


class TestDtype:
    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            ("bfloat16", "bf16"),
            ("float16", "fp16"),
            ("torch.bfloat16", "bf16"),
            ("float32", "bf16"),
        ],
    )
    def test_names(self, value: str, dtype: str) -> None:
        llm = read(DENSE, torch_dtype=value)
        assert (llm.weight_dtype, llm.kv_dtype) == (dtype, dtype)

    def test_new_key(self) -> None:
        assert read(DENSE, torch_dtype="absent", dtype="float16").weight_dtype == "fp16"
        assert read(DENSE, torch_dtype="float32", dtype="float16").weight_dtype == "fp16"

    def test_absent_is_noted(self) -> None:
        assert any("bf16 assumed" in note for note in read(DENSE, torch_dtype="absent").notes)

    def test_unknown(self) -> None:
        with pytest.raises(SpecError, match="'torch_dtype' is 'int3'"):
            read(DENSE, torch_dtype="int3")


class TestMultiModal:
    def test_text_part_is_read_and_noted(self) -> None:
        text = {k: v for k, v in DENSE.items() if k not in ("torch_dtype", "tie_word_embeddings")}
        nested = {
            "model_type": "some_vl",
            "text_config": text,
            "vision_config": {"hidden_size": 1},
            "torch_dtype": "bfloat16",
            "tie_word_embeddings": True,
        }
        llm = read(nested)
        assert llm.params == read(DENSE, tie_word_embeddings=True).params
        assert any("no vision" in note for note in llm.notes)

    def test_missing_key_names_the_table(self) -> None:
        text = {key: value for key, value in DENSE.items() if key != "vocab_size"}
        with pytest.raises(SpecError, match=r"config\.json: text_config: key 'vocab_size'"):
            read({"text_config": text})

    def test_quantisation_beside_the_text_part(self) -> None:
        outer = {"text_config": DENSE, "quantization_config": {"quant_method": "fp8"}}
        assert read(outer).weight_dtype == "fp8"


class TestUnknownType:
    def test_a_plain_gated_decoder_is_read_with_a_note(self) -> None:
        llm = read(DENSE, model_type="newest", hidden_act="silu")
        assert any("'newest'" in note for note in llm.notes)
        assert llm.params == read(DENSE, model_type="llama").params

    def test_its_experts_are_found_under_any_known_key(self) -> None:
        llm = read(
            DENSE,
            model_type="newest_moe",
            hidden_act="silu",
            num_local_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
        )
        assert llm.moe is not None
        assert llm.moe.experts == 8

    def test_an_ungated_network_would_be_counted_wrongly(self) -> None:
        with pytest.raises(SpecError, match="'hidden_act' is 'gelu'"):
            read(DENSE, model_type="newest", hidden_act="gelu")

    def test_a_classifier_is_no_generator(self) -> None:
        with pytest.raises(SpecError, match="'architectures'"):
            read(
                DENSE,
                model_type="newest",
                hidden_act="silu",
                architectures=["NewestForSequenceClassification"],
            )


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"model_type": "bert"}, "model_type"),
            ({"model_type": "deepseek_v32"}, "model_type"),
            ({"is_encoder_decoder": True}, "is_encoder_decoder"),
            ({"model_type": "mistral", "sliding_window": 1024}, "sliding_window"),
            ({"use_sliding_window": True, "sliding_window": 1024}, "sliding_window"),
            ({"layer_types": ["sliding_attention", "full_attention"] * 2}, "layer_types"),
            ({"attention_chunk_size": 8192}, "attention_chunk_size"),
            ({"index_topk": 2048}, "index_topk"),
            ({"mamba_d_state": 128}, "mamba_d_state"),
            ({"hybrid_override_pattern": "M*M*"}, "hybrid_override_pattern"),
            ({"attn_type_list": [1, 0, 1, 0]}, "attn_type_list"),
            ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ],
    )
    def test_what_would_be_counted_wrongly_names_the_key(
        self, changes: dict[str, Any], key: str
    ) -> None:
        with pytest.raises(SpecError, match=rf"config\.json: key '{key}'"):
            read(DENSE, **changes)

    @pytest.mark.parametrize(
        "changes",
        [
            {"use_sliding_window": False, "sliding_window": 1024},
            {"sliding_window": 1024},  # Qwen files: off unless use_sliding_window says otherwise
            {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 4},
            {"model_type": "mistral", "sliding_window": 4096},  # as long as the context itself
            {"model_type": "mistral", "sliding_window": None},
            {"layer_types": ["full_attention"] * 4, "sliding_window": 1024},
            {"attn_type_list": [1, 1, 1, 1]},
            {"is_encoder_decoder": False, "index_topk": None},
        ],
    )
    def test_the_same_keys_switched_off_are_fine(self, changes: dict[str, Any]) -> None:
        assert read(DENSE, **changes).attention == read(DENSE).attention


class TestFiles:
    REQUIRED = (
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    )

    @pytest.mark.parametrize("key", REQUIRED)
    def test_a_missing_key_names_key_and_file(self, key: str, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        file.write_text(json.dumps({k: v for k, v in DENSE.items() if k != key}))
        with pytest.raises(SpecError, match=f"{file}: key '{key}' is missing"):
            get_llm(str(file))

    @pytest.mark.parametrize("value", ["64", 64.5, True, -64, 0])
    def test_a_wrong_value_names_key_and_value(self, value: object) -> None:
        with pytest.raises(SpecError, match="key 'hidden_size'"):
            read(DENSE, hidden_size=value)

    @pytest.mark.parametrize("key", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
    def test_flags_must_be_flags(self, key: str) -> None:
        with pytest.raises(SpecError, match=f"key '{key}' must be true or false, is 'yes'"):
            read(DENSE, **{key: "yes"})

    def test_folder_and_file_are_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(DENSE))
        by_folder, by_file = get_llm(str(tmp_path)), get_llm(str(tmp_path / "config.json"))
        assert by_folder.matrices == by_file.matrices
        assert by_file.source == str(tmp_path / "config.json")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b'{"model_type": "llama",\n oops', r"config\.json:2: is no JSON"),
            (b"[1, 2]", "must hold one JSON object, holds list"),
            (b"\xff\xfe\x00", "is no JSON: not UTF-8"),
            (b"{}", "key 'model_type' is missing"),
        ],
    )
    def test_broken_files(self, content: bytes, message: str, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        file.write_bytes(content)
        with pytest.raises(SpecError, match=message):
            get_llm(str(file))

    def test_folder_without_config(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"holds no config\.json"):
            get_llm(str(tmp_path))

    def test_path_that_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="no such file or folder"):
            get_llm(str(tmp_path / "nowhere" / "config.json"))
