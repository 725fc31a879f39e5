"""Families that cut a picture into tiles of one size, each with the same number of slots, between tokens of their own.

InternVL3 (arXiv 2504.10479), whose slots lie between a start and an end token; Aya Vision (2505.08751), which writes
before each tile which one it is; Command A Vision, with a break token behind each. Decoders are Qwen's, and Cohere's,
most of whose layers see a sliding window. Positions are counted plainly.
"""

from __future__ import annotations

from mmspec.vlm.vision import VisionTarget


class InternVL(VisionTarget):
    """A checkpoint of InternVL for transformers (`...-hf`). Pictures: `pixel_values` [tiles of all, 3, H, W]."""

    hf = ("InternVLForConditionalGeneration", "InternVLProcessor")
    model_type = "internvl"


class AyaVision(VisionTarget):
    """An Aya Vision checkpoint, with the same input."""

    hf = ("AyaVisionForConditionalGeneration", "AyaVisionProcessor")
    model_type = "aya_vision"


class Cohere2Vision(VisionTarget):
    """A Command A Vision checkpoint, with the same input."""

    hf = ("Cohere2VisionForConditionalGeneration", "Cohere2VisionProcessor")
    model_type = "cohere2_vision"
