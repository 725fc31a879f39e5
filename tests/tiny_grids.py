"""Tiny random models of families whose image positions have three axes: see `tiny_families`.

Pictures are grids of 4-pixel patches, merged two by two.
"""

from collections.abc import Callable
from typing import Any

from tiny_vision import PLAIN, SPREAD, finish, template, text, tokenizer
from transformers import (
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vImageProcessorPil,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    Glm4vProcessor,
    Glm4vVideoProcessor,
    Glm46VConfig,
    Glm46VForConditionalGeneration,
    Glm46VImageProcessorPil,
    Glm46VProcessor,
    Glm46VVideoProcessor,
    GlmOcrConfig,
    GlmOcrForConditionalGeneration,
    PaddleOCRVLConfig,
    PaddleOCRVLForConditionalGeneration,
    PaddleOCRVLImageProcessorPil,
    PaddleOCRVLProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

QWEN = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
GLM = {
    "image_token": "<|image|>",
    "video_token": "<|video|>",
    "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>",
    "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
}
PADDLE = {
    "image_token": "<|IMAGE_PLACEHOLDER|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|IMAGE_START|>",
    "vision_end_token": "<|IMAGE_END|>",
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
"""Of heads of 8 numbers, or of 16 half of which turn."""
MIXED = {**ROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
HALF = {**ROPE, "partial_rotary_factor": 0.5}
TOWER = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4}
QWEN_TOWER = {**TOWER, "intermediate_size": 64, "out_hidden_size": 32}
DEEP_TOWER = {**QWEN_TOWER, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
GLM_TOWER = {**TOWER, "image_size": 16, "intermediate_size": 64, "out_hidden_size": 32, "initializer_range": SPREAD}


def ids_of(words: PreTrainedTokenizerFast, tokens: dict[str, str]) -> dict[str, int]:
    return {f"{name}_id": words.convert_tokens_to_ids(token) for name, token in tokens.items()}


def _size(least: int, patch: int = 4) -> dict[str, Any]:
    """Of an image processor: how a picture is cut, and how many pixels it has at least, and at most."""
    return {"patch_size": patch, "size": {"shortest_edge": least, "longest_edge": 16 * least}, **PLAIN}


def slots_of(tokens: dict[str, str]) -> str:
    start, end = (tokens.get(f"vision_{side}_token") or tokens[f"image_{side}_token"] for side in ("start", "end"))
    return template(f"{start}{tokens['image_token']}{end}")


def qwen3_processor(words: PreTrainedTokenizerFast) -> Qwen3VLProcessor:
    images = Qwen2VLImageProcessorPil(**_size(64))
    return Qwen3VLProcessor(images, words, Qwen3VLVideoProcessor(patch_size=4), chat_template=slots_of(QWEN))


def qwen2_5_vl(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Windows of four patches a side in one of two layers of the tower."""
    words = tokenizer(**QWEN)
    config = Qwen2_5_VLConfig(
        vision_config={**QWEN_TOWER, "window_size": 16, "fullatt_block_indexes": [1]},
        text_config=text(words, "qwen2_5_vl_text", **{"rope_parameters": ROPE, **changes}),
        **ids_of(words, QWEN),
    )
    images = Qwen2VLImageProcessorPil(**_size(64))
    processor = Qwen2_5_VLProcessor(images, words, Qwen2VLVideoProcessor(patch_size=4), chat_template=slots_of(QWEN))
    return finish(Qwen2_5_VLForConditionalGeneration, config, seed), processor


def qwen3_vl(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """As Qwen2.5-VL, with features of both vision layers for the first decoder layers."""
    words = tokenizer(**QWEN)
    config = Qwen3VLConfig(
        vision_config=DEEP_TOWER,
        text_config=text(words, "qwen3_vl_text", **{"head_dim": 8, "rope_parameters": MIXED, **changes}),
        **ids_of(words, QWEN),
    )
    return finish(Qwen3VLForConditionalGeneration, config, seed), qwen3_processor(words)


def qwen2_vl(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """As Qwen2.5-VL, with a tower without windows."""
    words = tokenizer(**QWEN)
    config = Qwen2VLConfig(
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4},
        text_config=text(words, "qwen2_vl_text", **{"rope_parameters": ROPE, **changes}),
        **ids_of(words, QWEN),
    )
    images = Qwen2VLImageProcessorPil(**_size(64))
    processor = Qwen2VLProcessor(images, words, Qwen2VLVideoProcessor(patch_size=4), chat_template=slots_of(QWEN))
    return finish(Qwen2VLForConditionalGeneration, config, seed), processor


def qwen3_vl_moe(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """As Qwen3-VL, with a dense layer and one of four experts, two of which are asked."""
    words = tokenizer(**QWEN)
    special = {
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [0],
    }
    config = Qwen3VLMoeConfig(
        vision_config=DEEP_TOWER,
        text_config=text(words, "qwen3_vl_moe_text", **{**special, "rope_parameters": MIXED, **changes}),
        **ids_of(words, QWEN),
    )
    return plain_experts(finish(Qwen3VLMoeForConditionalGeneration, config, seed)), qwen3_processor(words)


def glm4v(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Two heads, half of whose numbers turn, in pairs of neighbours; norms after the parts of a layer, too."""
    words = tokenizer(**GLM)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = Glm4vConfig(
        vision_config=GLM_TOWER,
        text_config=text(words, "glm4v_text", **{**heads, "rope_parameters": HALF, **changes}),
        **ids_of(words, GLM),
    )
    return finish(Glm4vForConditionalGeneration, config, seed), _glm_processor(words)


def glm46v(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """The same decoder and tower under another name."""
    words = tokenizer(**GLM)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = Glm46VConfig(
        vision_config={**GLM_TOWER, "model_type": "glm4v_vision"},
        text_config=text(words, "glm4v_text", **{**heads, "rope_parameters": HALF, **changes}),
        **ids_of(words, GLM),
    )
    images, videos = Glm46VImageProcessorPil(**_size(128)), Glm46VVideoProcessor(patch_size=4)
    processor = Glm46VProcessor(images, words, videos, chat_template=slots_of(GLM))
    return finish(Glm46VForConditionalGeneration, config, seed), processor


def glm4v_moe(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Heads larger than hidden / heads; a dense layer, then one with a shared expert and one of four others.

    Of several the router would weigh what they say: in float32, rounded otherwise for another number of tokens.
    """
    words = tokenizer(**GLM)
    special = {
        "head_dim": 16,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 24,
    }
    config = Glm4vMoeConfig(
        vision_config=GLM_TOWER,
        text_config=text(words, "glm4v_moe_text", **{**special, "rope_parameters": HALF, **changes}),
        **ids_of(words, GLM),
    )
    return plain_experts(finish(Glm4vMoeForConditionalGeneration, config, seed)), _glm_processor(words)


def glm_ocr(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """As GLM-4.1V, with whole heads that turn, larger than hidden / heads."""
    words = tokenizer(**GLM)
    special = {"head_dim": 16, "rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]}}
    config = GlmOcrConfig(
        vision_config=GLM_TOWER,
        text_config=text(words, "glm_ocr_text", **{**special, **changes}),
        **ids_of(words, GLM),
    )
    images, videos = Glm46VImageProcessorPil(**_size(128)), Glm46VVideoProcessor(patch_size=4)
    processor = Glm46VProcessor(images, words, videos, chat_template=slots_of(GLM))
    return finish(GlmOcrForConditionalGeneration, config, seed), processor


def paddleocr_vl(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Patches of 8 pixels that keep their shape; a processor that knows no videos."""
    words = tokenizer(**PADDLE)
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = PaddleOCRVLConfig(
        vision_config={**vision, "image_size": 32, "patch_size": 8},
        text_config=text(words, "paddleocr_vl_text", **{"head_dim": 8, "rope_parameters": ROPE, **changes}),
        tie_word_embeddings=False,
        **ids_of(words, PADDLE),
    )
    images = PaddleOCRVLImageProcessorPil(**_size(1024, 8))
    processor = PaddleOCRVLProcessor(images, words, chat_template=slots_of(PADDLE))
    return finish(PaddleOCRVLForConditionalGeneration, config, seed), processor


def plain_experts(model: PreTrainedModel) -> PreTrainedModel:
    """The usual product of all experts at once takes no float64."""
    model.set_experts_implementation("batched_mm")
    return model


def _glm_processor(words: PreTrainedTokenizerFast) -> Any:
    """GLM counts two frames of a picture, and so twice its pixels."""
    images, videos = Glm4vImageProcessorPil(**_size(128)), Glm4vVideoProcessor(patch_size=4)
    return Glm4vProcessor(images, words, videos, chat_template=slots_of(GLM))


MAKERS: dict[str, Callable[..., tuple[PreTrainedModel, Any]]] = {  # those of `tiny_families.KIN`
    "qwen2-vl": qwen2_vl,
    "qwen3-vl-moe": qwen3_vl_moe,
    "glm4v": glm4v,
    "glm46v": glm46v,
    "glm4v-moe": glm4v_moe,
    "glm-ocr": glm_ocr,
    "paddleocr-vl": paddleocr_vl,
}
