"""LLMs: architecture, exact parameter counts and data types.

An :class:`Llm` is read from a Hugging Face ``config.json`` or from the catalog ``data/llms.toml``,
which stores the same keys (:mod:`smetric_model.catalog.llm_config`).  Every parameter count is
computed from the list of the model's weight matrices; none is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import ceil

from smetric_model.errors import SpecError
from smetric_model.units import dtype_bytes

__all__ = [
    "GROUPS",
    "Attention",
    "LinearAttention",
    "Llm",
    "Moe",
    "ParamCounts",
    "Quantisation",
    "WeightMatrix",
    "get_llm",
    "llm_names",
]

#: What a weight belongs to; tensor parallelism and quantisation treat each group as one.
GROUPS = (
    "embedding",
    "lm_head",
    "attention_sharded",
    "attention_kv",
    "attention_replicated",
    "linear_attention",
    "dense_ffn",
    "router",
    "shared_experts",
    "routed_experts",
    "norms",
)


@dataclass(frozen=True)
class Quantisation:
    """How quantised weights are stored: element type plus what goes with it.

    Parameters
    ----------
    dtype : str
        Element type: ``fp8``, ``int8`` or ``int4``.
    block : tuple of int
        Outputs × inputs that share one scale; 0 stands for the whole extent, so ``(0, 0)`` is one
        scale per matrix, ``(1, 0)`` one per output channel and ``(1, 128)`` groups of 128 inputs.
    scale_bytes : float
        Bytes of one scale [bytes].
    zero_point_bytes : float
        Bytes of one zero point, stored beside each scale; 0 for symmetric schemes [bytes].
    method : str
        As the file calls it (``fp8``, ``awq``, ``gptq``, ``compressed-tensors``).
    """

    dtype: str
    block: tuple[int, int] = (128, 128)
    scale_bytes: float = 4.0
    zero_point_bytes: float = 0.0
    method: str = "fp8"

    def __post_init__(self) -> None:
        dtype_bytes(self.dtype)
        if min(self.block) < 0 or self.scale_bytes < 0 or self.zero_point_bytes < 0:
            raise SpecError(f"quantisation: negative block, scale or zero point in {self!r}")

    def matrix_bytes(self, outputs: int, inputs: int) -> float:
        """Bytes of one quantised matrix, scales and zero points included [bytes]."""
        rows, columns = self.block
        scales = (ceil(outputs / rows) if rows else 1) * (ceil(inputs / columns) if columns else 1)
        return outputs * inputs * dtype_bytes(self.dtype) + scales * (
            self.scale_bytes + self.zero_point_bytes
        )


#: What :meth:`Llm.with_weight_dtype` applies; Qwen3 and DeepSeek-V3 publish FP8 block by block.
_CONVENTIONS = {
    "fp8": Quantisation("fp8", (128, 128), 4.0, 0.0, "fp8"),
    "int8": Quantisation("int8", (1, 0), 4.0, 0.0, "int8"),
    "int4": Quantisation("int4", (1, 128), 2.0, 0.0, "int4"),
}


@dataclass(frozen=True)
class WeightMatrix:
    """Equal weight matrices (or vectors) of one model, counted together.

    Parameters
    ----------
    name : str
        Name inside a layer, such as ``self_attn.q_proj``.
    group : str
        One of :data:`GROUPS`.
    outputs, inputs : int
        Shape; a vector has one input.
    count : int
        How many of them the model holds.
    convertible : bool
        Whether a quantiser would convert it (a linear layer that is no head, gate or vector).
    quantised : bool
        Whether the checkpoint holds it in the quantised type.
    """

    name: str
    group: str
    outputs: int
    inputs: int
    count: int
    convertible: bool = False
    quantised: bool = False

    @property
    def elements(self) -> int:
        """Parameters of all of them together."""
        return self.outputs * self.inputs * self.count


@dataclass(frozen=True)
class Attention:
    """The attention layers that keep a KV cache.

    Parameters
    ----------
    kind : str
        ``gqa`` (multi-head and multi-query attention are its ends) or ``mla``.
    layers : int
        Layers with a KV cache (linear-attention layers have none).
    heads, kv_heads : int
        Query heads, KV heads.
    head_dim : int
        Dimension of one query and key head; for MLA ``qk_nope_head_dim + qk_rope_head_dim``.
    v_head_dim : int
        Dimension of one value head.
    kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim : int
        MLA only: what one layer caches per token is ``kv_lora_rank + qk_rope_head_dim`` elements.
    q_lora_rank : int
        MLA only; 0 where queries are not compressed.
    """

    kind: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    q_lora_rank: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("gqa", "mla"):
            raise SpecError(f"attention kind {self.kind!r} is not known; 'gqa' or 'mla'")
        for name in ("layers", "heads", "kv_heads", "head_dim", "v_head_dim"):
            if getattr(self, name) < 1:
                raise SpecError(f"attention: {name} = {getattr(self, name)}, must be >= 1")
        if self.heads % self.kv_heads:
            raise SpecError(
                f"attention: {self.heads} heads are no multiple of {self.kv_heads} KV heads"
            )

    @property
    def kv_elements_per_token_per_layer(self) -> int:
        """Elements one layer caches per token, nothing replicated."""
        if self.kind == "mla":
            return self.kv_lora_rank + self.qk_rope_head_dim
        return self.kv_heads * (self.head_dim + self.v_head_dim)


@dataclass(frozen=True)
class LinearAttention:
    """Layers whose past is a state of fixed size (gated delta rule, as in Qwen3-Next).

    Parameters
    ----------
    layers : int
        Layers of this kind.
    key_heads, value_heads, key_head_dim, value_head_dim, conv_kernel : int
        Shapes; a FLOP count per token needs them.  The state of a value head is a
        ``key_head_dim × value_head_dim`` matrix.
    state_elements_per_layer, conv_elements_per_layer : int
        Recurrent state and convolution window of one request in one layer.
    state_dtype, conv_dtype : str
        Their data types.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_elements_per_layer: int
    conv_elements_per_layer: int
    state_dtype: str = "fp32"
    conv_dtype: str = "bf16"


