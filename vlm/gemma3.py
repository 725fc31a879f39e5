"""Gemma3 as target (arXiv 2503.19786): most layers see a sliding window, and the slots of an image see each other.

Trees need two masks, one per kind of layer (`mmspec.decoder`). Only the prompt says which tokens are images
(`token_type_ids`); what follows is read as text, an emitted image token included.
"""

from __future__ import annotations

from typing import Any

from mmspec.targets import PER_TOKEN
from mmspec.vlm.vision import VisionTarget


class Gemma3(VisionTarget):
    """A Gemma3 checkpoint that sees. Pictures: `pixel_values` [pictures, 3, H, W]. See `VisionTarget`."""

    hf = ("Gemma3ForConditionalGeneration", "Gemma3Processor")
    model_type = "gemma3"

    def piece(self, arranged: dict[str, Any], start: int, end: int) -> dict[str, Any]:
        """The model inputs of columns start to end; the types, from which the model makes its masks, of all so far."""
        piece = super().piece(arranged, start, end)
        return {**piece, **{name: arranged[name][:, :end] for name in PER_TOKEN if name in arranged}}
