"""A Qwen3-MoE small enough for one CPU core: configuration and tokenizer, no weights.

Its ratio of linear to attention work is about that of Qwen3-30B-A3B at a few thousand tokens, so
that prefill is mostly linear in the prompt, as on a GPU.  Engines fill it with random weights,
the same in all of them (``--load-format dummy --seed 0``).
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["FIRST_FILLER", "VOCABULARY", "write_tiny_model"]

VOCABULARY = 4096
#: ids from here on are words without meaning; those below are special
FIRST_FILLER = 16

_CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "max_position_embeddings": 32768,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}


def write_tiny_model(folder: Path) -> None:
    """Write ``config.json`` and the tokenizer.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<unk>", "<s>", "</s>"] + [f"<reserved_{i}>" for i in range(3, FIRST_FILLER)]
    words = special + [f"w{i}" for i in range(FIRST_FILLER, VOCABULARY)]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": word,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, word in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": 32768,
    }
    for name, content in (
        ("config.json", _CONFIG),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
