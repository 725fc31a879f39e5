"""The shapes that the bundled vision-language checkpoints share: stock configurations, deep and narrow on purpose."""

from dataclasses import dataclass
from typing import Any

CANVAS = 320  # edge of the world's pictures
IMAGE_SIZE = 160  # edge of what a model sees of them
SIDE = 8  # a picture is told apart into 8 x 8 squares, each with an image slot
IMAGE_TOKENS = SIDE**2
CONTEXT = 2048


@dataclass(frozen=True)
class TokenIds:
    """The ids a configuration needs from the tokenizer, and its size. around: those before and behind a picture."""

    vocabulary: int
    image: int
    start: int
    end: int
    padding: int
    around: tuple[int, int] | None = None


def decoder_shape(ids: TokenIds, layers: int, width: int) -> dict[str, Any]:
    """A decoder of Llama's kind; `width` is a multiple of 32."""
    heads = width // 32
    return {
        "model_type": "llama",
        "vocab_size": ids.vocabulary,
        "hidden_size": width,
        "intermediate_size": width * 27 // 10,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.04,
        "tie_word_embeddings": True,
        "bos_token_id": ids.start,
        "eos_token_id": ids.end,
        "pad_token_id": ids.padding,
    }


def tower_shape(layers: int, width: int, image_size: int, patch_size: int) -> dict[str, Any]:
    """A vision tower of SigLIP's kind."""
    return {
        "hidden_size": width,
        "intermediate_size": width * 4,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "image_size": image_size,
        "patch_size": patch_size,
        "initializer_range": 0.04,
    }
