"""What language models that hear share: a recording is encoded once, its features fill the audio slots of the prompt.

Stock classes and processors. The model's own forward takes no features that were made before, so the prompt is read as
embeddings, those of the slots replaced; afterwards only the language model works.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec.errors import InputError, shorten
from mmspec.perceiving import PerceivingTarget
from mmspec.prompts import Chat, Prompt, messages_of
from mmspec.speech.audio import LONGEST_S
from mmspec.speech.recordings import about, sampled, samples_of, voices
from mmspec.templates import asking, check_without, control_as_text, fitted, padded

FASTEST = 5
"""Tokens per second that speech takes, written down, where it is fast."""
REQUEST = re.compile(r"(transcribe|translate)(?:\s+(\S+))?")
"""What Whisper is asked for, which is a request here, too, and no text of its own."""
WORDS = "in words, as in 'Translate what is said into French.'"


class HearingTarget(PerceivingTarget):
    """Base of the families. They add which checkpoints they serve, and what they may be asked."""

    modality = "speech"
    perceives = "recordings"
    sense = "audio"
    extra_inputs: tuple[str, ...] = ("input_features", "input_features_mask")
    """The model inputs that `features` takes."""
    settings = ("voice",)
    usual_budget = int(FASTEST * LONGEST_S)  # room for the longest recording, written down
    takes_words = True
    """Whether it can be asked anything; a recogniser writes down what is said, and no more."""
    takes_language = False
    """Whether a request may tell the language that is spoken."""

    def adopt(self, processor: Any) -> None:
        """See `BaseTarget`. Raises InputError: it cannot read speech."""
        if processor is not None and not hasattr(processor, "feature_extractor"):
            raise InputError(f"{type(processor).__name__} cannot read speech: {self.hf[0]} needs a {self.hf[1]}")
        super().adopt(processor)

    def longest(self, processor: Any) -> float:
        """Seconds of a recording that are heard at most."""
        return LONGEST_S

    def requested(self, text: str) -> str | None:
        """The language that a request to write down what is said tells, "" for none; None of a text that is asked as it
        is. Raises InputError: a prompt that is none for this family."""
        found = REQUEST.fullmatch(text.strip())
        task, language = found.groups(default="") if found else ("", None)
        if task == "translate" or (language and not self.takes_language) or not (found or self.takes_words):
            known = ["'transcribe'", *["'transcribe en'"] * self.takes_language, *[WORDS] * self.takes_words]
            raise InputError(f"{shorten(text)} is no prompt for {type(self.model).__name__}: ask {' or '.join(known)}")
        return language

    def transcribing(self, processor: Any, samples: np.ndarray, language: str) -> dict[str, Any]:
        """Model inputs of a request to write down what is said, `input_ids` [1, T] and the `extra_inputs`.

        Args: samples: [N] at the feature extractor's rate. language: see `requested`.
        Raises: ValueError: of the processor, for a language that it does not know.
        """
        told = {"language": language or None} if self.takes_language else {}
        made: dict[str, Any] = processor.apply_transcription_request([samples], **told)
        return made

    def talking(self, processor: Any, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Model inputs of a chat, the `extra_inputs` where anything is heard in it.

        Args: messages: as of a `Chat`, with the samples [N] of recordings at the feature extractor's rate.
        """
        with control_as_text([Chat(messages)], processor.tokenizer) as told:
            made: dict[str, Any] = processor.apply_chat_template(
                [fitted(processor, messages)],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                **told,
            )
        return made

    def encode(
        self, processor: Any, texts: Sequence[Prompt], images: list[list[Image.Image]], voice: Any = None
    ) -> dict[str, Any]:
        """Model inputs of a batch: `input_ids` and `attention_mask` [B, T], padded on the left, and `extra_inputs`.

        Every prompt is prepared alone: what a processor pads recordings of a batch with may reach the last feature.

        Args: texts: a question or an instruction, or in families that are trained for it the request "transcribe",
            with the language where it is told ("transcribe en"); or a chat, whose texts are asked as they are. voice:
            the recording as the path or bytes of a WAV file, or an `Audio`; a list has one for each prompt, None for a
            chat that has recordings in its messages, or is about none. That of a chat without any is heard with the
            first words of its user.
        """
        check_without(texts, processor.tokenizer.convert_ids_to_tokens(list(self.placeholders)))
        with asking(processor):
            rows = [self._asked(processor, *one) for one in zip(texts, voices(voice, len(texts)), strict=True)]
        inputs: dict[str, Any] = padded([row["input_ids"][0].tolist() for row in rows], 0)
        sounds = {name: [row[name] for row in rows if name in row] for name in self.extra_inputs}
        return inputs | {name: _stacked(given) for name, given in sounds.items() if given}

    def _asked(self, processor: Any, prompt: Prompt, voice: Any) -> dict[str, Any]:
        """Model inputs of one prompt with the recording that came with it."""
        told = processor.feature_extractor.sampling_rate, self.longest(processor)
        language = self.requested(prompt) if isinstance(prompt, str) else None
        if language is not None:
            return self.transcribing(processor, samples_of(voice, *told), language)
        chat = prompt if isinstance(prompt, Chat) else Chat(messages_of(prompt, []))
        if isinstance(prompt, str) or voice is not None:
            chat = about(chat, voice)
        return self.talking(processor, sampled(chat, *told))

    def features(self, given: dict[str, Any]) -> Tensor:
        """[slots, H]: what the encoder and the projector make of the `extra_inputs`."""
        found: Tensor = self.model.get_audio_features(**given, return_dict=True).pooler_output
        return found

    def arrange(self, inputs: dict[str, Any], rows: list[list[int]]) -> dict[str, Any]:
        """Model inputs, and `inputs_embeds` [B, T, H] with the features of the recordings in their slots."""
        arranged = super().arrange(inputs, rows)
        whole = self.embed(arranged["input_ids"])
        if "features" in arranged:
            slots = (arranged["input_ids"] == self.slot)[..., None]
            whole = whole.masked_scatter(slots, arranged.pop("features").to(whole.dtype))
        return arranged | {"inputs_embeds": whole}

    def piece(self, arranged: dict[str, Any], start: int, end: int) -> dict[str, Any]:
        """The embeddings of columns start to end, in the place of their ids."""
        return {"inputs_embeds": arranged["inputs_embeds"][:, start:end]}


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Tensors [.., F] of several prompts below each other, shorter ones filled up with zeros."""
    width = max(tensor.shape[-1] for tensor in tensors)
    return torch.cat([torch.nn.functional.pad(tensor, (0, width - tensor.shape[-1])) for tensor in tensors])
