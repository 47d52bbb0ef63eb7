"""What an engine takes of a GPU's memory beside weights and KV cache.

The constants are per engine, in ``data/memory.toml``, with where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from smetric_model.catalog._lookup import unknown
from smetric_model.catalog.instance import InstanceSpec
from smetric_model.datafiles import load_toml
from smetric_model.errors import SpecError
from smetric_model.units import dtype_bytes

__all__ = ["EngineMemory", "activation_peak_bytes", "engine_memory", "graph_bytes", "runtime_bytes"]


@dataclass(frozen=True)
class EngineMemory:
    """Constants of one engine.

    Parameters
    ----------
    covers : str
        What ``memory_utilisation`` covers: ``everything``, or ``weights and pool``.
    driver_reserved_bytes : float
        Device memory that the driver counts but does not offer [bytes].
    sampling_bytes_per_logit : float
        Peak of the sampling phase per request and vocabulary entry [bytes].
    runtime_bytes, runtime_tensor_parallel_bytes : float
        Memory outside the tensor allocator, with one and with several GPUs [bytes per GPU].
    graph_bytes_per_layer : float
        CUDA graphs [bytes per GPU and layer].
    """

    covers: str
    driver_reserved_bytes: float
    sampling_bytes_per_logit: float
    runtime_bytes: float
    runtime_tensor_parallel_bytes: float
    graph_bytes_per_layer: float

    def __post_init__(self) -> None:
        if self.covers not in ("everything", "weights and pool"):
            raise SpecError(
                f"data/memory.toml: covers = {self.covers!r}; 'everything' or 'weights and pool'"
            )


@cache
def engine_memory(name: str) -> EngineMemory:
    """Return the constants of an engine.

    Parameters
    ----------
    name : str
        Such as ``"vllm"``.

    Raises
    ------
    SpecError
        For an unknown engine; the message lists the known ones.
    """
    table = load_toml("memory.toml")
    if name not in table:
        raise unknown("engine", name, table, " To add one: data/memory.toml.")
    facts = {key: value for key, value in table[name].items() if not key.endswith("_source")}
    try:
        return EngineMemory(**facts)
    except TypeError as error:
        raise SpecError(f"data/memory.toml, [{name}]: {error}") from None


def _forward_elements_per_token(instance: InstanceSpec) -> float:
    """Activation elements that a GPU holds at once per token of a step, at the widest block."""
    llm, tp, ep = instance.llm, instance.tp, instance.ep
    attention, hidden = llm.attention, llm.hidden_size
    heads = attention.heads / tp
    if attention.kind == "mla":
        # queries, the latent, keys and values unfolded from it, and the output
        unfolded = attention.head_dim + attention.qk_nope_head_dim + 2 * attention.v_head_dim
        latent = attention.q_lora_rank + attention.kv_elements_per_token_per_layer
        blocks = [latent + heads * unfolded + hidden]
    else:
        per_kv_head = attention.head_dim + attention.v_head_dim
        blocks = [heads * per_kv_head + instance.kv_heads_per_gpu * per_kv_head + hidden]
    if llm.dense_layers:
        blocks.append(3 * llm.dense_intermediate_size / tp + hidden)
    if llm.moe is not None:
        width = llm.moe.intermediate_size * ep / tp
        routed = llm.moe.experts_per_token * (max(2 * width, hidden) + width)
        shared = 3 * llm.moe.shared_intermediate_size / tp
        blocks.append(routed + shared + llm.moe.experts + hidden)
    linear = llm.linear_attention
    if linear is not None:
        keys = linear.key_heads * linear.key_head_dim
        values = linear.value_heads * linear.value_head_dim
        blocks.append((4 * keys + 4 * values) / tp + hidden)
    return 2 * hidden + max(blocks)


def activation_peak_bytes(instance: InstanceSpec) -> float:
    """Peak of what an engine step allocates for a while, per GPU.

    The larger of two phases, since the allocator reuses the memory of one for the other:

    - forward pass: ``token_budget`` tokens × (residual stream, layer input, and the widest block:
      attention, dense feed-forward, or the experts' ``experts_per_token`` copies) × 2 bytes;
    - sampling: the tokens' hidden states, plus ``max_running_requests`` × vocabulary logits, whole
      on every GPU, at ``sampling_bytes_per_logit``.

    It does not depend on context length.  Sources: the structure of the two phases; the constant
    per logit is measured (``data/memory.toml``).

    Parameters
    ----------
    instance : InstanceSpec
        The instance.

    Returns
    -------
    float
        [bytes]; 0 where the engine's memory fraction leaves activations out.
    """
    engine = engine_memory(instance.engine)
    if engine.covers != "everything":
        return 0.0
    llm, tokens = instance.llm, instance.token_budget
    element = dtype_bytes(llm.activation_dtype)
    forward = tokens * _forward_elements_per_token(instance) * element
    sampled = min(instance.max_running_requests, tokens)
    logits = sampled * llm.vocab_size * engine.sampling_bytes_per_logit
    return max(forward, tokens * llm.hidden_size * element + logits)


def graph_bytes(instance: InstanceSpec) -> float:
    """CUDA graphs per GPU: proportional to the layers; 0 in eager mode [bytes].

    Parameters
    ----------
    instance : InstanceSpec
        The instance.
    """
    if instance.mode == "eager":
        return 0.0
    return instance.llm.layers * engine_memory(instance.engine).graph_bytes_per_layer


def runtime_bytes(instance: InstanceSpec) -> float:
    """Libraries' workspaces and communication buffers per GPU [bytes].

    Parameters
    ----------
    instance : InstanceSpec
        The instance.
    """
    engine = engine_memory(instance.engine)
    return engine.runtime_bytes if instance.tp == 1 else engine.runtime_tensor_parallel_bytes
