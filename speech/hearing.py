"""What language models that hear share: a recording is encoded once, its features fill the audio slots of the prompt.

Stock classes and processors. The model's own forward takes no features that were made before, so the prompt is read as
embeddings, those of the slots replaced; afterwards only the language model works.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.errors import InputError, one_line, out_of_memory, shorten
from mmspec.speech.audio import LONGEST_S
from mmspec.speech.recordings import recordings
from mmspec.targets import CausalTarget
from mmspec.templates import asking, check_without, padded

FASTEST = 5
"""Tokens per second that speech takes, written down, where it is fast."""
REQUEST = re.compile(r"(transcribe|translate)(?:\s+(\S+))?")
"""What Whisper is asked for, which is a request here, too, and no text of its own."""
WORDS = "in words, as in 'Translate what is said into French.'"


class HearingTarget(CausalTarget):
    """Base of the families. They add which checkpoints they serve, and how a prompt is made."""

    modality = "speech"
    extra_inputs: tuple[str, ...] = ("input_features", "input_features_mask")
    """The model inputs that `features` takes."""
    settings = ("voice",)
    usual_budget = int(FASTEST * LONGEST_S)  # room for the longest recording, written down
    takes_words = True
    """Whether it can be asked anything; a recogniser writes down what is said, and no more."""
    takes_language = False
    """Whether a request may tell the language that is spoken."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.slot: int = model.config.audio_token_id
        self.placeholders = (self.slot,)

    def adopt(self, processor: Any) -> None:
        """See `BaseTarget`. Raises InputError: it cannot read speech."""
        if processor is not None and not hasattr(processor, "feature_extractor"):
            raise InputError(f"{type(processor).__name__} cannot read speech: {self.hf[0]} needs a {self.hf[1]}")
        super().adopt(processor)

    def longest(self, processor: Any) -> float:
        """Seconds of a recording that are heard at most."""
        return LONGEST_S

    @abstractmethod
    def asked(self, processor: Any, text: str, language: str | None, samples: np.ndarray) -> dict[str, Any]:
        """Model inputs of one prompt about one recording, `input_ids` [1, T] and the `extra_inputs`.

        Args: language: None where the text is asked as it is; else what is said is to be written down, and this
            language is told, "" for none. samples: [N] at the feature extractor's rate.
        Raises: ValueError: of the processor, for a language that it does not know.
        """

    def requested(self, text: str) -> str | None:
        """The `language` of a prompt, see `asked`. Raises InputError: a prompt that is none for this family."""
        found = REQUEST.fullmatch(text.strip())
        task, language = found.groups(default="") if found else ("", None)
        if task == "translate" or (language and not self.takes_language) or not (found or self.takes_words):
            known = ["'transcribe'", *["'transcribe en'"] * self.takes_language, *[WORDS] * self.takes_words]
            raise InputError(f"{shorten(text)} is no prompt for {type(self.model).__name__}: ask {' or '.join(known)}")
        return language

    def encode(
        self, processor: Any, texts: list[str], images: list[list[Image.Image]], voice: Any = None
    ) -> dict[str, Any]:
        """Model inputs of a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and `extra_inputs`.

        Every prompt is prepared alone: what a processor pads recordings of a batch with may reach the last feature.

        Args: texts: a question or an instruction, or in families that are trained for it the request "transcribe",
            with the language where it is told ("transcribe en"). voice: the recording as the path or bytes of a WAV
            file, or an `Audio`; a list has one for each text.
        """
        check_without(texts, processor.tokenizer.convert_ids_to_tokens(list(self.placeholders)))
        languages = [self.requested(text) for text in texts]
        rate = processor.feature_extractor.sampling_rate
        sounds = recordings(voice, len(texts), rate, self.longest(processor))
        with asking(processor):
            rows = [dict(self.asked(processor, *one)) for one in zip(texts, languages, sounds, strict=True)]
        inputs: dict[str, Any] = padded([row["input_ids"][0].tolist() for row in rows], 0)
        return inputs | {name: _stacked([row[name] for row in rows]) for name in self.extra_inputs if name in rows[0]}

    def arrange(self, inputs: dict[str, Any], rows: list[list[int]]) -> dict[str, Any]:
        """Model inputs, and `inputs_embeds` [B, T, H] with the features of the recordings in their slots."""
        for name in self.extra_inputs:
            if name in inputs and not isinstance(inputs[name], Tensor):
                raise InputError(f"{name} must be a tensor, not {type(inputs[name]).__name__}")
        arranged = super().arrange(inputs, rows)
        sounds = {name: arranged.pop(name) for name in self.extra_inputs if name in arranged}
        slots = arranged["input_ids"] == self.slot
        arranged["inputs_embeds"] = self.embed(arranged["input_ids"])
        count = int(slots.sum())
        if sounds or count:
            missing = [name for name in self.extra_inputs if name not in sounds]
            if missing:
                whose = "a recording came" if sounds else f"the prompt has {count} audio slots and comes"
                raise InputError(f"{whose} without {missing[0]}: pass on all that the processor returns")
            features = self._encoded(sounds)
            if len(features) != count:
                raise InputError(
                    f"the recordings do not fit the prompt's audio slots: they fill {len(features)}, the prompt has "
                    f"{count}"
                )
            whole = arranged["inputs_embeds"]
            arranged["inputs_embeds"] = whole.masked_scatter(slots[..., None], features.to(whole.dtype))
        return arranged

    def _encoded(self, sounds: dict[str, Tensor]) -> Tensor:
        """`features`, with an error of ours for tensors that a caller made."""
        try:
            return self.features(sounds)
        except (IndexError, RuntimeError, ValueError) as error:
            if out_of_memory(error):
                raise
            shapes = ", ".join(f"{name} {list(given.shape)}" for name, given in sounds.items())
            raise InputError(f"the model cannot hear inputs of these shapes: {shapes} ({one_line(error)})") from error

    def features(self, sounds: dict[str, Tensor]) -> Tensor:
        """[slots, H]: what the encoder and the projector make of the `extra_inputs`, for the slots in their order."""
        found: Tensor = self.model.get_audio_features(**sounds, return_dict=True).pooler_output
        return found

    def piece(self, arranged: dict[str, Any], start: int, end: int) -> dict[str, Any]:
        """The embeddings of columns start to end, in the place of their ids."""
        return {"inputs_embeds": arranged["inputs_embeds"][:, start:end]}


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Tensors [.., F] of several prompts below each other, shorter ones filled up with zeros."""
    width = max(tensor.shape[-1] for tensor in tensors)
    return torch.cat([torch.nn.functional.pad(tensor, (0, width - tensor.shape[-1])) for tensor in tensors])
