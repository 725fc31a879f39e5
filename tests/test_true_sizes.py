"""The public checkpoints at their true size, without weights: shapes, caches, masks and image slots on the meta device.

The configurations are those that the checkpoints are published with, as far as they state a size.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3Config,
    Idefics3Config,
    LlavaConfig,
    LlavaNextConfig,
    PreTrainedConfig,
    Qwen2_5_VLConfig,
    Qwen3VLConfig,
    SmolVLMConfig,
)

from mmspec.ancestry import ancestors
from mmspec.cache import RowCache
from mmspec.loading import find_family
from mmspec.targets import CausalTarget

TREE = [-1, 0, 0, 1, 1, 2, 3, 3]
DEPTH = [0, 1, 1, 2, 2, 2, 3, 3]


@dataclass
class Size:
    """What a checkpoint must look like to the core. heads: key/value heads and size of each. slots: per picture."""

    config: PreTrainedConfig
    family: str
    layers: int
    hidden: int
    vocabulary: int
    context: int
    heads: tuple[int, int]
    placeholders: tuple[int, ...]
    window: int | None = None
    picture: dict[str, Any] = field(default_factory=dict)
    slots: int = 0


def llama(hidden: int, inner: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return {"model_type": "llama", **sizes, **more}


SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
}
CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "patch_size": 16,
}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def smolvlm(kind: Any, vocabulary: int, slot: int, context: int) -> PreTrainedConfig:
    shape = llama(2048, 8192, 24, 32, num_key_value_heads=32, vocab_size=vocabulary, max_position_embeddings=context)
    return kind(text_config=shape, vision_config={**SIGLIP, "image_size": 384}, image_token_id=slot, scale_factor=3)


def llava_next(shape: dict[str, Any]) -> PreTrainedConfig:
    return LlavaNextConfig(
        text_config=shape, vision_config=CLIP, image_token_index=32000, image_grid_pinpoints=PINPOINTS
    )


def gemma3(hidden: int, inner: int, layers: int, heads: int, groups: int, head: int) -> PreTrainedConfig:
    shape = llama(hidden, inner, layers, heads, num_key_value_heads=groups, head_dim=head, vocab_size=262_208)
    shape |= {"model_type": "gemma3_text", "sliding_window": 1024, "max_position_embeddings": 131_072}
    vision = {**SIGLIP, "model_type": "siglip_vision_model", "image_size": 896, "vision_use_head": False}
    tokens = {"image_token_index": 262_144, "boi_token_index": 255_999, "eoi_token_index": 256_000}
    return Gemma3Config(text_config=shape, vision_config=vision, mm_tokens_per_image=256, **tokens)


def qwen2_5_vl(hidden: int, inner: int, layers: int, heads: int, groups: int, vocabulary: int) -> PreTrainedConfig:
    shape = llama(hidden, inner, layers, heads, num_key_value_heads=groups, vocab_size=vocabulary)
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    shape |= {"model_type": "qwen2_5_vl_text", "max_position_embeddings": 128_000, "rope_parameters": rope}
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": hidden}
    return Qwen2_5_VLConfig(text_config=shape, vision_config=vision)


def qwen3_vl(hidden: int, inner: int, layers: int, heads: int, vision: dict[str, Any]) -> PreTrainedConfig:
    shape = llama(hidden, inner, layers, heads, num_key_value_heads=8, head_dim=128, vocab_size=151_936)
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    shape |= {"model_type": "qwen3_vl_text", "max_position_embeddings": 262_144, "rope_parameters": rope}
    return Qwen3VLConfig(text_config=shape, vision_config={**vision, "out_hidden_size": hidden})


VICUNA_7B = llama(4096, 11008, 32, 32, vocab_size=32064, max_position_embeddings=4096)
VICUNA_13B = llama(5120, 13824, 40, 40, vocab_size=32064, max_position_embeddings=4096)
MISTRAL_7B = {
    **llama(4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=32064, max_position_embeddings=32768),
    "model_type": "mistral",
    "sliding_window": None,
}
NEMO_12B = {
    **llama(5120, 14336, 40, 32, num_key_value_heads=8, vocab_size=131_072, max_position_embeddings=1_024_000),
    "model_type": "mistral",
    "head_dim": 128,
    "sliding_window": None,
}
SMALL_TOWER = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
LARGE_TOWER = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}

PICTURE_336 = {"pixel_values": (1, 3, 336, 336)}
PICTURE_896 = {"pixel_values": (1, 3, 896, 896)}
# 640 x 480, cut into four tiles and a base view; rows of the padding above and below are dropped
TILES_336 = {"pixel_values": (1, 5, 3, 336, 336), "image_sizes": [[480, 640]]}
QWEN = (151_655, 151_656)

SIZES = {
    "SmolVLM-Instruct": lambda: Size(
        smolvlm(Idefics3Config, 49155, 49153, 16384), "SmolVLM", 24, 2048, 49155, 16384, (32, 64), (49153,)
    ),
    "SmolVLM2-2.2B-Instruct": lambda: Size(
        smolvlm(SmolVLMConfig, 49280, 49190, 8192), "SmolVLM", 24, 2048, 49280, 8192, (32, 64), (49190,)
    ),
    "llava-1.5-7b": lambda: Size(
        LlavaConfig(text_config=VICUNA_7B, vision_config=CLIP, image_token_index=32000),
        "Llava", 32, 4096, 32064, 4096, (32, 128), (32000,), picture=PICTURE_336, slots=576,
    ),
    "llava-v1.6-vicuna-7b": lambda: Size(
        llava_next(VICUNA_7B), "LlavaNext", 32, 4096, 32064, 4096, (32, 128), (32000,), picture=TILES_336, slots=2340
    ),
    "llava-v1.6-vicuna-13b": lambda: Size(
        llava_next(VICUNA_13B), "LlavaNext", 40, 5120, 32064, 4096, (40, 128), (32000,), picture=TILES_336, slots=2340
    ),
    "llava-v1.6-mistral-7b": lambda: Size(
        llava_next(MISTRAL_7B), "LlavaNext", 32, 4096, 32064, 32768, (8, 128), (32000,), picture=TILES_336, slots=2340
    ),
    "pixtral-12b": lambda: Size(
        LlavaConfig(
            text_config=NEMO_12B,
            vision_config=PIXTRAL,
            image_token_index=10,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        "Pixtral", 40, 5120, 131_072, 1_024_000, (8, 128), (10,),
    ),
    "gemma-3-4b-it": lambda: Size(
        gemma3(2560, 10240, 34, 8, 4, 256), "Gemma3", 34, 2560, 262_208, 131_072, (4, 256), (262_144,), 1024,
        PICTURE_896, 256,
    ),
    "gemma-3-12b-it": lambda: Size(
        gemma3(3840, 15360, 48, 16, 8, 256), "Gemma3", 48, 3840, 262_208, 131_072, (8, 256), (262_144,), 1024,
        PICTURE_896, 256,
    ),
    "Qwen2.5-VL-3B-Instruct": lambda: Size(
        qwen2_5_vl(2048, 11008, 36, 16, 2, 151_936), "Qwen25VL", 36, 2048, 151_936, 128_000, (2, 128), QWEN
    ),
    "Qwen2.5-VL-7B-Instruct": lambda: Size(
        qwen2_5_vl(3584, 18944, 28, 28, 4, 152_064), "Qwen25VL", 28, 3584, 152_064, 128_000, (4, 128), QWEN
    ),
    "Qwen3-VL-2B-Instruct": lambda: Size(
        qwen3_vl(2048, 6144, 28, 16, SMALL_TOWER), "Qwen3VL", 28, 2048, 151_936, 262_144, (8, 128), QWEN
    ),
    "Qwen3-VL-8B-Instruct": lambda: Size(
        qwen3_vl(4096, 12288, 36, 32, LARGE_TOWER), "Qwen3VL", 36, 4096, 151_936, 262_144, (8, 128), QWEN
    ),
}  # fmt: skip


def build(size: Size) -> CausalTarget:
    """The target, without weights."""
    family = find_family(size.config)
    assert family.__name__ == size.family  # type: ignore[attr-defined]
    with torch.device("meta"):
        return family(family.model_class(size.config)(size.config).eval(), None)


@pytest.mark.dynamic("fills a dynamic cache by hand")
@pytest.mark.parametrize("name", SIZES)
def test_a_tree_is_verified_and_committed_at_true_size(name: str) -> None:
    size = SIZES[name]()
    target = build(size)
    found = (target.num_layers, target.hidden_size, target.vocab_size, target.decoder.max_length, target.decoder.window)
    assert found == (size.layers, size.hidden, size.vocabulary, size.context, size.window)
    assert target.placeholders == size.placeholders
    assert tuple(target.head.weight.shape) == (size.vocabulary, size.hidden)
    assert tuple(target.embed.weight.shape) == (size.vocabulary, size.hidden)

    meta = torch.device("meta")
    cache = RowCache(1, meta)
    for layer in range(size.layers):
        past = torch.zeros(1, size.heads[0], 12, size.heads[1], device=meta)
        cache.hf.update(past, past, layer)
    cache.fill([12])
    depth, above = torch.tensor([DEPTH]), ancestors(torch.tensor([TREE]))
    nodes = torch.zeros(1, 8, dtype=torch.long, device=meta)
    heard = target.decoder.extend(cache, nodes, depth.to(meta), above.to(meta), (1, size.layers))
    assert heard.logits.shape == (1, 8, size.vocabulary)
    assert [tuple(heard.taps[tap].shape) for tap in (1, size.layers)] == [(1, 8, size.hidden)] * 2
    assert cache.width == 20
    cache.commit(8, [[0, 2, 5]])
    assert (cache.width, cache.lengths) == (15, [15])
    assert len(cache.hf.layers) == size.layers
    for layer in cache.hf.layers:
        assert layer.keys.shape == layer.values.shape == (1, size.heads[0], 15, size.heads[1])


@pytest.mark.parametrize("name", ["gemma-3-4b-it", "gemma-3-12b-it"])
def test_gemma3_masks_at_true_size(name: str) -> None:
    """3000 tokens and a tree: full layers see all of the past, the others 1023 tokens before a node's own position."""
    target = build(SIZES[name]())
    cache = RowCache(2, torch.device("cpu"))
    cache.hf.update(torch.zeros(2, 1, 3000, 1), torch.zeros(2, 1, 3000, 1), 0)
    cache.fill([3000, 900])
    depth, above = torch.tensor([DEPTH] * 2), ancestors(torch.tensor([TREE] * 2))
    masks: Any = target.decoder._masks(cache, above, depth)
    assert set(masks) == set(target.decoder.config.layer_types) == {"full_attention", "sliding_attention"}
    assert target.decoder.config.layer_types.count("full_attention") == target.num_layers // 6
    for kind, window in (("full_attention", 1 << 20), ("sliding_attention", 1024)):
        assert masks[kind].shape == (2, 1, 8, 3008)
        seen = (masks[kind] == 0)[:, 0]
        assert torch.equal(seen[:, :, 3000:], above)
        for row, length in enumerate((3000, 900)):
            for node, level in enumerate(DEPTH):
                past = seen[row, node, :3000].nonzero()[:, 0]
                first = max(0, length + level - window + 1)
                assert (int(past[0]), int(past[-1]), len(past)) == (first, length - 1, length - first)


@pytest.mark.parametrize("name", [name for name, size in SIZES.items() if size().slots])
def test_a_picture_fills_its_slots_at_true_size(name: str) -> None:
    size = SIZES[name]()
    target = build(size)
    pictures = {
        key: torch.tensor(value) if isinstance(value, list) else torch.zeros(value, device="meta")
        for key, value in size.picture.items()
    }
    features = target.model.get_image_features(**pictures, return_dict=True).pooler_output
    states = torch.cat(list(features)) if isinstance(features, list | tuple) else features.flatten(0, 1)
    assert states.shape == (size.slots, size.hidden)
