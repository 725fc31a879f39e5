"""`gemma3-mini`: image slots that see each other, and windows in five of six layers.

A window is shorter than picture, question and a long answer, so that the layers with one lose the picture's beginning;
every sixth layer, the taught ones among them, sees all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from mmspec.pretrain.pixels import normalized
from mmspec.vlm.pretrain.architecture import IMAGE_SIZE, IMAGE_TOKENS, TokenIds, decoder_shape, tower_shape
from mmspec.vlm.pretrain.attention import bin_mask
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.stages import JOINED, LAYERS
from mmspec.vlm.pretrain.tokenizer import START, chat_template
from mmspec.vlm.pretrain.translated import translate

PATCH_SIZE = 10
WINDOW = 128
SLOT, BEGIN, FINISH = "<image_soft_token>", "<start_of_image>", "<end_of_image>"


class Gemma3(Family):
    """The vision tower and the words of `smolvlm-mini`, and its decoder, said again in another architecture."""

    name = "gemma3-mini"
    model_class = Gemma3ForConditionalGeneration
    processor_class = Gemma3Processor
    patches = IMAGE_SIZE // PATCH_SIZE
    deepens = False
    tokens = {"image_token": SLOT, "boi_token": BEGIN, "eoi_token": FINISH}
    sees = f"{IMAGE_SIZE} pixels and {IMAGE_TOKENS} image tokens per picture, windows of {WINDOW} tokens"
    known = "its vision tower, its words and, translated, the matrices of its decoder"
    prefix = f"{START}User:\n\n{BEGIN}{SLOT * IMAGE_TOKENS}{FINISH}\n\n"

    def config(self, ids: TokenIds, layers: int) -> Gemma3Config:
        """See `Family`."""
        rope = {"rope_type": "default", "rope_theta": 10_000.0}
        text = {
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": 32,
            "sliding_window": WINDOW,
            "rope_parameters": {"full_attention": rope, "sliding_attention": rope},
        }
        tower = tower_shape(self.vision_layers, self.vision_width, IMAGE_SIZE, PATCH_SIZE)
        begin, finish = ids.around or (None, None)
        return Gemma3Config(
            text_config={**decoder_shape(ids, layers, self.width), **text},
            vision_config={**tower, "model_type": "siglip_vision_model", "vision_use_head": False},
            mm_tokens_per_image=IMAGE_TOKENS,
            image_token_index=ids.image,
            boi_token_index=begin,
            eoi_token_index=finish,
            tie_word_embeddings=True,
            initializer_range=0.04,
        )

    def model(self, config: PreTrainedConfig) -> PreTrainedModel:
        """See `Family`; the stock projection starts at zero, from where nothing would reach the tower."""
        model: Any = super().model(config)
        with torch.no_grad():
            model.model.multi_modal_projector.mm_input_projection_weight.normal_(std=0.04)
        return model

    def processor(self, tokenizer: PreTrainedTokenizerFast) -> Gemma3Processor:
        """See `Family`."""
        images = Gemma3ImageProcessor(
            size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}, resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3
        )
        return Gemma3Processor(images, tokenizer, chat_template=chat_template(BEGIN), image_seq_length=IMAGE_TOKENS)

    def pictures(self, pixels: Tensor) -> dict[str, Tensor]:
        """See `Family`."""
        return {"pixel_values": normalized(pixels)}

    def see(self, tower: nn.Module, pixels: Tensor) -> Tensor:
        """See `Family`."""
        return tower(normalized(pixels)).last_hidden_state

    def last(self, connector: Any) -> Iterable[Tensor]:
        """See `Family`."""
        return (connector.mm_input_projection_weight,)

    def adopt_decoder(self, decoder: nn.Module, known: nn.Module, text: Callable[[], Tensor]) -> None:
        """See `Family`; the known one is of Llama's kind."""
        translate(known, decoder, text())

    def masks(self, model: Any, prefix: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
        """See `Family`: a mask per kind of layer, and what the prefix sees beside what lies before it."""
        window = model.config.text_config.sliding_window
        segments, length = batch["segments"], prefix.shape[1]
        positions = batch["places"].reshape(segments.shape) + length
        image = prefix[0] == model.config.image_token_id
        return {
            "attention_mask": {
                "full_attention": bin_mask(segments, length),
                "sliding_attention": bin_mask(segments, length, positions, window),
            },
            "together": image[:, None] & image,
        }


GEMMA3 = Gemma3(stages=(LAYERS, JOINED))
