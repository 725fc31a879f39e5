"""SmolVLM and Idefics3 as target: pictures are cut into tiles, and each tile has a fixed number of slots in the prompt.

Stock classes and processors; pixels are read once, with the prompt. (SmolVLM: arXiv 2504.05299; Idefics3:
arXiv 2408.12637.)
"""

from __future__ import annotations

from typing import Any

from PIL import Image
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.contract import Needs
from mmspec.errors import Error, InputError, one_line
from mmspec.prompts import check_plain
from mmspec.sampling import Sampler
from mmspec.targets import CausalState, CausalTarget

MODEL_TYPES = ("smolvlm", "idefics3")


class SmolVLM(CausalTarget):
    """A SmolVLM-class checkpoint. See `mmspec.loading.Family`."""

    modality = "vlm"

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model)
        self.tokenizer = tokenizer
        self.placeholders = (model.config.image_token_id,)

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

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> CausalState:
        """Read prompt and pictures; afterwards only the text model works."""
        try:
            return super().prefill(inputs, needs, sampler)
        except Error:
            raise
        except ValueError as error:  # of the model's forward, for tensors that a caller made
            raise InputError(f"the pictures do not fit the prompt's image slots: {one_line(error)}") from error

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """Model inputs of a batch, padded on the left; the pictures of a prompt stand before its text.

        Returns: `input_ids`, `attention_mask` [B, T]; with pictures `pixel_values` [B, tiles, 3, H, W] and
            `pixel_attention_mask` [B, tiles, H, W], both padded with empty tiles.
        """
        check_plain(texts, processor.tokenizer)
        chats = [
            [{"role": "user", "content": [*map(_picture, pictures), {"type": "text", "text": text}]}]
            for text, pictures in zip(texts, images, strict=True)
        ]
        return dict(
            processor.apply_chat_template(
                chats,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs={"padding": True, "padding_side": "left", "verbose": False},
            )
        )


def _picture(picture: Image.Image) -> dict[str, Any]:
    return {"type": "image", "image": picture}
