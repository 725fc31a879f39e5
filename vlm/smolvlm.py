"""SmolVLM and Idefics3 as target: pictures are cut into tiles, and each tile has a fixed number of slots in the prompt.

(SmolVLM: arXiv 2504.05299; Idefics3: arXiv 2408.12637.)
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.vlm.vision import VisionTarget

CLASSES = {
    "smolvlm": ("SmolVLMForConditionalGeneration", "SmolVLMProcessor"),
    "idefics3": ("Idefics3ForConditionalGeneration", "Idefics3Processor"),
}
"""Of each `model_type`, see `BaseTarget.hf`."""


class SmolVLM(VisionTarget):
    """A SmolVLM-class checkpoint. See `VisionTarget`.

    Pictures: `pixel_values` [B, tiles, 3, H, W] and `pixel_attention_mask` [B, tiles, H, W], padded with empty tiles.
    """

    extra_inputs = ("pixel_values", "pixel_attention_mask")
    optional = ("pixel_attention_mask",)

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is one of the two conditional-generation classes, with a Llama-like decoder."""
        heads = config.architectures or ["ForConditionalGeneration"]
        parts = hasattr(config, "vision_config") and hasattr(config, "image_token_id")
        stock = any(head.endswith("ForConditionalGeneration") for head in heads)
        return config.model_type in CLASSES and parts and stock

    @classmethod
    def model_class(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The HF class of the model."""
        return getattr(transformers, CLASSES[config.model_type][0])

    @classmethod
    def processor_class(cls, config: PreTrainedConfig) -> Any:
        """The HF class of the processor."""
        return getattr(transformers, CLASSES[config.model_type][1])