@dataclass(frozen=True)
class Moe:
    """The mixture-of-experts layers.

    Parameters
    ----------
    layers : int
        Layers of this kind.
    experts, experts_per_token : int
        Routed experts of a layer, and how many a token visits.
    intermediate_size, shared_intermediate_size : int
        Width of one routed expert; of the shared experts of a layer together (0 for none).
    expert_params : int
        Parameters of one routed expert in one layer.
    shared_expert_params : int
        Parameters of the shared experts of one layer.
    """

    layers: int
    experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int
    expert_params: int
    shared_expert_params: int

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.experts:
            raise SpecError(
                f"MoE: {self.experts_per_token} experts per token of {self.experts}: "
                "must be between 1 and the number of experts"
            )


@dataclass(frozen=True)
class ParamCounts:
    """Parameters by group, each the sum over all layers.

    ``attention`` = ``attention_sharded`` (query and output projections, MLA up-projections) +
    ``attention_kv`` (key and value projections, replicated where tensor parallelism exceeds the KV
    heads) + ``attention_replicated`` (MLA down-projections and output biases, whole on each GPU).
    Norms (query and key norms included) and the router are whole on each GPU too.
    ``lm_head`` is 0 where the embedding serves as output head.
    """

    embedding: int
    lm_head: int
    attention_sharded: int
    attention_kv: int
    attention_replicated: int
    linear_attention: int
    dense_ffn: int
    router: int
    shared_experts: int
    routed_experts: int
    norms: int
    #: of the routed experts, what one token visits
    routed_experts_active: int

    @property
    def attention(self) -> int:
        """All projections of the attention layers with a KV cache."""
        return self.attention_sharded + self.attention_kv + self.attention_replicated

    @property
    def total(self) -> int:
        """All parameters, each counted once."""
        return sum(getattr(self, group) for group in GROUPS)

    @property
    def non_embedding(self) -> int:
        """All but embedding and output head."""
        return self.total - self.embedding - self.lm_head

    @property
    def output_head(self) -> int:
        """The matrix that makes the logits, be it ``lm_head`` or the tied embedding."""
        return self.lm_head or self.embedding

    @property
    def active_non_embedding(self) -> int:
        """Parameters one token passes through, without embedding and output head."""
        return self.non_embedding - self.routed_experts + self.routed_experts_active

    @property
    def active(self) -> int:
        """Parameters one token passes through, output head included, embedding not."""
        return self.active_non_embedding + self.output_head


