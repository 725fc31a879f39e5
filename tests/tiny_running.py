"""Tiny random models most of whose layers keep a running state (`mmspec.running`): see `tiny_families`."""

from collections.abc import Callable
from typing import Any

from tiny_grids import MIXED, QWEN, QWEN_TOWER, ids_of, plain_experts, qwen3_processor
from tiny_vision import PLAIN, SPREAD, finish, template, text, tokenizer, tower
from transformers import (
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    Lfm2VlImageProcessor,
    Lfm2VlProcessor,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)

LAYERS = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "linear_attention", "full_attention"]}
DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
"""Heads of the gated delta rule."""
GRID = {**QWEN_TOWER, "num_position_embeddings": 64, "initializer_range": SPREAD}
LFM2 = {"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}


def qwen3_5(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """As Qwen3-VL without DeepStack, on two layers of linear attention and one of attention."""
    words = tokenizer(**QWEN)
    config = Qwen3_5Config(
        vision_config=GRID,
        text_config=text(words, "qwen3_5_text", **{**LAYERS, **DELTA, "rope_parameters": MIXED, **changes}),
        **ids_of(words, QWEN),
    )
    return finish(Qwen3_5ForConditionalGeneration, config, seed), qwen3_processor(words)


def qwen3_5_moe(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """The same with four experts, two of which are asked."""
    words = tokenizer(**QWEN)
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    }
    special = {**LAYERS, **DELTA, **experts, "rope_parameters": MIXED, **changes}
    config = Qwen3_5MoeConfig(
        vision_config=GRID, text_config=text(words, "qwen3_5_moe_text", **special), **ids_of(words, QWEN)
    )
    return plain_experts(finish(Qwen3_5MoeForConditionalGeneration, config, seed)), qwen3_processor(words)


def lfm2_vl(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Patches of 4 pixels, two by two in a slot; convolutions around one layer of attention."""
    words = tokenizer(**LFM2)
    kinds = ["conv", "full_attention", "conv"]
    config = Lfm2VlConfig(
        vision_config=tower(
            "siglip2_vision_model", patch_size=4, num_patches=16, vision_use_head=False, initializer_range=SPREAD
        ),
        text_config=text(words, "lfm2", **{"num_hidden_layers": 3, "layer_types": kinds, "conv_L_cache": 3, **changes}),
        image_token_id=words.image_token_id,
        projector_hidden_size=32,
    )
    images = Lfm2VlImageProcessor(
        do_image_splitting=False,
        min_image_tokens=1,
        max_image_tokens=128,  # those of a picture of 640 x 7 pixels, too
        encoder_patch_size=4,
        tile_size=16,
        **PLAIN,
    )
    processor = Lfm2VlProcessor(images, words, chat_template=template("<image>"))
    return finish(Lfm2VlForConditionalGeneration, config, seed, ("projector", "vision")), processor


MAKERS: dict[str, Callable[..., tuple[PreTrainedModel, Any]]] = {
    "qwen3.5": qwen3_5,
    "qwen3.5-moe": qwen3_5_moe,
    "lfm2-vl": lfm2_vl,
}
