"""From an instance to the coefficients of its step time."""

from __future__ import annotations

from smetric_model.analytic.efficiencies import Efficiencies, get_efficiencies
from smetric_model.analytic.memory import kv_bytes_per_token_per_gpu, weight_bytes_per_gpu_by_group
from smetric_model.analytic.step_time import StepModel
from smetric_model.catalog.gpu import Gpu
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import Attention
from smetric_model.units import dtype_bytes

__all__ = ["step_model"]

#: groups whose matrix products every token passes through
_DENSE = (
    "attention_sharded",
    "attention_kv",
    "attention_replicated",
    "linear_attention",
    "dense_ffn",
    "router",
    "shared_experts",
)
_REPLICATED = ("attention_replicated", "router")


def _flop_per_s(gpu: Gpu, dtype: str) -> float:
    """Peak for weights of this type; types without tensor cores are computed in 16 bits."""
    if dtype in gpu.flops:
        return gpu.flops[dtype]
    return gpu.flops["bf16"] if "bf16" in gpu.flops else gpu.flops["fp16"]


def step_model(instance: InstanceSpec, efficiencies: Efficiencies | None = None) -> StepModel:
    r"""Return the coefficients of an instance's step time, per GPU.

    Work is split over the ``tp`` GPUs; KV projections and KV heads are replicated where there are
    fewer heads than GPUs, the router is on every GPU.  Per layer two all-reduces move
    ``2 (tp-1)/tp · hidden · 2`` bytes per token (ring).  Experts: expert parallelism and tensor
    parallelism give each GPU the same share of rows and weights on average (uniform routing).

    Parameters
    ----------
    instance : InstanceSpec
        LLM, GPU, TP, EP, dtypes, engine, mode.
    efficiencies : Efficiencies, optional
        In place of the fitted ones of the (GPU, engine) pair.

    Returns
    -------
    StepModel
        Coefficients for :func:`smetric_model.analytic.step_time.step_time_s`.

    Raises
    ------
    SpecError
        If the engine has no fit, or none for these dtypes.
    """
    llm, gpu, tp = instance.llm, instance.gpu, instance.tp
    fitted = efficiencies or get_efficiencies(gpu.name, instance.engine)
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    activation = llm.activation_dtype
    quantised = llm.weight_dtype

    dense_flop_s = dense_weights_s = 0.0
    group_bytes = weight_bytes_per_gpu_by_group(instance)
    for group in _DENSE:
        parts: dict[str, float] = {}
        bytes_of: dict[str, float] = {}
        for matrix in llm.matrices:
            if matrix.group == group:
                dtype = quantised if matrix.quantised else activation
                parts[dtype] = parts.get(dtype, 0.0) + matrix.elements
                bytes_of[dtype] = bytes_of.get(dtype, 0.0) + matrix.count * llm.matrix_bytes(matrix)
        if not parts:
            continue
        # memory knows how the group is split over GPUs; work is split the same way
        split = sum(bytes_of.values()) / group_bytes[group]
        for dtype, elements in parts.items():
            rate = fitted.of("dense_compute", dtype) * _flop_per_s(gpu, dtype)
            dense_flop_s += 2 * elements / split / rate
            dense_weights_s += (
                bytes_of[dtype] / split / (fitted.of("dense_bandwidth", dtype) * bandwidth)
            )

    experts = per_token = row_s = expert_weights_s = call_s = 0.0
    moe = llm.moe
    if moe is not None:
        matrix = next(m for m in llm.matrices if m.group == "routed_experts")
        dtype = quantised if matrix.quantised else activation
        experts, per_token = float(moe.experts), float(moe.experts_per_token)
        call_s = fitted.of("expert_call_s", dtype) * moe.layers
        rate = fitted.of("expert_compute", dtype) * _flop_per_s(gpu, dtype)
        row_s = 2 * moe.expert_params * moe.layers / tp / rate
        expert_weights_s = (
            group_bytes["routed_experts"]
            / experts
            / (fitted.of("expert_bandwidth", dtype) * bandwidth)
        )

    attention = llm.attention
    sixteen = _flop_per_s(gpu, activation) * fitted.attention_compute
    heads = attention.heads / tp * attention.layers
    kv_token_s = kv_bytes_per_token_per_gpu(instance) / (
        fitted.of("attention_bandwidth", str(instance.kv_dtype)) * bandwidth
    )
    linear_token_s = linear_state_s = 0.0
    linear = llm.linear_attention
    if linear is not None:
        # delta rule: decay, read, write and output of a key_dim × value_dim state per value head
        flop = 8 * linear.value_heads * linear.key_head_dim * linear.value_head_dim
        linear_token_s = flop * linear.layers / tp / sixteen
        state = linear.state_elements_per_layer * dtype_bytes(linear.state_dtype)
        window = linear.conv_elements_per_layer * dtype_bytes(linear.conv_dtype)
        linear_state_s = (
            2
            * (state + window)
            * linear.layers
            / tp
            / (fitted.of("attention_bandwidth", activation) * bandwidth)
        )

    head_rate = fitted.of("dense_compute", activation) * _flop_per_s(gpu, activation)
    head_bytes = llm.params.output_head * dtype_bytes(activation) / tp
    all_reduce_s = all_reduce_token_s = 0.0
    if tp > 1:
        all_reduce_s = 2 * llm.layers * fitted.all_reduce_s
        link = gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s
        moved = 2 * (tp - 1) / tp * llm.hidden_size * dtype_bytes(activation)
        all_reduce_token_s = 2 * llm.layers * moved / (fitted.all_reduce_bandwidth * link)

    moe_layers = moe.layers if moe is not None else 0
    return StepModel(
        dense_flop_s_per_token=dense_flop_s,
        dense_weights_s=dense_weights_s,
        experts=experts,
        experts_per_token=per_token,
        expert_row_s=row_s,
        expert_weights_s=expert_weights_s,
        expert_call_s=call_s,
        expert_tile_tokens=fitted.expert_tile_tokens,
        attention_pair_s=heads * _prefill_flop_per_pair(attention) / sixteen,
        attention_decode_key_s=heads * _decode_flop_per_key(attention) / sixteen,
        attention_tile_tokens=fitted.attention_tile_tokens,
        kv_token_s=kv_token_s,
        kv_stream_ratio=min(
            1.0,
            fitted.attention_stream_bandwidth
            * max(1.0, fitted.attention_stream_group * attention.kv_heads / attention.heads)
            / fitted.of("attention_bandwidth", str(instance.kv_dtype)),
        ),
        linear_token_s=linear_token_s,
        linear_state_s=linear_state_s,
        head_token_s=2 * llm.params.output_head / tp / head_rate + fitted.sampled_token_s,
        head_weights_s=head_bytes / (fitted.head_bandwidth * bandwidth),
        all_reduce_latency_s=all_reduce_s,
        all_reduce_token_s=all_reduce_token_s,
        gap_s=fitted.graph_s_per_moe_layer * moe_layers
        + fitted.graph_s_per_dense_layer * (llm.layers - moe_layers),
        eager_launch_s=fitted.eager_s_per_layer * llm.layers,
        graph_capture_tokens=float(fitted.graph_capture_tokens)
        if instance.mode == "graph"
        else 0.0,
        request_s=fitted.request_engine_s,
        wait_steps=fitted.request_wait_steps,
    )


def _prefill_flop_per_pair(attention: Attention) -> float:
    """FLOPs of one head for one (query, key) pair: scores and weighted values."""
    return 2.0 * (attention.head_dim + attention.v_head_dim)


def _decode_flop_per_key(attention: Attention) -> float:
    """FLOPs of one head per key while decoding; MLA works on the latent (absorbed) form."""
    if attention.kind == "mla":
        return 2.0 * (2 * attention.kv_lora_rank + attention.qk_rope_head_dim)
    return _prefill_flop_per_pair(attention)
