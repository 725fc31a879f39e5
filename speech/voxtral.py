"""Voxtral as target (arXiv 2507.13264): Whisper's encoder, four of whose states make a slot, and a Llama decoder.

The prompt is put together here as mistral-common does it, which a processor needs for that and need not have: its ids
for words are the same with both tokenizers.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from mmspec.errors import InputError, shorten
from mmspec.speech.hearing import HearingTarget


class Voxtral(HearingTarget):
    """A Voxtral checkpoint. Recordings: `input_features` [windows of 30 s, mels, frames], the last one filled up.

    Asked "transcribe en", or "transcribe" where the language is not known, or anything.
    """

    hf = ("VoxtralForConditionalGeneration", "VoxtralProcessor")
    model_type = "voxtral"
    extra_inputs = ("input_features",)
    takes_language = True

    def asked(self, processor: Any, text: str, language: str | None, samples: np.ndarray) -> dict[str, Any]:
        """See `HearingTarget`. What looks like a control token in a text stays text."""
        if language and not re.fullmatch("[a-z]{2}", language):
            raise InputError(f"{shorten(text)} is no prompt for Voxtral: two letters tell it a language, as in 'en'")
        listening, tokenizer, config = processor.feature_extractor, processor.tokenizer, self.model.config.audio_config
        heard = listening(
            samples,
            sampling_rate=listening.sampling_rate,
            padding=True,
            truncation=False,
            pad_to_multiple_of=listening.n_samples,
            return_tensors="pt",
        )["input_features"]
        windows = torch.cat(heard.split(listening.nb_max_frames, dim=-1))
        slots = len(windows) * config.max_source_positions * config.hidden_size // config.intermediate_size
        mark = tokenizer.convert_tokens_to_ids
        ids = mark(["<s>", "[INST]", "[BEGIN_AUDIO]"]) + [self.slot] * slots
        if language is None:
            ids += words(tokenizer, text) + mark(["[/INST]"])
        else:
            told = words(tokenizer, f"lang:{language}") if language else []
            ids += mark(["[/INST]"]) + told + mark(["[TRANSCRIBE]"])
        return {"input_ids": torch.tensor([ids]), "input_features": windows}


def words(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text alone. mistral-common's tokenizer never makes control tokens of it; others are told so."""
    plain = {"split_special_tokens": True} if getattr(tokenizer, "is_fast", False) else {}
    found: list[int] = tokenizer(text, add_special_tokens=False, **plain)["input_ids"]
    return found
