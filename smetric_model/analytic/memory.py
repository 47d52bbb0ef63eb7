"""Device memory of one instance: weights, KV cache, fixed states, and the local tier left over.

Everything an instance holds is counted per GPU and for the fullest GPU; a KV pool is the same size
on each GPU of an instance, so totals are ``tp`` times that.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from math import ceil, floor

from smetric_model.analytic.engine_memory import (
    activation_peak_bytes,
    engine_memory,
    graph_bytes,
    runtime_bytes,
)
from smetric_model.catalog.instance import InstanceSpec, tensor_parallel_problem
from smetric_model.catalog.llm import GROUPS
from smetric_model.errors import SpecError
from smetric_model.units import dtype_bytes

__all__ = [
    "LocalTier",
    "MemoryBudget",
    "expert_weight_bytes_per_gpu",
    "fits",
    "fixed_state_bytes_per_request",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_gpu",
    "local_tier",
    "memory_budget",
    "min_tp",
    "missing_bytes",
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


@dataclass(frozen=True)
class MemoryBudget:
    """Where the memory of one GPU goes [bytes, all].

    ``pool_bytes`` = ``usable_bytes`` − all the others; negative where the weights do not fit.
    """

    device_bytes: float
    usable_bytes: float
    weight_bytes: float
    activation_peak_bytes: float
    graph_bytes: float
    runtime_bytes: float

    @property
    def pool_bytes(self) -> float:
        """What is left for the KV cache [bytes]."""
        return (
            self.usable_bytes
            - self.weight_bytes
            - self.activation_peak_bytes
            - self.graph_bytes
            - self.runtime_bytes
        )


@dataclass(frozen=True)
class LocalTier:
    """KV cache of one instance in device memory.

    Parameters
    ----------
    bytes : float
        Whole instance, copies of replicated KV heads included [bytes].
    tokens : int
        Tokens it holds, before rounding to blocks [tokens].
    blocks : int
        Whole blocks it holds.
    """

    bytes: float
    tokens: int
    blocks: int


def memory_budget(instance: InstanceSpec) -> MemoryBudget:
    """Split the memory of the fullest GPU of an instance.

    ``usable = (device memory − driver's reserve) · memory_utilisation``.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.

    Raises
    ------
    SpecError
        For an unknown engine.
    """
    device = float(instance.gpu.memory_bytes)
    reserve = engine_memory(instance.engine).driver_reserved_bytes
    return MemoryBudget(
        device_bytes=device,
        usable_bytes=(device - reserve) * instance.memory_utilisation,
        weight_bytes=weight_bytes_per_gpu(instance),
        activation_peak_bytes=activation_peak_bytes(instance),
        graph_bytes=graph_bytes(instance),
        runtime_bytes=runtime_bytes(instance),
    )


def _pool_and_rate(
    instance: InstanceSpec, pool: float | None, per_token: float | None
) -> tuple[float, float]:
    """Pool of the whole instance (negative where nothing is left) and bytes per token."""
    for name, value in (("kv_bytes", pool), ("kv_bytes_per_token", per_token)):
        if value is not None and not 0 < value < float("inf"):
            raise SpecError(f"{name} = {value!r}: must be a finite number > 0")
    if pool is None:
        pool = instance.tp * memory_budget(instance).pool_bytes
    if per_token is None:
        per_token = kv_bytes_per_token(instance)
    if pool > per_token * sys.float_info.max:
        raise SpecError(
            f"kv_bytes_per_token = {per_token!r}: too small for a pool of {pool:g} bytes"
        )
    return pool, per_token


def local_tier(
    instance: InstanceSpec,
    kv_bytes: float | None = None,
    kv_bytes_per_token: float | None = None,
) -> LocalTier:
    """Size of the local tier: what weights, activations, graphs and runtime leave for the KV cache.

    Models with linear attention keep ``fixed_state_bytes_per_request`` of it per running request;
    that share is not taken off here.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.
    kv_bytes : float, optional
        Size of the whole instance's pool in place of the computed one, as read off an engine's log
        [bytes].
    kv_bytes_per_token : float, optional
        Bytes per token of the whole instance in place of the computed figure [bytes/token].

    Returns
    -------
    LocalTier
        Empty where the weights do not fit.

    Raises
    ------
    SpecError
        If one of the given figures is not positive.
    """
    pool, per_token = _pool_and_rate(instance, kv_bytes, kv_bytes_per_token)
    if kv_bytes is None and instance.kv_pool_tokens is not None:
        pool = instance.kv_pool_tokens * per_token
    pool = max(0.0, pool)
    tokens = floor(pool / per_token)
    return LocalTier(bytes=pool, tokens=tokens, blocks=tokens // instance.block_tokens)


def missing_bytes(
    instance: InstanceSpec,
    kv_bytes: float | None = None,
    kv_bytes_per_token: float | None = None,
) -> float:
    """Memory that an instance lacks to run at all, all its GPUs together.

    It runs if the pool holds one KV block and the fixed state of one request.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.
    kv_bytes, kv_bytes_per_token : float, optional
        In place of the computed figures, as in :func:`local_tier`.

    Returns
    -------
    float
        [bytes]; 0 where it fits.
    """
    pool, per_token = _pool_and_rate(instance, kv_bytes, kv_bytes_per_token)
    least = instance.block_tokens * per_token + fixed_state_bytes_per_request(instance)
    return max(0.0, least - pool)


def fits(instance: InstanceSpec) -> bool:
    """Whether an instance runs at all: :func:`missing_bytes` is 0.

    Parameters
    ----------
    instance : InstanceSpec
        The instance.
    """
    return missing_bytes(instance) == 0


def min_tp(instance: InstanceSpec) -> int | None:
    """Smallest number of GPUs on which the model fits, everything else as in `instance`.

    Candidates are all numbers over which the model can be split (they divide the heads, …) and
    which `ep` divides; whether a node has that many GPUs is not looked at.

    Parameters
    ----------
    instance : InstanceSpec
        The instance; its own `tp` does not matter.

    Returns
    -------
    int or None
        None where it fits on no number of GPUs that the model can be split over.
    """
    for tp in range(instance.ep, instance.llm.attention.heads + 1):
        if tensor_parallel_problem(instance.llm, tp, instance.ep) is None and fits(
            replace(instance, tp=tp)
        ):
            return tp
    return None
