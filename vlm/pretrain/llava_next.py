"""`llava-next-mini`: an overview of each picture, and its four quarters seen apart, with a newline slot per row.

Tiles of 80 pixels have 4 x 4 patches of 20, so that a square picture has 16 + 64 + 8 image slots: the class pools
nothing, and smaller patches would be many more slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import (
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    PreTrainedTokenizerFast,
)

from mmspec.pretrain.pixels import normalized
from mmspec.vlm.pretrain.architecture import CANVAS, IMAGE_SIZE, SIDE, TokenIds, decoder_shape, tower_shape
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.pixels import shrunk
from mmspec.vlm.pretrain.stages import JOINED
from mmspec.vlm.pretrain.tokenizer import IMAGE, START, chat_template

TILE = IMAGE_SIZE // 2
PATCH_SIZE = 20
SPAN = TILE // PATCH_SIZE  # patches per side of a tile
OVERVIEW = SPAN**2
SLOTS = OVERVIEW + SIDE * (SIDE + 1)
PINPOINTS = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE]]


class LlavaNext(Family):
    """The decoder of `smolvlm-mini`, and of its tower what does not depend on the patches."""

    name = "llava-next-mini"
    model_class = LlavaNextForConditionalGeneration
    processor_class = LlavaNextProcessor
    patches = SIDE
    tokens = {"image_token": IMAGE}
    sees = f"an overview and four tiles of {TILE} pixels, {SLOTS} image tokens per square picture"
    known = "its decoder, its words and the layers of its vision tower"
    prefix = f"{START}User:{IMAGE * SLOTS}"

    def config(self, ids: TokenIds, layers: int) -> LlavaNextConfig:
        """See `Family`."""
        tower = tower_shape(self.vision_layers, self.vision_width, TILE, PATCH_SIZE)
        return LlavaNextConfig(
            text_config=decoder_shape(ids, layers, self.width),
            vision_config={**tower, "model_type": "siglip_vision_model", "vision_use_head": False},
            image_token_index=ids.image,
            image_grid_pinpoints=PINPOINTS,
            image_seq_length=OVERVIEW,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",  # SigLIP has no class token that would be left out
            tie_word_embeddings=True,
            initializer_range=0.04,
        )

    def processor(self, tokenizer: PreTrainedTokenizerFast) -> LlavaNextProcessor:
        """See `Family`."""
        images = LlavaNextImageProcessor(
            size={"shortest_edge": TILE},
            crop_size={"height": TILE, "width": TILE},
            image_grid_pinpoints=PINPOINTS,
            resample=3,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        )
        return LlavaNextProcessor(
            images,
            tokenizer,
            patch_size=PATCH_SIZE,
            vision_feature_select_strategy="full",
            chat_template=chat_template(IMAGE),
        )

    def pixels(self, image: Image.Image) -> Tensor:
        """[5, 3, TILE, TILE]: the overview, then the quarters row by row."""
        whole = shrunk(image)
        quarters = whole.unflatten(1, (2, TILE)).unflatten(3, (2, TILE)).permute(1, 3, 0, 2, 4).flatten(0, 1)
        return torch.cat([shrunk(image, TILE)[None], quarters])

    def pictures(self, pixels: Tensor) -> dict[str, Tensor]:
        """See `Family`."""
        sizes = torch.full((len(pixels), 2), CANVAS, device=pixels.device)
        return {"pixel_values": normalized(pixels), "image_sizes": sizes}

    def see(self, tower: nn.Module, pixels: Tensor) -> Tensor:
        """See `Family`; of the quarters, which hold all that the overview shows. They stop short of the last norm."""
        tiles = normalized(pixels)[:, 1:].flatten(0, 1)
        return _joined(tower(tiles, output_hidden_states=True).hidden_states[-1])

    @property
    def grid(self) -> Tensor:
        """See `Family`; the overview lies before them, and a newline behind each row."""
        return OVERVIEW + torch.arange(SIDE * (SIDE + 1)).unflatten(0, (SIDE, -1))[:, :-1].flatten()

    def views(self, squares: Tensor) -> Tensor:
        """See `Family`; the tower cannot know which of the quarters it looks at."""
        split = squares.unflatten(1, (2, SPAN, 2, SPAN)).transpose(2, 3)  # [B, 2, 2, SPAN, SPAN, D]
        return split.flatten(0, 2).flatten(1, 2)

    def last(self, connector: Any) -> Iterable[Tensor]:
        """See `Family`."""
        return connector.linear_2.parameters()


def _joined(tiles: Tensor) -> Tensor:
    """[B * 4, SPAN * SPAN, V], tile by tile -> [B, SIDE * SIDE, V], row by row."""
    split = tiles.unflatten(0, (-1, 2, 2)).unflatten(3, (SPAN, SPAN))
    return split.transpose(2, 3).flatten(1, 4)


LLAVA_NEXT = LlavaNext(stages=(JOINED,))
