"""Device memory of one instance: weights, KV cache, fixed states."""

from __future__ import annotations

from math import ceil

from smetric_model.catalog.instance import InstanceSpec
from smetric_model.catalog.llm import GROUPS
from smetric_model.units import dtype_bytes

__all__ = [
    "expert_weight_bytes_per_gpu",
    "fixed_state_bytes_per_request",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_gpu",
    "weight_bytes_per_gpu",
    "weight_bytes_per_gpu_by_group",
]

#: Weights that every GPU of an instance holds whole.
_REPLICATED = ("attention_replicated", "router", "norms")


def kv_bytes_per_token_per_gpu(instance: InstanceSpec) -> float:
    """Bytes that one token takes in the KV cache of one GPU.

    ``layers · kv_heads_per_gpu · (head_dim + v_head_dim) · bytes``, which is the well-known
    ``2 · layers · kv_heads · head_dim · bytes`` at TP 1.  A GPU keeps at least one KV head.  With
    multi-head latent attention each GPU keeps the whole latent: ``layers · (kv_lora_rank +
    qk_rope_head_dim) · bytes``.  Layers with a fixed state add nothing.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.

    Returns
    -------
    float
        [bytes/token]
    """
    attention = instance.llm.attention
    element = dtype_bytes(instance.kv_dtype or instance.llm.kv_dtype)
    if attention.kind == "mla":
        return attention.layers * attention.kv_elements_per_token_per_layer * element
    width = attention.head_dim + attention.v_head_dim
    return attention.layers * instance.kv_heads_per_gpu * width * element


def kv_bytes_per_token(instance: InstanceSpec) -> float:
    """Bytes that one token takes in the KV cache of the whole instance, copies included.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.

    Returns
    -------
    float
        [bytes/token]
    """
    return instance.tp * kv_bytes_per_token_per_gpu(instance)


def fixed_state_bytes_per_request(instance: InstanceSpec) -> float:
    """Bytes of the linear-attention states of one request, whole instance, any context length.

    Recurrent state and convolution window are split over the GPUs with their heads.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.

    Returns
    -------
    float
        [bytes]; 0 where every layer has a KV cache.
    """
    linear = instance.llm.linear_attention
    if linear is None:
        return 0.0
    return linear.layers * (
        linear.state_elements_per_layer * dtype_bytes(linear.state_dtype)
        + linear.conv_elements_per_layer * dtype_bytes(linear.conv_dtype)
    )


def weight_bytes_per_gpu_by_group(instance: InstanceSpec) -> dict[str, float]:
    """Weight bytes of the fullest GPU, by group of :data:`smetric_model.catalog.llm.GROUPS`.

    Sharded groups are divided by TP; KV projections by the smaller of TP and the KV heads; norms,
    router, MLA down-projections and output biases are whole on each GPU.  Experts are spread over
    all GPUs: with expert parallelism a group of ``tp / ep`` GPUs holds ``ceil(experts / ep)`` whole
    experts, each split ``tp / ep`` ways.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.

    Returns
    -------
    dict of str to float
        [bytes]
    """
    llm, tp, ep = instance.llm, instance.tp, instance.ep
    totals = dict.fromkeys(GROUPS, 0.0)
    for matrix in llm.matrices:
        totals[matrix.group] += matrix.count * llm.matrix_bytes(matrix)
    split = {group: float(tp) for group in GROUPS}
    split.update(dict.fromkeys(_REPLICATED, 1.0))
    split["attention_kv"] = min(tp, llm.attention.kv_heads)
    if llm.moe is not None:
        split["routed_experts"] = llm.moe.experts / ceil(llm.moe.experts / ep) * (tp / ep)
    return {group: totals[group] / split[group] for group in GROUPS}


def weight_bytes_per_gpu(instance: InstanceSpec) -> float:
    """Weight bytes of the fullest GPU [bytes].

    Parameters
    ----------
    instance : InstanceSpec
        The instance.
    """
    return sum(weight_bytes_per_gpu_by_group(instance).values())


def expert_weight_bytes_per_gpu(instance: InstanceSpec) -> float:
    """Of :func:`weight_bytes_per_gpu`, the routed experts [bytes].

    Parameters
    ----------
    instance : InstanceSpec
        The instance.
    """
    return weight_bytes_per_gpu_by_group(instance)["routed_experts"]
