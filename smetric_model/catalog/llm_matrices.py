"""The list of a transformer's weight matrices, from its shapes.

Names follow the Hugging Face checkpoints, because quantisers name the modules they leave alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from smetric_model.catalog.llm import Attention, LinearAttention, Moe, WeightMatrix

__all__ = ["Shapes", "list_matrices"]


@dataclass(frozen=True)
class Shapes:
    """What the configuration says, in one vocabulary for all families.

    Parameters
    ----------
    hidden_size, vocab_size : int
        Shapes.
    tied_embeddings : bool
        Whether the output head is the embedding.
    attention, linear_attention, moe
        As in :class:`~smetric_model.catalog.llm.Llm`.
    linear_layers, moe_layers : frozenset of int
        Which layers are of these kinds.
    layers : int
        All layers.
    dense_intermediate_size : int
        Width of the dense feed-forward network.
    qkv_bias, output_bias, mlp_bias : bool
        Biases of the projections.
    qk_norm : bool
        Norms on every query and key head.
    output_gate : bool
        The query projection also makes a gate for the attention output (Qwen3-Next).
    router_bias : bool
        One correction bias per expert (DeepSeek-V3).
    shared_expert_gate : bool
        One gate row for the shared expert (Qwen2-MoE, Qwen3-Next).
    """

    hidden_size: int
    vocab_size: int
    layers: int
    tied_embeddings: bool
    attention: Attention
    linear_attention: LinearAttention | None
    linear_layers: frozenset[int]
    moe: Moe | None
    moe_layers: frozenset[int]
    dense_intermediate_size: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    router_bias: bool = False
    shared_expert_gate: bool = False


def _vector(name: str, group: str, size: int, count: int = 1) -> WeightMatrix:
    return WeightMatrix(name, group, size, 1, count)


def _linear(name: str, group: str, outputs: int, inputs: int, count: int = 1) -> WeightMatrix:
    return WeightMatrix(name, group, outputs, inputs, count, convertible=True)


def _gqa(shapes: Shapes) -> Iterator[WeightMatrix]:
    a, hidden = shapes.attention, shapes.hidden_size
    query = a.heads * a.head_dim * (2 if shapes.output_gate else 1)
    key, value = a.kv_heads * a.head_dim, a.kv_heads * a.v_head_dim
    yield _linear("self_attn.q_proj", "attention_sharded", query, hidden)
    yield _linear("self_attn.k_proj", "attention_kv", key, hidden)
    yield _linear("self_attn.v_proj", "attention_kv", value, hidden)
    yield _linear("self_attn.o_proj", "attention_sharded", hidden, a.heads * a.v_head_dim)
    if shapes.qkv_bias:
        yield _vector("self_attn.q_proj.bias", "attention_sharded", query)
        yield _vector("self_attn.k_proj.bias", "attention_kv", key)
        yield _vector("self_attn.v_proj.bias", "attention_kv", value)
    if shapes.output_bias:
        yield _vector("self_attn.o_proj.bias", "attention_replicated", hidden)
    if shapes.qk_norm:
        yield _vector("self_attn.q_norm", "norms", a.head_dim)
        yield _vector("self_attn.k_norm", "norms", a.head_dim)


def _mla(shapes: Shapes) -> Iterator[WeightMatrix]:
    a, hidden = shapes.attention, shapes.hidden_size
    query, latent = a.heads * a.head_dim, a.kv_lora_rank + a.qk_rope_head_dim
    if a.q_lora_rank:
        yield _linear("self_attn.q_a_proj", "attention_replicated", a.q_lora_rank, hidden)
        yield _vector("self_attn.q_a_layernorm", "norms", a.q_lora_rank)
        yield _linear("self_attn.q_b_proj", "attention_sharded", query, a.q_lora_rank)
    else:
        yield _linear("self_attn.q_proj", "attention_sharded", query, hidden)
    yield _linear("self_attn.kv_a_proj_with_mqa", "attention_replicated", latent, hidden)
    yield _vector("self_attn.kv_a_layernorm", "norms", a.kv_lora_rank)
    up = a.heads * (a.qk_nope_head_dim + a.v_head_dim)
    yield _linear("self_attn.kv_b_proj", "attention_sharded", up, a.kv_lora_rank)
    yield _linear("self_attn.o_proj", "attention_sharded", hidden, a.heads * a.v_head_dim)
    if shapes.qkv_bias:
        if a.q_lora_rank:
            yield _vector("self_attn.q_a_proj.bias", "attention_replicated", a.q_lora_rank)
        yield _vector("self_attn.kv_a_proj_with_mqa.bias", "attention_replicated", latent)
    if shapes.output_bias:
        yield _vector("self_attn.o_proj.bias", "attention_replicated", hidden)


def _gated_delta(linear: LinearAttention, hidden: int) -> Iterator[WeightMatrix]:
    keys = linear.key_heads * linear.key_head_dim
    values = linear.value_heads * linear.value_head_dim
    group = "linear_attention"
    yield _linear("linear_attn.in_proj_qkvz", group, 2 * keys + 2 * values, hidden)
    # two rows per value head: quantisers leave it alone
    yield WeightMatrix("linear_attn.in_proj_ba", group, 2 * linear.value_heads, hidden, 1)
    yield WeightMatrix("linear_attn.conv1d", group, 2 * keys + values, linear.conv_kernel, 1)
    yield _vector("linear_attn.dt_bias", group, linear.value_heads)
    yield _vector("linear_attn.A_log", group, linear.value_heads)
    yield _vector("linear_attn.norm", "norms", linear.value_head_dim)
    yield _linear("linear_attn.out_proj", group, hidden, values)


def _gated_ffn(
    prefix: str, group: str, hidden: int, width: int, count: int = 1
) -> Iterator[WeightMatrix]:
    yield _linear(f"{prefix}.gate_proj", group, width, hidden, count)
    yield _linear(f"{prefix}.up_proj", group, width, hidden, count)
    yield _linear(f"{prefix}.down_proj", group, hidden, width, count)


def _moe(shapes: Shapes, moe: Moe) -> Iterator[WeightMatrix]:
    hidden = shapes.hidden_size
    yield WeightMatrix("mlp.gate", "router", moe.experts, hidden, 1)
    if shapes.router_bias:
        yield _vector("mlp.gate.e_score_correction_bias", "router", moe.experts)
    if moe.shared_intermediate_size:
        yield from _gated_ffn(
            "mlp.shared_experts", "shared_experts", hidden, moe.shared_intermediate_size
        )
    if shapes.shared_expert_gate:
        yield WeightMatrix("mlp.shared_expert_gate", "router", 1, hidden, 1)
    yield from _gated_ffn(
        "mlp.experts.*", "routed_experts", hidden, moe.intermediate_size, moe.experts
    )


def _layer(shapes: Shapes, index: int) -> Iterator[WeightMatrix]:
    hidden = shapes.hidden_size
    yield _vector("input_layernorm", "norms", hidden)
    yield _vector("post_attention_layernorm", "norms", hidden)
    if shapes.linear_attention is not None and index in shapes.linear_layers:
        yield from _gated_delta(shapes.linear_attention, hidden)
    elif shapes.attention.kind == "mla":
        yield from _mla(shapes)
    else:
        yield from _gqa(shapes)
    if shapes.moe is not None and index in shapes.moe_layers:
        yield from _moe(shapes, shapes.moe)
        return
    width = shapes.dense_intermediate_size
    yield from _gated_ffn("mlp", "dense_ffn", hidden, width)
    if shapes.mlp_bias:
        yield _vector("mlp.gate_proj.bias", "dense_ffn", width)
        yield _vector("mlp.up_proj.bias", "dense_ffn", width)
        yield _vector("mlp.down_proj.bias", "dense_ffn", hidden)


def list_matrices(
    shapes: Shapes, kept: Callable[[str], bool] | None = None
) -> tuple[WeightMatrix, ...]:
    """List every weight of a model, equal ones counted together.

    Parameters
    ----------
    shapes : Shapes
        The architecture.
    kept : callable, optional
        ``kept("layers.3.self_attn.q_proj")`` says whether the checkpoint's quantiser left that
        module in the activation type; None where the checkpoint is not quantised.

    Returns
    -------
    tuple of WeightMatrix
        In the order of a forward pass; counts are over all layers.
    """
    counts: Counter[WeightMatrix] = Counter()

    def add(name: str, matrix: WeightMatrix) -> None:
        quantised = matrix.convertible and kept is not None and not kept(name)
        counts[replace(matrix, quantised=quantised, count=1)] += matrix.count

    embedding = WeightMatrix("embed_tokens", "embedding", shapes.vocab_size, shapes.hidden_size, 1)
    add(embedding.name, embedding)
    for index in range(shapes.layers):
        for matrix in _layer(shapes, index):
            add(f"layers.{index}.{matrix.name}", matrix)
    norm = _vector("norm", "norms", shapes.hidden_size)
    add(norm.name, norm)
    if not shapes.tied_embeddings:
        head = WeightMatrix("lm_head", "lm_head", shapes.vocab_size, shapes.hidden_size, 1)
        add(head.name, head)
    return tuple(replace(matrix, count=count) for matrix, count in counts.items())
