"""Parameter counts: exact against published totals, and the laws between the groups."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from smetric_model.catalog.llm import GROUPS, get_llm, llm_names
from smetric_model.errors import SpecError

#: Published totals (model pages and safetensors indices), drafts for speculation left out.
TOTALS = {
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Llama-3.1-8B-Instruct": 8_030_261_248,
    "Llama-3.3-70B-Instruct": 70_553_706_496,
    "GLM-4.5-Air": 106_852_251_264,
    "DeepSeek-V3": 671_026_419_200,
}


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_total_equals_the_published_one(name: str, total: int) -> None:
    assert get_llm(name).params.total == total


@pytest.mark.shared
def test_every_count_of_the_shared_table(shared_dir: Path) -> None:
    table = json.loads((shared_dir / "measurements" / "model_configs.json").read_text())
    assert set(table) <= set(llm_names())
    for name, entry in table.items():
        llm, expected = get_llm(name), entry["params"]
        params = llm.params
        found = {
            "total": params.total,
            "nonembedding_total": params.non_embedding,
            "active_excl_embed_incl_lmhead": params.active,
            "active_nonembedding": params.active_non_embedding,
            "active_incl_embed_and_lmhead": params.active + params.embedding,
            "embed": params.embedding,
            "lm_head": params.lm_head,
            "attn_layers_full": llm.attention.layers,
            "linear_layers": llm.linear_attention.layers if llm.linear_attention else 0,
        }
        if llm.linear_attention is None:
            norms = 2 * llm.attention.head_dim  # the table counts query and key norms here
            found["attn_params_per_layer"] = params.attention // llm.layers + norms
            ffn = params.dense_ffn + params.router + params.routed_experts
            active = params.dense_ffn + params.router + params.routed_experts_active
            found["ffn_params_total_per_layer"] = ffn // llm.layers
            found["ffn_params_active_per_layer"] = active // llm.layers
        assert {key: found[key] for key in expected} == expected, name


@pytest.mark.shared
def test_a_configuration_file_gives_the_catalog_entry(shared_dir: Path, tmp_path: Path) -> None:
    table = json.loads((shared_dir / "measurements" / "model_configs.json").read_text())
    for name, entry in table.items():
        file = tmp_path / name / "config.json"
        file.parent.mkdir()
        file.write_text(json.dumps(entry))
        by_path, by_name = get_llm(str(file)), get_llm(name)
        assert by_path.params == by_name.params
        assert by_path.attention == by_name.attention
        assert by_path.max_context_tokens == by_name.max_context_tokens
        assert by_path.weight_dtype == by_name.weight_dtype
        assert get_llm(str(file.parent)).params == by_name.params


@pytest.mark.parametrize("name", llm_names())
def test_groups_add_up(name: str) -> None:
    llm = get_llm(name)
    params = llm.params
    assert params.total == sum(matrix.elements for matrix in llm.matrices)
    assert params.total == sum(getattr(params, group) for group in GROUPS)
    assert params.active <= params.total
    assert (params.lm_head == 0) == llm.tied_embeddings
    assert params.output_head == llm.vocab_size * llm.hidden_size
    if llm.moe is None:
        assert params.active_non_embedding == params.non_embedding
    else:
        assert params.routed_experts == llm.moe.layers * llm.moe.experts * llm.moe.expert_params
        assert params.shared_experts == llm.moe.layers * llm.moe.shared_expert_params
        assert params.routed_experts_active * llm.moe.experts == (
            params.routed_experts * llm.moe.experts_per_token
        )


@pytest.mark.parametrize("name", llm_names())
def test_entries_say_where_they_come_from(name: str) -> None:
    assert get_llm(name).source


def test_an_organisation_in_front_of_the_name_is_ignored() -> None:
    assert get_llm("Qwen/Qwen3-32B") == get_llm("Qwen3-32B")


def test_unknown_name_lists_what_is_known_and_guesses() -> None:
    with pytest.raises(SpecError, match=r"Did you mean 'Qwen3-32B'\?.*DeepSeek-V3"):
        get_llm("qwen3-23b")


def test_specs_travel_to_other_processes() -> None:
    llm = get_llm("Qwen3-Next-80B-A3B")
    assert pickle.loads(pickle.dumps(llm)) == llm


class TestWeightDtype:
    def test_fp8_on_a_bf16_model_follows_the_published_fp8_checkpoint(self) -> None:
        published = get_llm("Qwen3-30B-A3B-FP8")
        converted = get_llm("Qwen3-30B-A3B").with_weight_dtype("fp8")
        assert converted.matrices == published.matrices
        assert converted.quantisation == published.quantisation

    def test_what_is_no_linear_layer_keeps_the_activation_type(self) -> None:
        for llm in map(get_llm, llm_names()):
            for matrix in llm.with_weight_dtype("int8").matrices:
                if matrix.group in ("embedding", "lm_head", "norms", "router"):
                    assert not matrix.quantised, matrix

    def test_a_checkpoint_keeps_its_own_scales(self) -> None:
        llm = get_llm("Qwen3-32B-FP8")
        assert llm.with_weight_dtype("fp8") is llm

    def test_bf16_undoes_the_quantisation(self) -> None:
        back = get_llm("Qwen3-32B-FP8").with_weight_dtype("bf16")
        assert back.matrices == get_llm("Qwen3-32B").matrices
        assert back.quantisation is None

    def test_counts_do_not_depend_on_the_type(self) -> None:
        llm = get_llm("Qwen3-Next-80B-A3B")
        for dtype in ("bf16", "fp8", "int8", "int4"):
            assert llm.with_weight_dtype(dtype).params == llm.params

    def test_unknown_type(self) -> None:
        with pytest.raises(SpecError, match=r"fp4.*one of bf16"):
            get_llm("Qwen3-32B").with_weight_dtype("fp4")


def test_layers_of_qwen3_next() -> None:
    llm = get_llm("Qwen3-Next-80B-A3B")
    linear = llm.linear_attention
    assert linear is not None
    assert (llm.attention.layers, linear.layers) == (12, 36)
    assert linear.state_elements_per_layer == 32 * 128 * 128
    assert linear.conv_elements_per_layer == (2 * 16 * 128 + 32 * 128) * 3
    assert (linear.state_dtype, linear.conv_dtype) == ("fp32", "bf16")
