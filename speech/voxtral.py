"""Voxtral as target (arXiv 2507.13264): Whisper's encoder, four of whose states make a slot, and a Llama decoder.

The prompt is put together here as mistral-common does it, which a processor needs for that and need not have: its ids
for words are the same with both tokenizers.
"""

from __future__ import annotations

import re
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.errors import InputError, shorten
from mmspec.speech.hearing import HearingTarget

TURNS = {"system": ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), "user": ("[INST]", "[/INST]"), "assistant": ("", "</s>")}
"""What opens and closes the turns of a chat."""
BETWEEN = "\n\n"
"""What stands between two texts of a turn."""


class Voxtral(HearingTarget):
    """A Voxtral checkpoint. Recordings: `input_features` [windows of 30 s, mels, frames], the last one filled up.

    Asked "transcribe en", or "transcribe" where the language is not known, or anything. A chat has no system prompt
    where something is heard.
    """

    hf = ("VoxtralForConditionalGeneration", "VoxtralProcessor")
    model_type = "voxtral"
    extra_inputs = ("input_features",)
    takes_language = True
    chats = True

    def transcribing(self, processor: Any, samples: np.ndarray, language: str) -> dict[str, Any]:
        """See `HearingTarget`."""
        if language and not re.fullmatch("[a-z]{2}", language):
            text = shorten(f"transcribe {language}")
            raise InputError(f"{text} is no prompt for Voxtral: two letters tell it a language, as in 'en'")
        made = self.talking(processor, [{"role": "user", "content": [{"type": "audio", "audio": samples}]}])
        told = words(processor.tokenizer, f"lang:{language}") if language else []
        told += [processor.tokenizer.convert_tokens_to_ids("[TRANSCRIBE]")]
        return made | {"input_ids": torch.cat([made["input_ids"], torch.tensor([told])], 1)}

    def talking(self, processor: Any, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """See `HearingTarget`. What looks like a control token in a text stays text."""
        _check_turns(messages)
        tokenizer = processor.tokenizer
        mark = tokenizer.convert_tokens_to_ids
        ids, sounds = [mark("<s>")], []
        for turn in messages:
            opening, closing = TURNS[turn["role"]]
            ids += [mark(opening)] if opening else []
            for kind, parts in groupby(turn["content"], itemgetter("type")):
                if kind == "text":
                    text = BETWEEN.join(part["text"] for part in parts)
                    ids += words(tokenizer, text if opening else text.rstrip(" "))
                    continue
                for part in parts:
                    sounds.append(self.windows(processor.feature_extractor, part["audio"]))
                    ids += [mark("[BEGIN_AUDIO]"), *self.slots_of(sounds[-1])]
            ids += [mark(closing)]
        return {"input_ids": torch.tensor([ids]), **({"input_features": torch.cat(sounds)} if sounds else {})}

    def windows(self, listening: Any, samples: np.ndarray) -> Tensor:
        """[windows, mels, frames] of a recording."""
        heard = listening(
            samples,
            sampling_rate=listening.sampling_rate,
            padding=True,
            truncation=False,
            pad_to_multiple_of=listening.n_samples,
            return_tensors="pt",
        )["input_features"]
        return torch.cat(heard.split(listening.nb_max_frames, dim=-1))

    def slots_of(self, windows: Tensor) -> list[int]:
        """The ids of the slots that they fill."""
        config = self.model.config.audio_config
        return [self.slot] * (
            len(windows) * config.max_source_positions * config.hidden_size // config.intermediate_size
        )


def _check_turns(messages: list[dict[str, Any]]) -> None:
    """Raise InputError for a chat that mistral-common would refuse, or put together otherwise."""
    roles = [turn["role"] for turn in messages]
    turns = roles[1:] if roles[0] == "system" else roles
    if turns != [("user", "assistant")[place % 2] for place in range(len(turns))]:
        raise InputError(
            "the turns of a chat with Voxtral are the user's and the assistant's by turns, perhaps behind a system "
            f"prompt, not those of {', '.join(roles)}"
        )
    played = {turn["role"] for turn in messages for part in turn["content"] if part["type"] == "audio"}
    if played - {"user"} or (played and turns != roles):
        raise InputError("Voxtral hears what its user plays, and nothing beside a system prompt: leave that out")


def words(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text alone. mistral-common's tokenizer never makes control tokens of it; others are told so."""
    plain = {"split_special_tokens": True} if getattr(tokenizer, "is_fast", False) else {}
    found: list[int] = tokenizer(text, add_special_tokens=False, **plain)["input_ids"]
    return found
