"""`pixtral-mini`: pictures in their own shape, a break token behind every row of patches.

The tower has rotary positions and gated layers, unlike any other here, and learns from nothing. Its patches are
image slots, so that they are large, and the tower is wide for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedTokenizerFast,
)

from mmspec.pretrain.pixels import normalized
from mmspec.vlm.pretrain.architecture import IMAGE_SIZE, IMAGE_TOKENS, SIDE, TokenIds, decoder_shape, tower_shape
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.stages import JOINED
from mmspec.vlm.pretrain.tokenizer import START, chat_template

PATCH_SIZE = IMAGE_SIZE // SIDE
TOGETHER = 4  # pictures: each token of a row is compared with all of it, also with those of other pictures
PATCH, BREAK, FINISH = "[IMG]", "[IMG_BREAK]", "[IMG_END]"


class Pixtral(Family):
    """The decoder of `smolvlm-mini` with a tower of its own."""

    name = "pixtral-mini"
    model_class = LlavaForConditionalGeneration
    processor_class = PixtralProcessor
    patches = SIDE
    tokens = {"image_token": PATCH, "image_break_token": BREAK, "image_end_token": FINISH}
    sees = (
        f"pictures of at most {IMAGE_SIZE} pixels in their own shape, {IMAGE_TOKENS} image tokens and {SIDE} breaks "
        "for a square one"
    )
    known = "its decoder and its words"
    prefix = f"{START}User:{BREAK.join([PATCH * SIDE] * SIDE)}{FINISH}"

    def config(self, ids: TokenIds, layers: int) -> LlavaConfig:
        """See `Family`."""
        tower = tower_shape(self.vision_layers, self.vision_width, IMAGE_SIZE, PATCH_SIZE)
        gated = {"model_type": "pixtral", "intermediate_size": self.vision_width * 2}
        return LlavaConfig(
            text_config={**decoder_shape(ids, layers, self.width), "model_type": "mistral", "sliding_window": None},
            vision_config={**tower, **gated},
            image_token_index=ids.image,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=True,
            initializer_range=0.04,
        )

    def processor(self, tokenizer: PreTrainedTokenizerFast) -> PixtralProcessor:
        """See `Family`."""
        images = PixtralImageProcessor(
            size={"longest_edge": IMAGE_SIZE},
            patch_size={"height": PATCH_SIZE, "width": PATCH_SIZE},
            resample=3,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        )
        return PixtralProcessor(images, tokenizer, patch_size=PATCH_SIZE, chat_template=chat_template(PATCH))

    def pictures(self, pixels: Tensor) -> dict[str, Tensor]:
        """See `Family`."""
        sizes = torch.full((len(pixels), 2), IMAGE_SIZE, device=pixels.device)
        return {"pixel_values": normalized(pixels), "image_sizes": sizes}

    def see(self, tower: nn.Module, pixels: Tensor) -> Tensor:
        """See `Family`; the tower reads the pictures that it gets as one row."""
        rows = [
            tower(few).last_hidden_state.unflatten(1, (len(few), -1))[0] for few in normalized(pixels).split(TOGETHER)
        ]
        return torch.cat(rows)

    def last(self, connector: Any) -> Iterable[Tensor]:
        """See `Family`."""
        return connector.linear_2.parameters()


PIXTRAL = Pixtral(stages=(JOINED,), vision_width=224)
