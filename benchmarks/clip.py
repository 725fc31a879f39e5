"""CLIP score (arXiv 2104.08718): 100 times the cosine of a picture and its caption, not below 0, under a CLIP model
that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mmspec.checkpoints import read_model
from mmspec.errors import CheckpointError, one_line

TOGETHER = 32


class Clip:
    """The model and the processor in a folder, on the CPU. Raises: CheckpointError: the folder holds no CLIP model."""

    def __init__(self, folder: Path) -> None:
        from transformers import CLIPModel, CLIPProcessor

        self.model: Any = read_model(CLIPModel, folder, torch.float32).eval()
        try:
            self.processor = CLIPProcessor.from_pretrained(folder)
        except Exception as error:  # noqa: BLE001  damaged files end in any exception of json and tokenizers
            raise CheckpointError(f"{folder} holds no processor of a CLIP model: {one_line(error)}") from error

    @torch.inference_mode()
    def scores(self, pictures: Sequence[Image.Image], captions: Sequence[str]) -> list[float]:
        """One score per picture."""
        found: list[float] = []
        for start in range(0, len(pictures), TOGETHER):
            inputs = self.processor(
                text=list(captions[start : start + TOGETHER]),
                images=list(pictures[start : start + TOGETHER]),
                return_tensors="pt",
                padding=True,
                truncation=True,
            )
            out = self.model(**inputs)
            cosines = torch.nn.functional.cosine_similarity(out.image_embeds, out.text_embeds)
            found += (100 * cosines.clamp(min=0)).tolist()
        return found
