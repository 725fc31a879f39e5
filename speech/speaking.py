"""What all targets that speak share: a prompt is text and a voice, and the emitted codes become sound at the end.

Only the codes that were emitted are ever turned into sound: rejected drafts never reach the codec. What an utterance
sounds like is a function of its prompt and its codes, so an exact rule gives the sound of the autoregressive loop.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from mmspec.options import MAX_NEW_TOKENS
from mmspec.speech.chunks import Chunks
from mmspec.speech.text import spoken
from mmspec.targets import CausalTarget

ANSWER_S = 30.0
"""Seconds of speech after which an utterance is cut where `max_new_tokens` does not say; then `finish` is "length"."""
SHARED_IDS = dict.fromkeys(("repetition_penalty", "ras_window"), "whose codebooks share their ids")
"""What models that write the codes of several codebooks refuse, see `BaseTarget`."""


class Speaking(CausalTarget):
    """Base of the families that speak with a Llama. They add how a prompt is written, where the codes lie among the
    ids, and how codes become sound."""

    modality = "speech"
    makes = "sound"
    answers = {"sampled": 1.0, "max_new_tokens": 256}  # noqa: RUF012  greedy speech repeats itself
    unsaid: tuple[int, ...] = ()
    """Ids that the model reads and never emits."""
    first_code: int
    """The id of code 0 of the first codebook; the ids of the others follow in a row."""
    code_count: int
    """How many codes the first codebook has."""

    @property
    def budget(self) -> int:
        """Tokens of ANSWER_S seconds."""
        return MAX_NEW_TOKENS if self.processor is None else int(ANSWER_S * self.processor.frames_per_second)

    @property
    def codes_alone(self) -> bool:
        """Whether codes are all that comes of an answer, since no codec came with the model."""
        return self.processor is None

    @property
    def speaker(self) -> LlamaForCausalLM:
        """The Llama that writes the codes."""
        raise NotImplementedError

    def written(self, text: str) -> str:
        """The text as the model reads it. Raises InputError for what cannot be pronounced."""
        return spoken(text)

    def code_ids(self) -> list[int]:
        """The ids of all codes of the first codebook."""
        return list(range(self.first_code, self.first_code + self.code_count))

    def codes(self, ids: list[int]) -> list[int]:
        """The codes of the first codebook among emitted ids."""
        return [i - self.first_code for i in ids if 0 <= i - self.first_code < self.code_count]

    def complete(self, prompt: list[int], voice: Tensor, first: list[int], known: Tensor | None = None) -> Tensor:
        """[K, F] all codebooks, from the first one, unless overridden the only one.

        Args: known: [K, G] frames that are settled already and stay.
        """
        return torch.tensor([first])

    def sounding(self, inputs: dict[str, Any], row: int) -> Chunks | None:
        """See `BaseTarget.sounding`."""
        if self.codes_alone or any(name not in inputs for name in self.extra_inputs):
            return None
        return Chunks(self.codes, partial(self.complete, *_asked(inputs, row)), self.processor.audio)

    def product_of(self, inputs: dict[str, Any], row: int, ids: list[int]) -> dict[str, Any]:
        """The sound of a row, if there is a codec to make it; None if it emitted no code."""
        if self.codes_alone or any(name not in inputs for name in self.extra_inputs):
            return {}
        first = self.codes(ids)
        return {"audio": self.processor.audio(self.complete(*_asked(inputs, row), first)) if first else None}


def _asked(inputs: dict[str, Any], row: int) -> tuple[list[int], Any]:
    """The prompt of a row without its padding, and the codes of its voice, if there is one."""
    prompt, mask = inputs["input_ids"][row], inputs.get("attention_mask")
    real = prompt if mask is None else prompt[mask[row].bool()]
    return real.tolist(), inputs["voice_codes"][row] if "voice_codes" in inputs else None
