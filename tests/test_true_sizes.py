"""The public checkpoints at their true size, without weights: shapes, caches, masks and image slots on the meta device.

The configurations are those that the checkpoints are published with, as far as they state a size.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import (
    AyaVisionConfig,
    Gemma3Config,
    Gemma3nConfig,
    Gemma4Config,
    Glm4vConfig,
    Glm4vMoeConfig,
    GlmOcrConfig,
    Idefics3Config,
    InternVLConfig,
    LightOnOcrConfig,
    LlavaConfig,
    LlavaNextConfig,
    Mistral3Config,
    PaddleOCRVLConfig,
    PreTrainedConfig,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
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
    """What a checkpoint must look like to the core. heads: key/value heads and size of each. slots: per picture.

    caches: `heads` of each layer that keeps keys, where not all do alike.
    """

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
    caches: list[tuple[int, int]] = field(default_factory=list)


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
ON_META = {"experts_implementation": "batched_mm"}
"""Of a mixture of experts: the usual product of all of them at once knows one dtype there."""
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


def gemma4() -> PreTrainedConfig:
    shape = llama(2560, 10240, 42, 8, num_key_value_heads=2, head_dim=256, num_kv_shared_layers=18)
    shape |= {"model_type": "gemma4_text", "sliding_window": 512, "final_logit_softcapping": 30.0}
    return Gemma4Config(text_config=shape, vision_config={"model_type": "gemma4_vision"})


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


def qwen3_vl_moe() -> PreTrainedConfig:
    shape = llama(2048, 6144, 48, 32, num_key_value_heads=4, head_dim=128, vocab_size=151_936)
    shape |= {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    shape |= {"model_type": "qwen3_vl_moe_text", "max_position_embeddings": 262_144, "rope_parameters": rope}
    return Qwen3VLMoeConfig(text_config=shape, vision_config={**LARGE_TOWER, "out_hidden_size": 2048}, **ON_META)


def qwen2_vl() -> PreTrainedConfig:
    """Flat, as it is published."""
    shape = llama(3584, 18944, 28, 28, num_key_value_heads=4, vocab_size=152_064, max_position_embeddings=32768)
    shape |= {"model_type": "qwen2_vl", "sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 28}
    shape |= {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    return Qwen2VLConfig(**shape, vision_config={"hidden_size": 3584, "in_chans": 3, "spatial_patch_size": 14})


def glm(kind: Any, shape: dict[str, Any], vision: dict[str, Any], slot: int, **more: Any) -> PreTrainedConfig:
    return kind(text_config=shape, vision_config=vision, image_token_id=slot, video_token_id=slot + 1, **more)


def paddleocr_vl() -> PreTrainedConfig:
    """Flat, as it is published."""
    shape = llama(1024, 3072, 18, 16, num_key_value_heads=2, head_dim=128, vocab_size=103_424)
    shape |= {"model_type": "paddleocr_vl", "max_position_embeddings": 131_072, "sliding_window": None}
    shape |= {"rope_theta": 5e5, "rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}}
    vision = {**SIGLIP, "model_type": "paddleocr_vl", "image_size": 384}
    return PaddleOCRVLConfig(**shape, vision_config=vision, image_token_id=100_295, video_token_id=101_307)


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
QWEN_500M = {
    **llama(896, 4864, 24, 14, num_key_value_heads=2, vocab_size=151_674, max_position_embeddings=32768),
    "model_type": "qwen2",
}
AYA_8B = {
    **llama(4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=256_000, max_position_embeddings=8192),
    "model_type": "cohere2",
    "sliding_window": 4096,
}
AYA_TOWER = {**SIGLIP, "model_type": "siglip_vision_model", "image_size": 364, "vision_use_head": False}
GLM_9B = {
    **llama(4096, 13696, 40, 32, num_key_value_heads=2, vocab_size=151_552, max_position_embeddings=65536),
    "model_type": "glm4v_text",
    "partial_rotary_factor": 0.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
}
GLM_106B = {
    **llama(4096, 10944, 46, 96, num_key_value_heads=8, vocab_size=151_552, max_position_embeddings=131_072),
    "model_type": "glm4v_moe_text",
    "head_dim": 128,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "partial_rotary_factor": 0.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [8, 12, 12]},
}
GLM_OCR = {
    **llama(1536, 4608, 16, 16, num_key_value_heads=8, vocab_size=59392, max_position_embeddings=131_072),
    "model_type": "glm_ocr_text",
    "head_dim": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]},
}
GLM_TOWER = {"depth": 24, "hidden_size": 1536, "num_heads": 12, "out_hidden_size": 4096}
GLM_OCR_TOWER = {"depth": 24, "hidden_size": 1024, "num_heads": 16, "out_hidden_size": 1536, "intermediate_size": 4096}
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
    "Mistral-Small-3.1-24B-Instruct": lambda: Size(
        Mistral3Config(), "Mistral3", 40, 5120, 131_072, 131_072, (8, 128), (10,)
    ),
    "LightOnOCR-1B": lambda: Size(
        LightOnOcrConfig(), "LightOnOcr", 28, 1024, 151_936, 40960, (8, 128), (151_655,)
    ),
    "InternVL3-1B": lambda: Size(
        InternVLConfig(text_config=QWEN_500M), "InternVL", 24, 896, 151_674, 32768, (2, 64), (151_667,),
        picture={"pixel_values": (5, 3, 448, 448)}, slots=5 * 256,
    ),
    "aya-vision-8b": lambda: Size(
        AyaVisionConfig(text_config=AYA_8B, vision_config=AYA_TOWER), "AyaVision", 32, 4096, 256_000, 8192, (8, 128),
        (255_036,), 4096, {"pixel_values": (5, 3, 364, 364)}, 5 * 169,
    ),
    "gemma-3-4b-it": lambda: Size(
        gemma3(2560, 10240, 34, 8, 4, 256), "Gemma3", 34, 2560, 262_208, 131_072, (4, 256), (262_144,), 1024,
        PICTURE_896, 256,
    ),
    "gemma-3-12b-it": lambda: Size(
        gemma3(3840, 15360, 48, 16, 8, 256), "Gemma3", 48, 3840, 262_208, 131_072, (8, 256), (262_144,), 1024,
        PICTURE_896, 256,
    ),
    "gemma-4-E4B-it": lambda: Size(
        gemma4(), "Gemma4", 42, 2560, 262_144, 131_072, (2, 256), (258_880, 258_884, 258_881), 512,
        caches=([(2, 256)] * 5 + [(2, 512)]) * 4,
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
    "Qwen3-VL-30B-A3B-Instruct": lambda: Size(
        qwen3_vl_moe(), "Qwen3VLMoe", 48, 2048, 151_936, 262_144, (4, 128), QWEN
    ),
    "Qwen2-VL-7B-Instruct": lambda: Size(qwen2_vl(), "Qwen2VL", 28, 3584, 152_064, 32768, (4, 128), QWEN),
    "GLM-4.1V-9B-Thinking": lambda: Size(
        glm(Glm4vConfig, GLM_9B, GLM_TOWER, 151_343), "Glm4V", 40, 4096, 151_552, 65536, (2, 128), (151_343, 151_344),
    ),
    "GLM-4.6V": lambda: Size(
        glm(Glm4vMoeConfig, GLM_106B, GLM_TOWER, 151_363, **ON_META),
        "Glm4VMoe", 46, 4096, 151_552, 131_072, (8, 128), (151_363, 151_364),
    ),
    "GLM-OCR": lambda: Size(
        glm(GlmOcrConfig, GLM_OCR, GLM_OCR_TOWER, 59280), "GlmOcr", 16, 1536, 59392, 131_072, (8, 128), (59280, 59281)
    ),
    "PaddleOCR-VL": lambda: Size(
        paddleocr_vl(), "PaddleOcrVL", 18, 1024, 103_424, 131_072, (2, 128), (100_295, 101_307)
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
    caches = size.caches or [size.heads] * size.layers
    for layer, (heads, width) in enumerate(caches):
        past = torch.zeros(1, heads, 12, width, device=meta)
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
    assert len(cache.hf.layers) == len(caches)
    for kept, (heads, width) in zip(cache.hf.layers, caches, strict=True):
        assert kept.keys.shape == kept.values.shape == (1, heads, 15, width)


@pytest.mark.parametrize("name", ["gemma-3-4b-it", "gemma-3-12b-it", "gemma-4-E4B-it"])
def test_gemma_masks_at_true_size(name: str) -> None:
    """3000 tokens and a tree: full layers see all of the past, the others 1023 tokens before a node's own position, or
    511."""
    size = SIZES[name]()
    target = build(size)
    cache = RowCache(2, torch.device("cpu"))
    cache.hf.update(torch.zeros(2, 1, 3000, 1), torch.zeros(2, 1, 3000, 1), 0)
    cache.fill([3000, 900])
    depth, above = torch.tensor([DEPTH] * 2), ancestors(torch.tensor([TREE] * 2))
    masks: Any = target.decoder._masks(cache, above, depth)
    assert set(masks) == set(target.decoder.config.layer_types) == {"full_attention", "sliding_attention"}
    assert target.decoder.config.layer_types.count("full_attention") == target.num_layers // 6
    for kind, window in (("full_attention", 1 << 20), ("sliding_attention", size.window or 0)):
        assert masks[kind].shape == (2, 1, 8, 3008)
        seen = (masks[kind] == 0)[:, 0]
        assert torch.equal(seen[:, :, 3000:], above)
        for row, length in enumerate((3000, 900)):
            for node, level in enumerate(DEPTH):
                past = seen[row, node, :3000].nonzero()[:, 0]
                first = max(0, length + level - window + 1)
                assert (int(past[0]), int(past[-1]), len(past)) == (first, length - 1, length - first)


def test_gemma3n_at_true_size() -> None:
    """Its configuration's defaults are those of the published E4B. Of 35 layers 20 keep keys."""
    target = build(Size(Gemma3nConfig(), "Gemma3n", 35, 2048, 262_400, 32_768, (2, 256), ()))
    found = (target.num_layers, target.hidden_size, target.vocab_size, target.decoder.max_length, target.decoder.window)
    assert found == (35, 2048, 262_400, 32_768, 512)
    assert target.placeholders == (262_145, 262_273)
    meta = torch.device("meta")
    cache = RowCache(1, meta)
    for layer in range(20):
        past = torch.zeros(1, 2, 12, 256, device=meta)
        cache.hf.update(past, past, layer)
    cache.fill([12])
    nodes = torch.zeros(1, 8, dtype=torch.long, device=meta)
    depth, above = torch.tensor([DEPTH], device=meta), ancestors(torch.tensor([TREE])).to(meta)
    assert target.decoder.extend(cache, nodes, depth, above).logits.shape == (1, 8, 262_400)
    assert [layer.keys.shape[2] for layer in cache.hf.layers] == [20] * 20
    picture = torch.zeros(1, 3, 768, 768, device=meta)
    assert target.model.get_image_features(picture, return_dict=True).pooler_output.shape == (1, 256, 2048)


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
