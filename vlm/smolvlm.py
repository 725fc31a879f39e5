"""SmolVLM and Idefics3 as target: pictures are cut into tiles, and each tile has a fixed number of slots in the prompt.

(SmolVLM: arXiv 2504.05299; Idefics3: arXiv 2408.12637.)
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.vlm.vision import VisionTarget

MODEL_TYPES = ("smolvlm", "idefics3")


class SmolVLM(VisionTarget):
    """A SmolVLM-class checkpoint. See `mmspec.loading.Family`.

    Pictures: `pixel_values` [B, tiles, 3, H, W] and `pixel_attention_mask` [B, tiles, H, W], padded with empty tiles.
    """

    pictures = ("pixel_values", "pixel_attention_mask")
    optional = ("pixel_attention_mask",)

    @staticmethod
    def serves(config: PreTrainedConfig) -> bool:
        """Whether the configuration is one of the two conditional-generation classes, with a Llama-like decoder."""
        heads = config.architectures or ["ForConditionalGeneration"]
        parts = hasattr(config, "vision_config") and hasattr(config, "image_token_id")
        return config.model_type in MODEL_TYPES and parts and heads[0].endswith("ForConditionalGeneration")

    @staticmethod
    def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The HF class of the model."""
        if config.model_type == "smolvlm":
            from transformers.models.smolvlm.modeling_smolvlm import SmolVLMForConditionalGeneration

            return SmolVLMForConditionalGeneration
        from transformers.models.idefics3.modeling_idefics3 import Idefics3ForConditionalGeneration

        return Idefics3ForConditionalGeneration

    @staticmethod
    def processor_class(config: PreTrainedConfig) -> Any:
        """The HF class of the processor."""
        if config.model_type == "smolvlm":
            from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor

            return SmolVLMProcessor
        from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

        return Idefics3Processor
