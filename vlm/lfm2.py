"""LFM2-VL (arXiv 2511.23404) as target: tiles of the picture's own shape, and a decoder most of whose layers are short
convolutions (`mmspec.running`)."""

from __future__ import annotations

from mmspec.vlm.vision import VisionTarget


class Lfm2VL(VisionTarget):
    """An LFM2-VL checkpoint.

    Pictures: `pixel_values` [tiles of all pictures, patches, ..], padded; `pixel_attention_mask` [tiles, patches] says
    which are real, and `spatial_shapes` [tiles, 2] in which rows and columns they stand.
    """

    hf = ("Lfm2VlForConditionalGeneration", "Lfm2VlProcessor")
    model_type = "lfm2_vl"
    extra_inputs = ("pixel_values", "spatial_shapes", "pixel_attention_mask")
