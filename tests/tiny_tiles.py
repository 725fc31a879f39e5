"""Tiny random models of families that cut pictures into tiles, and of LLaVA's and Pixtral's kin (`tiny_families`)."""

from collections.abc import Callable
from typing import Any

from tiny_vision import PLAIN, SIDE, finish, template, text, tokenizer, tower
from transformers import (
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    AyaVisionProcessor,
    Cohere2VisionConfig,
    Cohere2VisionForConditionalGeneration,
    Cohere2VisionImageProcessor,
    Cohere2VisionProcessor,
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    LightOnOcrConfig,
    LightOnOcrForConditionalGeneration,
    LightOnOcrProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedModel,
)

WINDOW = 24
SLIDING = {
    "num_hidden_layers": 3,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
"""Of Cohere's decoder. Its other layers know no positions, so what stands in which order a window must tell."""


def llava_onevision(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """A base view and up to three tiles of four slots per picture."""
    words = tokenizer(image_token="<image>", video_token="<video>")
    pinpoints = [[16, 32], [32, 16], [48, 16]]
    config = LlavaOnevisionConfig(
        vision_config=tower("siglip_vision_model", vision_use_head=False),
        text_config=text(words, "qwen2", **changes),
        image_token_index=words.image_token_id,
        video_token_index=words.video_token_id,
        image_grid_pinpoints=pinpoints,
    )
    images = LlavaOnevisionImageProcessorPil(size=SIDE, image_grid_pinpoints=pinpoints, **PLAIN)
    processor = LlavaOnevisionProcessor(
        images,
        words,
        LlavaOnevisionVideoProcessor(),
        num_image_tokens=4,
        vision_feature_select_strategy="full",
        chat_template=template("<image>\n"),
    )
    return finish(LlavaOnevisionForConditionalGeneration, config, seed), processor


def mistral3(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """As Pixtral, with four patches to a slot."""
    words = tokenizer(image_token="[IMG]", image_break_token="[IMG_BREAK]", image_end_token="[IMG_END]")
    config = Mistral3Config(
        vision_config=tower("pixtral", image_size=256, patch_size=8, head_dim=16),
        text_config=text(words, "mistral", head_dim=16, sliding_window=None, **changes),
        image_token_index=words.image_token_id,
    )
    images = PixtralImageProcessor(size={"longest_edge": 256}, patch_size={"height": 16, "width": 16}, **PLAIN)
    processor = PixtralProcessor(images, words, patch_size=8, spatial_merge_size=2, chat_template=template("[IMG]"))
    return finish(Mistral3ForConditionalGeneration, config, seed), processor


def lighton_ocr(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """The same without break tokens."""
    words = tokenizer(image_token="<|image_pad|>", image_break_token="<|vision_pad|>", image_end_token="<|vision_end|>")
    config = LightOnOcrConfig(
        vision_config=tower("pixtral", image_size=256, patch_size=8, head_dim=16),
        text_config=text(words, "qwen3", **{"head_dim": 8, **changes}),
        image_token_id=words.image_token_id,
    )
    images = PixtralImageProcessor(size={"longest_edge": 256}, patch_size={"height": 16, "width": 16}, **PLAIN)
    processor = LightOnOcrProcessor(
        images, words, patch_size=8, spatial_merge_size=2, chat_template=template("<|image_pad|>")
    )
    return finish(LightOnOcrForConditionalGeneration, config, seed), processor


def internvl(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Up to two tiles of 16 pixels and a thumbnail, four slots each."""
    words = tokenizer(
        start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>", video_token="<video>"
    )
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = InternVLConfig(
        vision_config={**vision, "image_size": [16, 16], "patch_size": [4, 4], "layer_scale_init_value": 1.0},
        text_config=text(words, "qwen2", **changes),
        image_token_id=words.context_image_token_id,
        image_seq_length=4,
    )
    images = GotOcr2ImageProcessorPil(size=SIDE, crop_to_patches=True, min_patches=1, max_patches=2, **PLAIN)
    processor = InternVLProcessor(
        images, words, InternVLVideoProcessor(), image_seq_length=4, chat_template=template("<IMG_CONTEXT>\n")
    )
    return finish(InternVLForConditionalGeneration, config, seed), processor


def aya_vision(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Up to two tiles and the whole, four slots each, between tokens that name them."""
    words = tokenizer(
        image_token="<image>",
        start="<|START_OF_IMG|>",
        end="<|END_OF_IMG|>",
        patch="<|IMG_PATCH|>",
        line="<|IMG_LINE_BREAK|>",
        tile="TILE",
        whole="TILE_GLOBAL",
    )
    config = AyaVisionConfig(
        vision_config=tower("siglip_vision_model", patch_size=4, vision_use_head=False),
        text_config=text(words, "cohere2", **{**SLIDING, **changes}),
        tie_word_embeddings=False,
        image_token_index=words.convert_tokens_to_ids("<|IMG_PATCH|>"),
    )
    images = GotOcr2ImageProcessorPil(size=SIDE, crop_to_patches=True, min_patches=1, max_patches=2, **PLAIN)
    processor = AyaVisionProcessor(
        images, words, patch_size=4, img_size=16, downsample_factor=2, chat_template=template("<image>")
    )
    return finish(AyaVisionForConditionalGeneration, config, seed), processor


def cohere2_vision(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Up to two tiles and a thumbnail, four slots each and a break token."""
    words = tokenizer(
        image_token="<|IMG_PATCH|>",
        boi_token="<|START_OF_IMG|>",
        eoi_token="<|END_OF_IMG|>",
        img_line_break_token="<|IMG_LINE_BREAK|>",
    )
    config = Cohere2VisionConfig(
        vision_config=tower("siglip_vision_model", patch_size=4, vision_use_head=False),
        text_config=text(words, "cohere2", **{**SLIDING, **changes}),
        tie_word_embeddings=False,
        image_token_id=words.image_token_id,
        alignment_intermediate_size=64,
    )
    images = Cohere2VisionImageProcessor(
        size=SIDE, patch_size=2, crop_to_patches=True, min_patches=1, max_patches=2, **PLAIN
    )
    processor = Cohere2VisionProcessor(images, words, chat_template=template("<|IMG_PATCH|>"))
    return finish(Cohere2VisionForConditionalGeneration, config, seed), processor


MAKERS: dict[str, Callable[..., tuple[PreTrainedModel, Any]]] = {
    "llava-onevision": llava_onevision,
    "mistral3": mistral3,
    "lighton-ocr": lighton_ocr,
    "internvl": internvl,
    "aya-vision": aya_vision,
    "cohere2-vision": cohere2_vision,
}
