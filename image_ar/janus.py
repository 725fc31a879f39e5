"""Janus and Janus-Pro as target (arXiv 2410.13848, 2501.17811), on the stock class.

Codes have embeddings, an aligner and a head of their own beside the language model's. The second row of guidance reads
the prompt with every token but the first and the start of the image replaced by padding, as in `generate`.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.errors import UnsupportedError
from mmspec.image_ar.layout import Layout
from mmspec.image_ar.patches import NAME, Patches
from mmspec.image_ar.pictures import to_pixels
from mmspec.image_ar.target import ImageTarget
from mmspec.image_ar.words import check_known
from mmspec.templates import asking, check_plain


class Janus(ImageTarget):
    """A Janus checkpoint that draws. See `CausalTarget`."""

    hf = ("JanusForConditionalGeneration", "JanusProcessor")
    model_type = "janus"
    usual_guidance = 5.0
    unit_codes = True

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        inner, side = model.model, model.config.vq_config.num_patches
        if side * side != model.config.vision_config.num_image_tokens:
            raise UnsupportedError(
                f"the picture decoder takes {side} x {side} codes, the model emits "
                f"{model.config.vision_config.num_image_tokens}: they must be as many"
            )
        embed = nn.Sequential(inner.generation_embeddings, inner.generation_aligner)
        layout = Layout(side, side, model.config.vq_config.num_embeddings)
        super().__init__(model, embed, inner.generation_head, layout)
        config, text = model.generation_config, model.config.text_config
        start = (getattr(config, "generation_kwargs", None) or {}).get("boi_token_id")
        start = getattr(config, "boi_token_id", None) if start is None else start
        if start is None and getattr(tokenizer, "boi_token", None):
            start = tokenizer.convert_tokens_to_ids(tokenizer.boi_token)
        self.start: int | None = start
        first = text.bos_token_id if config.bos_token_id is None else config.bos_token_id
        self.kept = {first, start} - {None}
        self.padding = text.pad_token_id if config.pad_token_id is None else config.pad_token_id

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """Model inputs of a batch of captions, each with the start of an image behind it, padded on the left."""
        check_plain(texts, processor.tokenizer)
        if processor.chat_template:
            chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]
            prompts = processor.apply_chat_template(chats, add_generation_prompt=True)
        else:
            prompts = texts
        with asking(processor):
            inputs = self.read_by(
                processor(text=prompts, generation_mode="image", return_tensors="pt", padding=len(texts) > 1)
            )
        for text, ids in zip(texts, inputs["input_ids"].tolist(), strict=True):
            check_known(text, ids, processor.tokenizer)
        return inputs

    def unguided(self, rows: list[list[int]], inputs: dict[str, Any]) -> list[list[int]]:
        """Padding in the place of all that describes the picture."""
        if self.start is None:
            raise UnsupportedError(
                "guidance needs the start of an image: boi_token_id in the generation config, or a processor whose "
                "tokenizer has a boi_token"
            )
        if self.padding is None:
            raise UnsupportedError("guidance needs a pad_token_id in the checkpoint's generation config")
        return [[token if token in self.kept else self.padding for token in row] for row in rows]

    def pixels(self, codes: Tensor) -> Tensor:
        """See `ImageTarget.pixels`."""
        return self.model.decode_image_tokens(codes.flatten(1))[0].permute(2, 0, 1)

    @cached_property
    def patches(self) -> Patches | None:
        """The network that lies in the model's folder, if it has one. Raises: CheckpointError: it is damaged."""
        place = self.model.name_or_path
        return Patches.read(Path(place)) if place and (Path(place) / NAME).is_file() else None

    @torch.inference_mode()
    def codes(self, picture: Image.Image) -> list[int]:
        """The codes of a real picture, row by row: by the network in the model's folder that found those it was trained
        on, if there is one, else by the stock encoder."""
        pixels = to_pixels(picture, self.layout.rows * self.side)
        if self.patches is not None:
            return self.patches.codes(pixels, self.codebook.cpu()).flatten().tolist()
        return self.vqmodel.encode(pixels.to(self.model.device, self.model.dtype)).image_tokens.flatten().tolist()

    def reconstruct(self, picture: Image.Image) -> Image.Image:
        """What the codes keep of a real picture."""
        return self.picture(self.codes(picture), self.layout)
