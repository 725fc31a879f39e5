"""LLaVA-1.5, LLaVA-NeXT and Pixtral as targets: a vision tower, a projector, a Llama or Mistral decoder.

They differ in the slots of a picture: a fixed number (LLaVA-1.5, arXiv 2310.03744); a base view and tiles without their
padding, one newline slot per row (LLaVA-NeXT); the picture's own size, a break token after every row and an end token
(Pixtral, arXiv 2410.07073, a checkpoint of the LLaVA class with Pixtral's tower). The decoder counts positions plainly.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.vlm.vision import VisionTarget

BREAK_TOKENS = ("[IMG_BREAK]", "[IMG_END]")


def stock(config: PreTrainedConfig, name: str) -> bool:
    """Whether a checkpoint is of a class of transformers, if it says of which: LLaVA's own has its `model_type`."""
    return name in (config.architectures or [name])


class Llava(VisionTarget):
    """A LLaVA-1.5 checkpoint. Pictures: `pixel_values` [pictures, 3, H, W]. See `VisionTarget`."""

    hf = ("LlavaForConditionalGeneration", "LlavaProcessor")

    @staticmethod
    def serves(config: PreTrainedConfig) -> bool:
        """Whether the configuration is a LLaVA one with another tower than Pixtral's."""
        plain = config.model_type == "llava" and config.vision_config.model_type != "pixtral"
        return plain and stock(config, Llava.hf[0])


class Pixtral(Llava):
    """A Pixtral checkpoint. Pictures: `pixel_values` [pictures, 3, H, W], padded, and `image_sizes` [pictures, 2].

    Break and end tokens are embedded like text, but they are picture, not text, to a drafter.
    """

    hf = ("LlavaForConditionalGeneration", "PixtralProcessor")
    extra_inputs = ("pixel_values", "image_sizes")

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        known = tokenizer.get_added_vocab() if tokenizer is not None else {}
        self.placeholders = (self.slot, *(known[token] for token in BREAK_TOKENS if token in known))

    @staticmethod
    def serves(config: PreTrainedConfig) -> bool:
        """Whether the configuration is a LLaVA one with Pixtral's tower."""
        plain = config.model_type == "llava" and config.vision_config.model_type == "pixtral"
        return plain and stock(config, Pixtral.hf[0])


class LlavaNext(VisionTarget):
    """A LLaVA-NeXT (LLaVA-1.6) checkpoint.

    Pictures: `pixel_values` [pictures, tiles, 3, H, W], padded with empty tiles, and `image_sizes` [pictures, 2].
    """

    hf = ("LlavaNextForConditionalGeneration", "LlavaNextProcessor")
    extra_inputs = ("pixel_values", "image_sizes")

    @staticmethod
    def serves(config: PreTrainedConfig) -> bool:
        """Whether the configuration is a LLaVA-NeXT one."""
        return config.model_type == "llava_next" and stock(config, LlavaNext.hf[0])
