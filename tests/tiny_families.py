"""Tiny random models of every vision-language family, with their stock processors, built offline.

`build(name)` gives a model and a processor that fit. Tokens are those of `tiny.tokenizer()`, and what a family's own
processor needs. Pictures take few slots: 16 or 32 pixels a side, patches of 4 or 8. Families that differ from others
in little (`KIN`) meet fewer drafters in the tests.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import tiny
import tiny_gemma
import tiny_grids
import tiny_running
import tiny_tiles
from tiny_grids import qwen2_5_vl, qwen3_vl
from tiny_vision import PLAIN, SIDE, finish, template, text, tokenizer, tower
from transformers import (
    CLIPImageProcessorPil,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaProcessor,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedModel,
)

WINDOW = 8  # of Gemma3's sliding layers; shorter than every prompt with a picture


def smolvlm(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """One tile per picture, four slots."""
    model = tiny.smolvlm_model(seed).double()
    model.generation_config.eos_token_id = None
    for name, value in changes.items():
        setattr(model.config.text_config, name, value)
    return model, tiny.processor()


def llava(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Four slots per picture."""
    words = tokenizer(image_token="<image>")
    config = LlavaConfig(
        vision_config=tower("clip_vision_model"),
        text_config=text(words, "llama", **changes),
        image_token_index=words.image_token_id,
    )
    images = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=SIDE, **PLAIN)
    processor = LlavaProcessor(
        images,
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("<image>\n"),
    )
    return finish(LlavaForConditionalGeneration, config, seed), processor


def llava_next(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """A base view and up to three tiles per picture."""
    words = tokenizer(image_token="<image>")
    pinpoints = [[16, 32], [32, 16], [48, 16]]
    config = LlavaNextConfig(
        vision_config=tower("clip_vision_model"),
        text_config=text(words, "mistral", **changes),
        image_token_index=words.image_token_id,
        image_grid_pinpoints=pinpoints,
    )
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 16}, crop_size=SIDE, image_grid_pinpoints=pinpoints, **PLAIN
    )
    processor = LlavaNextProcessor(
        images,
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("<image>\n"),
    )
    return finish(LlavaNextForConditionalGeneration, config, seed), processor


def pixtral(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """The picture's own size up to 256 pixels, a break token after every row; heads larger than hidden / heads."""
    words = tokenizer(image_token="[IMG]", break_token="[IMG_BREAK]", end_token="[IMG_END]")
    config = LlavaConfig(
        vision_config=tower("pixtral", image_size=256, patch_size=8, head_dim=16),
        text_config=text(words, "mistral", head_dim=16, sliding_window=None, **changes),
        image_token_index=words.image_token_id,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    images = PixtralImageProcessor(size={"longest_edge": 256}, patch_size={"height": 8, "width": 8}, **PLAIN)
    processor = PixtralProcessor(images, words, patch_size=8, chat_template=template("[IMG]"))
    return finish(LlavaForConditionalGeneration, config, seed), processor


def gemma3(seed: int, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Four slots per picture that see each other; windows in two of three layers."""
    words = tokenizer(image_token="<image>", boi_token="<start_of_image>", eoi_token="<end_of_image>")
    layers = ["sliding_attention", "sliding_attention", "full_attention"]
    special = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW, "layer_types": layers}
    config = Gemma3Config(
        vision_config=tower("siglip_vision_model", patch_size=4, vision_use_head=False),
        text_config=text(words, "gemma3_text", **{"num_hidden_layers": 3, **special, **changes}),
        mm_tokens_per_image=4,
        image_token_index=words.image_token_id,
        boi_token_index=words.boi_token_id,
        eoi_token_index=words.eoi_token_id,
        tie_word_embeddings=False,
    )
    images = Gemma3ImageProcessorPil(size=SIDE, **PLAIN)
    processor = Gemma3Processor(images, words, chat_template=template("<start_of_image>"), image_seq_length=4)
    return finish(Gemma3ForConditionalGeneration, config, seed), processor


MAKERS: dict[str, Callable[..., tuple[PreTrainedModel, Any]]] = {
    "smolvlm": smolvlm,
    "llava": llava,
    "llava-next": llava_next,
    "pixtral": pixtral,
    "gemma3": gemma3,
    "qwen2.5-vl": qwen2_5_vl,
    "qwen3-vl": qwen3_vl,
}

KIN: dict[str, Callable[..., tuple[PreTrainedModel, Any]]] = {
    **tiny_tiles.MAKERS,
    **tiny_grids.MAKERS,
    **tiny_gemma.MAKERS,
    **tiny_running.MAKERS,
}
EVERY = {**MAKERS, **KIN}
CHOSEN = [*MAKERS, "internvl", "cohere2-vision", "glm4v", "qwen3-vl-moe", "gemma4", "gemma3n"]
"""Without those whose decoders others have, too: for what takes long."""


@cache
def build(name: str, seed: int = 0, attention: str = "sdpa") -> tuple[PreTrainedModel, Any]:
    """The model of a family, float64, and its processor. They are shared: leave them as they are."""
    model, processor = EVERY[name](seed)
    model.set_attn_implementation(attention)
    return model, processor