@dataclass(frozen=True)
class Llm:
    """One LLM.

    Parameters
    ----------
    name : str
        Catalog name, or the path it was read from.
    model_type : str
        As the configuration file calls it.
    hidden_size, layers, vocab_size : int
        Shapes.
    max_context_tokens : int
        Longest prompt + output the model was made for [tokens].
    tied_embeddings : bool
        Whether the embedding serves as output head.
    attention : Attention
        Layers with a KV cache.
    linear_attention : LinearAttention or None
        Layers with a fixed state.
    moe : Moe or None
        Mixture-of-experts layers.
    dense_layers, dense_intermediate_size : int
        Layers with a dense feed-forward network, and its width (0 where there are none).
    matrices : tuple of WeightMatrix
        Every weight of the model; counts and bytes come from here.
    activation_dtype : str
        Type of activations and of the weights that are not quantised (``bf16`` or ``fp16``).
    quantisation : Quantisation or None
        Of the checkpoint; None where all weights have ``activation_dtype``.
    kv_dtype : str
        Type of the KV cache unless an instance asks for another: the activation type, also for
        FP8 weights, unless the file names a KV scheme.
    source : str
        Where the facts come from.
    notes : tuple of str
        What was assumed, or is not counted.
    """

    name: str
    model_type: str
    hidden_size: int
    layers: int
    vocab_size: int
    max_context_tokens: int
    tied_embeddings: bool
    attention: Attention
    linear_attention: LinearAttention | None
    moe: Moe | None
    dense_layers: int
    dense_intermediate_size: int
    matrices: tuple[WeightMatrix, ...]
    activation_dtype: str = "bf16"
    quantisation: Quantisation | None = None
    kv_dtype: str = "bf16"
    source: str = ""
    notes: tuple[str, ...] = ()
    params: ParamCounts = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", _count(self.matrices, self.moe))

    @property
    def weight_dtype(self) -> str:
        """Element type of most weights: the quantised one, or the activation type."""
        return self.quantisation.dtype if self.quantisation else self.activation_dtype

    def matrix_bytes(self, matrix: WeightMatrix) -> float:
        """Bytes of one of the (equal) matrices, scales included [bytes]."""
        if matrix.quantised and self.quantisation is not None:
            return self.quantisation.matrix_bytes(matrix.outputs, matrix.inputs)
        return matrix.outputs * matrix.inputs * dtype_bytes(self.activation_dtype)

    def with_weight_dtype(self, dtype: str) -> Llm:
        """Return the same model with its linear layers stored in another type.

        Embedding, output head, norms, router and biases keep the activation type, as the published
        checkpoints do.  ``fp8`` means one fp32 scale per 128 × 128 block, ``int8`` one fp32 scale
        per output channel, ``int4`` one fp16 scale per 128 inputs.  A checkpoint that has the type
        already is returned as it is, with its own scales and exceptions.

        Parameters
        ----------
        dtype : str
            ``bf16``, ``fp16``, ``fp8``, ``int8`` or ``int4``.

        Raises
        ------
        SpecError
            For any other type.
        """
        if dtype == self.weight_dtype:
            return self
        if dtype in ("bf16", "fp16"):
            matrices = tuple(replace(matrix, quantised=False) for matrix in self.matrices)
            return replace(self, quantisation=None, activation_dtype=dtype, matrices=matrices)
        if dtype not in _CONVENTIONS:
            allowed = ", ".join(("bf16", "fp16", *_CONVENTIONS))
            raise SpecError(f"weight_dtype {dtype!r} is not known; one of {allowed}")
        return replace(
            self,
            quantisation=_CONVENTIONS[dtype],
            matrices=tuple(replace(m, quantised=m.convertible) for m in self.matrices),
        )


def _count(matrices: Iterable[WeightMatrix], moe: Moe | None) -> ParamCounts:
    totals = dict.fromkeys(GROUPS, 0)
    for matrix in matrices:
        totals[matrix.group] += matrix.elements
    active = moe.layers * moe.experts_per_token * moe.expert_params if moe else 0
    return ParamCounts(**totals, routed_experts_active=active)


def llm_names() -> list[str]:
    """Names of the LLMs in the catalog."""
    from smetric_model.catalog.llm_catalog import catalog_names

    return catalog_names()


def get_llm(name_or_path: str) -> Llm:
    """Return an LLM of the catalog, or read one from a Hugging Face configuration file.

    Parameters
    ----------
    name_or_path : str
        Catalog name (``"Qwen3-32B"``; an organisation in front, as in ``"Qwen/Qwen3-32B"``, is
        ignored), or a path to a ``config.json`` or to the folder that holds it.

    Raises
    ------
    SpecError
        For an unknown name (the message lists the known ones), a file that is no JSON, a missing
        key, or an architecture that this model cannot describe honestly.
    """
    from smetric_model.catalog.llm_catalog import load

    return load(str(name_or_path))
