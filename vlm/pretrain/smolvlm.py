"""`smolvlm-mini`: one tile per picture, 16 x 16 patches, of which four make an image slot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from mmspec.pretrain.pixels import normalized
from mmspec.vlm.pretrain.architecture import IMAGE_SIZE, IMAGE_TOKENS, TokenIds, decoder_shape, tower_shape
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.tokenizer import CHAT_TEMPLATE, FAKE, GLOBAL, IMAGE, START, TOKENS

PATCH_SIZE = 10
SCALE_FACTOR = 2


class SmolVLM(Family):
    """Trained from nothing: about 10 M parameters, most of them in the depth of the decoder."""

    name = "smolvlm-mini"
    model_class = SmolVLMForConditionalGeneration
    processor_class = SmolVLMProcessor
    tower, connector, decoder = "vision_model", "connector", "text_model"
    patches = IMAGE_SIZE // PATCH_SIZE
    tokens = TOKENS
    sees = f"one tile of {IMAGE_SIZE} pixels and {IMAGE_TOKENS} image tokens per picture"
    prefix = f"{START}User:{FAKE}{GLOBAL}{IMAGE * IMAGE_TOKENS}{FAKE}"

    def config(self, ids: TokenIds, layers: int) -> SmolVLMConfig:
        """See `Family`; the tower is as wide as the decoder."""
        return SmolVLMConfig(
            text_config=decoder_shape(ids, layers, self.width),
            vision_config=tower_shape(self.vision_layers, self.width, IMAGE_SIZE, PATCH_SIZE),
            image_token_id=ids.image,
            scale_factor=SCALE_FACTOR,
            tie_word_embeddings=True,
            pad_token_id=ids.padding,
            bos_token_id=ids.start,
            eos_token_id=ids.end,
            initializer_range=0.04,
        )

    def processor(self, tokenizer: PreTrainedTokenizerFast) -> SmolVLMProcessor:
        """See `Family`; pictures are not split."""
        edge = {"longest_edge": IMAGE_SIZE}
        scale: dict[str, Any] = {"resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        images = SmolVLMImageProcessor(do_image_splitting=False, size=edge, max_image_size=edge, **scale)
        videos = SmolVLMVideoProcessor(size=edge, max_image_size=edge, num_frames=8, fps=1, **scale)
        return SmolVLMProcessor(images, tokenizer, videos, image_seq_len=IMAGE_TOKENS, chat_template=CHAT_TEMPLATE)

    def pictures(self, pixels: Tensor) -> dict[str, Tensor]:
        """See `Family`."""
        return {"pixel_values": normalized(pixels)[:, None]}

    def see(self, tower: nn.Module, pixels: Tensor) -> Tensor:
        """See `Family`."""
        return tower(normalized(pixels)).last_hidden_state

    def last(self, connector: Any) -> Iterable[Tensor]:
        """See `Family`."""
        return (connector.modality_projection.proj.weight,)


SMOLVLM = SmolVLM()
