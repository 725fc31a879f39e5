"""The shape of a drafter's layers: that of the target's own, of the first one where they differ."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, Qwen3Config

from mmspec.decoder import first_layer


def layer_shape(target: Any, intermediate: int | None = None) -> dict[str, Any]:
    """The sizes of a decoder layer like the target's own. intermediate: width of the MLP, None for the target's."""
    text = first_layer(target.decoder.config)
    width = getattr(text, "intermediate_size", None) or 4 * target.hidden_size
    width = width[0] if isinstance(width, list) else width  # Gemma 3n names that of every layer
    rope = getattr(text, "rope_parameters", None) or {}
    if "rope_theta" not in rope:  # one set per kind of layer
        rope = rope.get("full_attention", {})
    return {
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "intermediate_size": intermediate or width,
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        "head_dim": getattr(text, "head_dim", None) or target.hidden_size // text.num_attention_heads,
        "max_position_embeddings": target.decoder.max_length,
        "rms_norm_eps": getattr(text, "rms_norm_eps", 1e-6),
        "rope_parameters": {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)},
    }


def head_config(target: Any, intermediate: int | None = None) -> LlamaConfig:
    """A Llama layer of the target's shape."""
    return LlamaConfig(num_hidden_layers=1, **layer_shape(target, intermediate))


def block_config(target: Any, layers: int, intermediate: int | None = None) -> Qwen3Config:
    """Qwen3 layers of the target's shape."""
    return Qwen3Config(num_hidden_layers=layers, **layer_shape(target, intermediate))
