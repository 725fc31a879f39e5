"""LLaVA and Pixtral, and what came of them, as targets: a vision tower, a projector, a decoder that counts plainly.

They differ in the slots of a picture: a fixed number (LLaVA-1.5, arXiv 2310.03744); a base view and tiles without their
padding, one newline slot per row (LLaVA-NeXT, LLaVA-OneVision, arXiv 2408.03326); the picture's own size, a break token
after every row and an end token (Pixtral, arXiv 2410.07073, a checkpoint of the LLaVA class with Pixtral's tower), with
four patches to a slot (Mistral 3), or without break tokens (LightOnOCR).
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.options import LONG
from mmspec.vlm.vision import VisionTarget

BREAK_TOKENS = ("[IMG_BREAK]", "[IMG_END]")


class Llava(VisionTarget):
    """A LLaVA-1.5 checkpoint. Pictures: `pixel_values` [pictures, 3, H, W]. See `VisionTarget`."""

    hf = ("LlavaForConditionalGeneration", "LlavaProcessor")
    model_type = "llava"

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is a LLaVA one with another tower than Pixtral's."""
        return super().serves(config) and config.vision_config.model_type != "pixtral"


class Pixtral(VisionTarget):
    """A Pixtral checkpoint. Pictures: `pixel_values` [pictures, 3, H, W], padded, and `image_sizes` [pictures, 2].

    Break and end tokens are embedded like text, but they are picture, not text, to a drafter.
    """

    hf = ("LlavaForConditionalGeneration", "PixtralProcessor")
    model_type = "llava"
    extra_inputs = ("pixel_values", "image_sizes")

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        known = tokenizer.get_added_vocab() if tokenizer is not None else {}
        self.placeholders = (self.slot, *(known[token] for token in BREAK_TOKENS if token in known))

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is a LLaVA one with Pixtral's tower."""
        return super().serves(config) and config.vision_config.model_type == "pixtral"


class LlavaNext(VisionTarget):
    """A LLaVA-NeXT (LLaVA-1.6) checkpoint.

    Pictures: `pixel_values` [pictures, tiles, 3, H, W], padded with empty tiles, and `image_sizes` [pictures, 2].
    """

    hf = ("LlavaNextForConditionalGeneration", "LlavaNextProcessor")
    model_type = "llava_next"
    extra_inputs = ("pixel_values", "image_sizes")


class LlavaOnevision(VisionTarget):
    """A LLaVA-OneVision checkpoint. Pictures: as for LLaVA-NeXT; `batch_num_images` [prompts that have some]
    says how many, and those of a prompt with several are not cut into tiles."""

    hf = ("LlavaOnevisionForConditionalGeneration", "LlavaOnevisionProcessor")
    model_type = "llava_onevision"
    extra_inputs = ("pixel_values", "image_sizes", "batch_num_images")
    optional = ("batch_num_images",)


class Mistral3(Pixtral):
    """A Mistral Small 3.1 checkpoint, or a newer one of its class, with the same inputs."""

    hf = ("Mistral3ForConditionalGeneration", "PixtralProcessor")
    model_type = "mistral3"


class LightOnOcr(VisionTarget):
    """A LightOnOCR checkpoint. Pictures: as for Pixtral, and nothing need be asked."""

    hf = ("LightOnOcrForConditionalGeneration", "LightOnOcrProcessor")
    model_type = "lighton_ocr"
    extra_inputs = ("pixel_values", "image_sizes")
    wordless = True
    usual_budget = LONG

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """See `BaseTarget`. What is published has Mistral 3's type, and writes the name of the class otherwise."""
        published = cls.hf[0].lower() in (name.lower() for name in config.architectures or ())
        return super().serves(config) or (published and config.model_type == Mistral3.model_type)
