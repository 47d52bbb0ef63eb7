"""Read a Hugging Face ``config.json``.

Dense (Llama, Mistral, Qwen2, Qwen3), mixture-of-experts (Qwen2/3-MoE, Qwen3-Next, Mixtral, GLM-4.5,
DeepSeek-V2/V3, Kimi K2), grouped-query and multi-head latent attention, gated-delta linear
attention, tied embeddings, quantised checkpoints, and the text part of a multi-modal model.

A model type that is not named here is accepted where its keys say everything that is needed (a
decoder with gated feed-forward networks and full attention) and carries a note.  What would be
counted wrongly raises :class:`~smetric_model.errors.SpecError` and names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smetric_model.catalog.llm import Attention, LinearAttention, Llm, Moe
from smetric_model.catalog.llm_keys import Keys
from smetric_model.catalog.llm_matrices import Shapes, list_matrices
from smetric_model.catalog.llm_quantisation import QuantisedCheckpoint, parse_quantisation
from smetric_model.catalog.llm_refusals import refuse_what_is_not_modelled
from smetric_model.errors import SpecError

__all__ = ["llm_from_config"]

_QWEN_NEXT = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"}
_DEEPSEEK = {"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"}
_QWEN_MOE = {"qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", *_QWEN_NEXT}
_QK_NORM = {"qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", *_QWEN_NEXT}
_ALWAYS_QKV_BIAS = {"qwen2", "qwen2_moe", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl"}
_KNOWN = {
    "llama",
    "mistral",
    "mixtral",
    "glm4_moe",
    *_QK_NORM,
    *_ALWAYS_QKV_BIAS,
    *_DEEPSEEK,
    *_QWEN_MOE,
}
_GATED_ACTIVATIONS = {"silu", "swish", "swiglu"}
_TEXT_KEYS = ("text_config", "llm_config", "language_config")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16", "auto": "bf16"}


def llm_from_config(
    config: Mapping[str, Any], name: str, where: str, source: str = "", notes: tuple[str, ...] = ()
) -> Llm:
    """Build an :class:`~smetric_model.catalog.llm.Llm` from the keys of a configuration file.

    Parameters
    ----------
    config : Mapping
        The parsed ``config.json``.
    name : str
        Name of the model.
    where : str
        File, for messages.
    source : str
        Where the file comes from; `where` if empty.
    notes : tuple of str
        What to add to the notes.

    Raises
    ------
    SpecError
        If a key is missing or wrong, or the architecture cannot be modelled honestly.
    """
    if not isinstance(config, Mapping):
        raise SpecError(f"{where}: must hold one JSON object, holds {type(config).__name__}")
    outer, found = config, list(notes)
    for key in _TEXT_KEYS:
        if isinstance(config.get(key), Mapping) and "hidden_size" in config[key]:
            config, where = config[key], f"{where}: {key}"
            found.append("only the text part is counted, no vision or audio tower")
            break
    keys = Keys(config, outer, where)
    kind = keys.text("model_type")
    refuse_what_is_not_modelled(keys, kind)
    if kind not in _KNOWN:
        _check_unknown_type(keys, kind)
        found.append(f"model_type {kind!r} is read as a plain decoder; check the parameter count")

    dtype = _activation_dtype(keys, found)
    layers = keys.integer("num_hidden_layers")
    linear, linear_layers = _linear_attention(keys, kind, layers, dtype)
    attention = _attention(keys, kind, layers - len(linear_layers))
    moe, moe_layers = _moe(keys, kind, layers)
    shapes = Shapes(
        hidden_size=keys.integer("hidden_size"),
        vocab_size=keys.integer("vocab_size"),
        layers=layers,
        tied_embeddings=keys.flag("tie_word_embeddings"),
        attention=attention,
        linear_attention=linear,
        linear_layers=linear_layers,
        moe=moe,
        moe_layers=moe_layers,
        dense_intermediate_size=(
            keys.integer("intermediate_size") if len(moe_layers) < layers else 0
        ),
        qkv_bias=kind in _ALWAYS_QKV_BIAS or keys.flag("attention_bias"),
        output_bias=keys.flag("attention_bias")
        and kind != "glm4_moe"
        and kind not in _ALWAYS_QKV_BIAS,
        mlp_bias=keys.flag("mlp_bias"),
        qk_norm=kind in _QK_NORM or keys.flag("use_qk_norm"),
        output_gate=kind in _QWEN_NEXT,
        router_bias=kind in {"deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"}
        or keys.get("topk_method") == "noaux_tc",
        shared_expert_gate=bool(
            moe and moe.shared_intermediate_size and (kind == "qwen2_moe" or kind in _QWEN_NEXT)
        ),
    )
    checkpoint = _checkpoint(keys)
    return Llm(
        name=name,
        model_type=kind,
        hidden_size=shapes.hidden_size,
        layers=layers,
        vocab_size=shapes.vocab_size,
        max_context_tokens=_max_context(keys),
        tied_embeddings=shapes.tied_embeddings,
        attention=attention,
        linear_attention=linear,
        moe=moe,
        dense_layers=layers - len(moe_layers),
        dense_intermediate_size=shapes.dense_intermediate_size,
        matrices=list_matrices(shapes, checkpoint.kept if checkpoint else None),
        activation_dtype=dtype,
        quantisation=checkpoint.quantisation if checkpoint else None,
        kv_dtype=(checkpoint and checkpoint.kv_dtype) or dtype,
        source=source or where,
        notes=tuple(found),
    )


def _check_unknown_type(keys: Keys, kind: str) -> None:
    """Refuse an unknown type that may be no decoder, or whose weights would be counted wrongly."""
    architectures = keys.outer.get("architectures") or []
    if architectures and not any(
        str(item).endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
        for item in architectures
    ):
        raise keys.error("architectures", f"is {architectures!r}: no text generator")
    activation = keys.get("hidden_act", keys.get("hidden_activation"))
    if activation not in _GATED_ACTIVATIONS:
        raise keys.error(
            "hidden_act",
            f"is {activation!r}: model_type {kind!r} is not known, and only gated feed-forward "
            f"networks ({', '.join(sorted(_GATED_ACTIVATIONS))}) can be counted from keys alone",
        )
    keys.integer("num_key_value_heads")


def _activation_dtype(keys: Keys, notes: list[str]) -> str:
    # dtype is the newer name; where both stand, Transformers reads it
    key = "dtype" if keys.has("dtype") else "torch_dtype"
    value = keys.get(key)
    if value is None:
        notes.append("torch_dtype is not stated; bf16 assumed")
        return "bf16"
    dtype = _DTYPES.get(str(value).removeprefix("torch."))
    if dtype is None:
        raise keys.error(key, f"is {value!r}; allowed: {', '.join(_DTYPES)}")
    if str(value).endswith("float32"):
        notes.append(f"{key} is float32; engines serve it as bf16")
    return dtype


def _attention(keys: Keys, kind: str, layers: int) -> Attention:
    heads = keys.integer("num_attention_heads")
    if layers < 1:
        raise keys.error("num_hidden_layers", "leaves no layer with full attention")
    if kind in _DEEPSEEK or keys.get("kv_lora_rank") is not None:
        rope, nope = keys.integer("qk_rope_head_dim"), keys.integer("qk_nope_head_dim")
        return Attention(
            kind="mla",
            layers=layers,
            heads=heads,
            kv_heads=1,
            head_dim=rope + nope,
            v_head_dim=keys.integer("v_head_dim"),
            kv_lora_rank=keys.integer("kv_lora_rank"),
            qk_rope_head_dim=rope,
            qk_nope_head_dim=nope,
            q_lora_rank=keys.integer("q_lora_rank", default=0, least=0),
        )
    # Absent means multi-head attention only in the first Llama files; elsewhere it is an omission.
    default_kv_heads = heads if kind == "llama" else None
    kv_heads = keys.integer("num_key_value_heads", default=default_kv_heads)
    if heads % kv_heads:
        raise keys.error("num_key_value_heads", f"is {kv_heads}: does not divide {heads} heads")
    head_dim = keys.integer("head_dim", default=0, least=0)
    if not head_dim:
        hidden = keys.integer("hidden_size")
        if hidden % heads:
            raise keys.error(
                "head_dim", f"is missing, and hidden_size {hidden} is no multiple of {heads} heads"
            )
        head_dim = hidden // heads
    v_head_dim = keys.integer("v_head_dim", default=head_dim)
    return Attention("gqa", layers, heads, kv_heads, head_dim, v_head_dim)


def _linear_attention(
    keys: Keys, kind: str, layers: int, dtype: str
) -> tuple[LinearAttention | None, frozenset[int]]:
    types = keys.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise keys.error("layer_types", f"must list {layers} layers (num_hidden_layers)")
        which = frozenset(i for i, item in enumerate(types) if item == "linear_attention")
    elif kind in _QWEN_NEXT:
        interval = keys.integer("full_attention_interval")
        which = frozenset(i for i in range(layers) if (i + 1) % interval)
    else:
        which = frozenset()
    if not which:
        return None, which
    if kind not in _QWEN_NEXT:
        raise keys.error("layer_types", f"has linear_attention, not modelled for {kind!r}")
    key_heads, value_heads = (
        keys.integer("linear_num_key_heads"),
        keys.integer("linear_num_value_heads"),
    )
    key_dim, value_dim = (
        keys.integer("linear_key_head_dim"),
        keys.integer("linear_value_head_dim"),
    )
    kernel = keys.integer("linear_conv_kernel_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    linear = LinearAttention(
        layers=len(which),
        key_heads=key_heads,
        value_heads=value_heads,
        key_head_dim=key_dim,
        value_head_dim=value_dim,
        conv_kernel=kernel,
        state_elements_per_layer=value_heads * key_dim * value_dim,
        conv_elements_per_layer=channels * (kernel - 1),
        state_dtype="fp32",
        conv_dtype=dtype,
    )
    return linear, which


def _moe(keys: Keys, kind: str, layers: int) -> tuple[Moe | None, frozenset[int]]:
    experts_key = next(
        (
            key
            for key in ("num_experts", "n_routed_experts", "num_local_experts")
            if keys.get(key) is not None
        ),
        None,
    )
    if experts_key is None:
        if kind in _QWEN_MOE - {"qwen3_5_text", "qwen3_5"} or kind == "qwen3_next":
            keys.integer("num_experts")
        if kind in {"deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"}:
            keys.integer("n_routed_experts")
        if kind == "mixtral":
            keys.integer("num_local_experts")
        return None, frozenset()
    experts = keys.integer(experts_key, least=0)
    if experts == 0:
        return None, frozenset()
    which = _moe_layers(keys, layers)
    if not which:
        return None, which
    if kind == "mixtral" or (
        experts_key == "num_local_experts" and not keys.has("moe_intermediate_size")
    ):
        width = keys.integer("intermediate_size")
    else:
        width = keys.integer("moe_intermediate_size")
    if kind == "qwen2_moe" or kind in _QWEN_NEXT:
        shared = keys.integer("shared_expert_intermediate_size")
    elif kind in {"qwen3_moe", "qwen3_vl_moe_text", "mixtral"}:
        shared = 0  # the files carry the key, the models have no shared expert
    else:
        shared = width * keys.integer("n_shared_experts", default=0, least=0)
    hidden = keys.integer("hidden_size")
    moe = Moe(
        layers=len(which),
        experts=experts,
        experts_per_token=_experts_per_token(keys, experts),
        intermediate_size=width,
        shared_intermediate_size=shared,
        expert_params=3 * hidden * width,
        shared_expert_params=3 * hidden * shared,
    )
    return moe, which


def _experts_per_token(keys: Keys, experts: int) -> int:
    chosen = keys.integer("num_experts_per_tok")
    if chosen > experts:
        raise keys.error("num_experts_per_tok", f"is {chosen}: more than {experts} experts")
    return chosen


def _moe_layers(keys: Keys, layers: int) -> frozenset[int]:
    dense_only = keys.get("mlp_only_layers") or []
    if not isinstance(dense_only, list):
        raise keys.error("mlp_only_layers", f"must be a list, is {dense_only!r}")
    step = keys.integer("decoder_sparse_step", default=1)
    first_dense = keys.integer("first_k_dense_replace", default=0, least=0)
    frequency = keys.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        if len(frequency) != layers:
            raise keys.error("moe_layer_freq", f"must list {layers} layers (num_hidden_layers)")
        return frozenset(i for i, flag in enumerate(frequency) if flag)
    every = keys.integer("moe_layer_freq", default=1)
    return frozenset(
        i
        for i in range(layers)
        if i not in dense_only and (i + 1) % step == 0 and i >= first_dense and i % every == 0
    )


def _max_context(keys: Keys) -> int:
    """Longest context, long-context scaling included, as engines derive it."""
    longest = keys.integer("max_position_embeddings")
    scaling = keys.get("rope_scaling", keys.get("rope_parameters"))
    if not isinstance(scaling, Mapping):
        return longest
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling.get("factor")
    if kind not in ("yarn", "linear", "dynamic") or not isinstance(factor, int | float):
        return longest
    original = scaling.get("original_max_position_embeddings") if kind == "yarn" else None
    return round(factor * (original or longest))


def _checkpoint(keys: Keys) -> QuantisedCheckpoint | None:
    for key in ("quantization_config", "compression_config", "quantization"):
        table = keys.get(key, keys.outer.get(key))
        if table is not None:
            if not isinstance(table, Mapping):
                raise keys.error(key, f"must be an object, is {table!r}")
            return parse_quantisation(table, f"{keys.where}: {key}")
    return None
