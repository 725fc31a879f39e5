"""The shapes of the bundled vision-language checkpoints: stock configurations, deep and narrow on purpose."""

from dataclasses import dataclass

from transformers import SmolVLMConfig

IMAGE_SIZE = 160
PATCH_SIZE = 10
SCALE_FACTOR = 2
PATCHES = IMAGE_SIZE // PATCH_SIZE
IMAGE_TOKENS = (PATCHES // SCALE_FACTOR) ** 2


@dataclass(frozen=True)
class TokenIds:
    """The ids a configuration needs from the tokenizer, and its size."""

    vocabulary: int
    image: int
    start: int
    end: int
    padding: int


def smolvlm_config(tokens: TokenIds, layers: int = 24, width: int = 160, vision_layers: int = 6) -> SmolVLMConfig:
    """The configuration of `smolvlm-mini`: about 10 M parameters, most of them in the depth of the decoder."""
    heads = width // 32
    text = {
        "model_type": "llama",
        "vocab_size": tokens.vocabulary,
        "hidden_size": width,
        "intermediate_size": width * 27 // 10,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.04,
        "tie_word_embeddings": True,
        "bos_token_id": tokens.start,
        "eos_token_id": tokens.end,
        "pad_token_id": tokens.padding,
    }
    vision = {
        "hidden_size": width,
        "intermediate_size": width * 4,
        "num_hidden_layers": vision_layers,
        "num_attention_heads": heads,
        "image_size": IMAGE_SIZE,
        "patch_size": PATCH_SIZE,
        "initializer_range": 0.04,
    }
    return SmolVLMConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=tokens.image,
        scale_factor=SCALE_FACTOR,
        tie_word_embeddings=True,
        pad_token_id=tokens.padding,
        bos_token_id=tokens.start,
        eos_token_id=tokens.end,
        initializer_range=0.04,
    )
