"""Architectures that would be counted wrongly, recognised by the keys that announce them."""

from __future__ import annotations

from smetric_model.catalog.llm_keys import Keys

__all__ = ["refuse_what_is_not_modelled"]

#: key -> what it announces; present and neither null, false, zero nor empty means refusal
_KEYS = {
    "is_encoder_decoder": "encoder-decoder models are not modelled",
    "encoder_layers": "encoder-decoder models are not modelled",
    "attention_chunk_size": "chunked attention is not modelled",
    "index_topk": "sparse attention with an index cache is not modelled",
    "linear_attn_config": "this kind of linear attention is not modelled",
    "hybrid_override_pattern": "Mamba layers are not modelled",
    "layers_block_type": "Mamba layers are not modelled",
    "block_types": "recurrent blocks are not modelled",
    "attn_layer_period": "Mamba layers are not modelled",
    "mamba_d_state": "Mamba layers are not modelled",
    "mamba_d_ssm": "Mamba layers are not modelled",
    "ssm_cfg": "Mamba layers are not modelled",
    "ssm_state_size": "Mamba layers are not modelled",
    "state_size": "Mamba layers are not modelled",
    "block_configs": "layers of different shapes are not modelled",
    "num_kv_shared_layers": "layers that share a KV cache are not modelled",
    "cla_share_factor": "layers that share a KV cache are not modelled",
    "hybrid_layer_pattern": "sliding-window layers are not modelled",
    "sliding_window_pattern": "sliding-window layers are not modelled",
    "zero_expert_num": "experts that do nothing are not modelled",
}
_ENCODERS = {
    "albert", "bert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet",
    "nomic_bert", "roberta", "xlm-roberta", "t5", "mt5", "bart", "mbart", "whisper", "clip",
    "siglip", "vit", "wav2vec2", "hubert",
}  # fmt: skip
_INDEXED = {"deepseek_v32", "deepseek_v4", "glm_moe_dsa"}
_LAYER_TYPES = ("full_attention", "linear_attention")


def refuse_what_is_not_modelled(keys: Keys, kind: str) -> None:
    """Raise for architectures whose memory would be counted wrongly.

    Parameters
    ----------
    keys : Keys
        The configuration.
    kind : str
        Its ``model_type``.

    Raises
    ------
    SpecError
        Names the key that announces what is not modelled.
    """
    if kind in _ENCODERS:
        raise keys.error("model_type", f"is {kind!r}: no decoder, nothing to serve token by token")
    if kind in _INDEXED:
        raise keys.error(
            "model_type", f"is {kind!r}: sparse attention with an index cache is not modelled"
        )
    for key, reason in _KEYS.items():
        if keys.config.get(key) not in (None, False, 0, "", [], {}):
            raise keys.error(key, f"is set: {reason}")
    pattern = keys.get("attn_type_list")
    if pattern is not None and any(item != 1 for item in pattern):
        raise keys.error("attn_type_list", "has layers without full attention: not modelled")
    types = keys.get("layer_types")
    if types is not None:
        if not isinstance(types, list):
            raise keys.error("layer_types", f"must be a list, is {types!r}")
        other = sorted({str(item) for item in types} - set(_LAYER_TYPES))
        if other:
            raise keys.error("layer_types", f"has {', '.join(other)}: not modelled")
        return
    _refuse_sliding_window(keys, kind)


def _refuse_sliding_window(keys: Keys, kind: str) -> None:
    window = keys.get("sliding_window")
    # Qwen files carry a window that only use_sliding_window turns on
    used = keys.get("use_sliding_window", not kind.startswith("qwen"))
    if window is None or not used:
        return
    if window >= keys.integer("max_position_embeddings"):
        return
    first = keys.get("max_window_layers")
    if isinstance(first, int) and first >= keys.integer("num_hidden_layers"):
        return
    raise keys.error(
        "sliding_window", f"is {window}: sliding-window layers are not modelled (null: none)"
    )
