"""What all vision-language targets share: pictures are encoded once, their features fill the image slots of the prompt.

Stock classes and processors. The features enter the model's own forward as `mm_encoder_outputs`, as in `generate` of
transformers; after the prompt only the text model works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.causal_state import CausalState
from mmspec.contract import Needs
from mmspec.errors import Error, InputError, one_line
from mmspec.perceiving import PerceivingTarget
from mmspec.prompts import Prompt, messages_of
from mmspec.sampling import Sampler
from mmspec.templates import asking, check_without, control_as_text, fitted, template_variables


class VisionTarget(PerceivingTarget):
    """Base of the families. They add which checkpoints they serve, and what is special about their prompts."""

    modality = "vlm"
    chats = True
    settings = ("thinking",)
    perceives = "pictures"
    sense = "image"
    extra_inputs: tuple[str, ...] = ("pixel_values",)
    """The model inputs that `get_image_features` takes."""

    def adopt(self, processor: Any) -> None:
        """Take over the processor; a tokenizer alone prepares no pictures."""
        if processor is not None and not hasattr(processor, "tokenizer"):
            raise InputError(f"{type(self.model).__name__} sees: pass its processor (AutoProcessor), not a tokenizer")
        super().adopt(processor)

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> CausalState:
        """Read prompt and pictures; afterwards only the text model works."""
        try:
            return super().prefill(inputs, needs, sampler)
        except Error:
            raise
        except ValueError as error:  # of the model's forward, for tensors that a caller made
            raise InputError(f"{self.misfit}: {one_line(error)}") from error

    def features(self, given: dict[str, Any]) -> Any:
        """What `get_image_features` returns: of the model's vision tower and connector."""
        return self.model.get_image_features(**given, return_dict=True)

    def vectors(self, features: Any) -> Tensor:
        """See `PerceivingTarget`."""
        return flat(features.pooler_output)

    def piece(self, arranged: dict[str, Any], start: int, end: int) -> dict[str, Any]:
        """The model inputs of columns start to end, with the features of the slots among them."""
        piece = super().piece(arranged, start, end)
        row, column = (arranged["input_ids"] == self.slot).nonzero(as_tuple=True)
        inside = (column >= start) & (column < end)
        if "features" in arranged and inside.any():
            piece["mm_encoder_outputs"] = {"image": _part(arranged["features"], inside)}
        return piece

    def encode(
        self,
        processor: Any,
        texts: Sequence[Prompt],
        images: list[list[Image.Image]],
        thinking: bool | None = None,
    ) -> dict[str, Any]:
        """Model inputs of a batch, padded on the left; pictures stand before a text, and in a chat where it has them.

        Control tokens in a text stay text, where the processor can do that; a picture slot of its own it never has.
        Returns: what the processor makes: `input_ids`, `attention_mask` [B, T], and the family's picture inputs.
        Raises: InputError: a text with image slots, or with control tokens that would not stay text; a processor
            without a chat template, or without a token to pad a batch with; a picture that the processor refuses.
        """
        tokenizer = processor.tokenizer
        named = (getattr(processor, name, None) for name in ("image_token", "video_token"))
        slots = (*named, *tokenizer.convert_ids_to_tokens(list(self.placeholders)))
        check_without(texts, [slot for slot in slots if slot])
        if not processor.chat_template:
            raise InputError(f"{type(processor).__name__} has no chat template: set processor.chat_template")
        variables = template_variables(processor.chat_template, thinking)
        chats = [fitted(processor, messages_of(*asked), **variables) for asked in zip(texts, images, strict=True)]
        with _padding(tokenizer, len(texts) > 1), asking(processor), control_as_text(texts, tokenizer) as told:
            inputs = processor.apply_chat_template(
                chats,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs={"padding": len(texts) > 1, "padding_side": "left", "verbose": False},
                **variables,
                **told,
            )
        return dict(inputs)


@contextmanager
def _padding(tokenizer: Any, needed: bool) -> Iterator[None]:
    """A tokenizer without a token for padding has one meanwhile, where it is needed; it is the caller's."""
    if not needed or tokenizer.pad_token is not None:
        yield
        return
    if tokenizer.eos_token is None:
        raise InputError(
            "a batch needs padding, and the tokenizer has neither pad_token nor eos_token: set "
            "processor.tokenizer.pad_token"
        )
    tokenizer.pad_token = tokenizer.eos_token  # any will do: `unpad` drops it by the mask
    try:
        yield
    finally:
        tokenizer.pad_token = None


def flat(features: Any) -> Tensor:
    """[slots, H] features of all pictures, from a tensor [.., H] or a list of them."""
    return torch.cat(list(features)) if isinstance(features, list | tuple) else features.flatten(0, -2)


def _part(features: Any, chosen: Tensor) -> Any:
    """The features of some slots, in the form in which the model takes those of all. chosen: [slots] bool."""

    def part(states: Any) -> Any:
        some = flat(states)[chosen]
        return [some] if isinstance(states, list | tuple) else some

    fields = {"pooler_output": part(features.pooler_output)}
    if "deepstack_features" in features:  # of Qwen3-VL, one per layer
        fields["deepstack_features"] = [part(states) for states in features.deepstack_features]
    return replace(features, **fields)
