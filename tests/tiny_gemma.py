"""Tiny random models of Gemma 4 and Gemma 3n, with their stock processors (`tiny_families`)."""

from collections.abc import Callable
from typing import Any

from tiny_vision import PLAIN, SPREAD, finish, template, text, tokenizer, tower
from transformers import (
    Gemma3nAudioFeatureExtractor,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma3nProcessor,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessorPil,
    Gemma4Processor,
    Gemma4UnifiedAudioFeatureExtractor,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedImageProcessor,
    Gemma4UnifiedProcessor,
    Gemma4UnifiedVideoProcessor,
    Gemma4VideoProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
)

WINDOW = 8
SLIDING, FULL = "sliding_attention", "full_attention"
PATCHES = {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70}
"""The fewest slots that the processors take: a picture fills about 60."""
TOKENS = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "video_token": "<|video|>",
}


def shape(words: PreTrainedTokenizerFast, model_type: str, **changes: Any) -> dict[str, Any]:
    """A decoder whose layers have heads of two sizes and see a window or everything; the last two share keys."""
    special = {
        "num_hidden_layers": 5,
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
        "num_kv_shared_layers": 2,
        "sliding_window": WINDOW,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "use_double_wide_mlp": True,
        "use_bidirectional_attention": "vision",
        "final_logit_softcapping": 3.0,
        "max_position_embeddings": 512,
    }
    return text(words, model_type, **{**special, **changes})


def ids(words: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What a configuration says of the tokens that are no text."""
    found = {f"{name}_id": words.convert_tokens_to_ids(token) for name, token in TOKENS.items()}
    return {**found, "eoa_token_index": found.pop("eoa_token_id"), "tie_word_embeddings": False}


def scaled(model: PreTrainedModel) -> PreTrainedModel:
    """The model with layers that scale what they say, as published ones do."""
    for layer in model.model.language_model.layers:
        layer.layer_scalar.fill_(0.8)
    return model


def gemma4(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """The slots of a picture see each other in layers with a window; every layer gets a vector of each id."""
    words = tokenizer(**TOKENS)
    vectors = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": len(words)}
    config = Gemma4Config(
        vision_config=tower(
            "gemma4_vision",
            num_key_value_heads=2,
            head_dim=16,
            patch_size=4,
            pooling_kernel_size=2,
            position_embedding_size=140,
            initializer_range=SPREAD,
        ),
        text_config=shape(words, "gemma4_text", **{**vectors, **changes}),
        initializer_range=SPREAD,
        **ids(words),
    )
    processor = Gemma4Processor(
        Gemma4AudioFeatureExtractor(),
        Gemma4ImageProcessorPil(**PATCHES),
        words,
        Gemma4VideoProcessor(),
        chat_template=template("<|image|>"),
    )
    return scaled(finish(Gemma4ForConditionalGeneration, config, seed)), processor


def gemma4_unified(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Patches without an encoder; the slots of a picture see each other in every layer."""
    words = tokenizer(**TOKENS)
    vision = {"patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 32, "mm_posemb_size": 80}
    config = Gemma4UnifiedConfig(
        vision_config={**vision, "output_proj_dims": 32, "initializer_range": SPREAD},
        text_config=shape(words, "gemma4_unified_text", **changes),
        initializer_range=SPREAD,
        **ids(words),
    )
    processor = Gemma4UnifiedProcessor(
        Gemma4UnifiedAudioFeatureExtractor(),
        Gemma4UnifiedImageProcessor(**PATCHES),
        words,
        Gemma4UnifiedVideoProcessor(),
        chat_template=template("<|image|>"),
    )
    return scaled(finish(Gemma4UnifiedForConditionalGeneration, config, seed)), processor


def gemma3n(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Four slots per picture, from a tower of timm; two streams, and a vector of each id for every layer."""
    named = (
        "boi",
        "boa",
        "eoi",
        "image",
        "eoa",
        "audio",
    )  # pictures and sound have the last ids, for embedders of theirs
    words = tokenizer(**{f"{name}_token": TOKENS[f"{name}_token"] for name in named})
    found = {f"{name}_token_id": words.convert_tokens_to_ids(TOKENS[f"{name}_token"]) for name in named}
    seen, heard = found["eoi_token_id"], found["eoa_token_id"]
    special = {
        "num_hidden_layers": 5,
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
        "num_kv_shared_layers": 2,
        "sliding_window": WINDOW,
        "head_dim": 8,
        "final_logit_softcapping": 3.0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": seen,
        "altup_num_inputs": 2,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0, 0.0],
    }
    sound = {"hidden_size": 32, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 1}
    config = Gemma3nConfig(
        vision_config={
            "architecture": "test_efficientnet_ln",
            "hidden_size": 256,
            "vocab_offset": seen,
            "vocab_size": heard - seen,
        },
        audio_config={**sound, "sscp_conv_channel_size": [8, 4], "vocab_offset": heard, "vocab_size": 2},
        text_config=text(words, "gemma3n_text", **{**special, **changes}),
        vision_soft_tokens_per_image=4,
        initializer_range=SPREAD,
        tie_word_embeddings=False,
        **found,
    )
    processor = Gemma3nProcessor(
        Gemma3nAudioFeatureExtractor(),
        SiglipImageProcessorPil(size={"height": 64, "width": 64}, **PLAIN),
        words,
        image_seq_length=4,
        chat_template=template("<|image|>"),
    )
    return finish(Gemma3nForConditionalGeneration, config, seed), processor


MAKERS: dict[str, Callable[..., tuple[PreTrainedModel, Any]]] = {
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gemma4-unified": gemma4_unified,
}
