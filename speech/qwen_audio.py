"""Qwen2-Audio (arXiv 2407.10759) and Qwen3-ASR (2601.21337) as targets: an encoder, a projector, a Qwen decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_bidirectional_mask

from mmspec.speech.hearing import HearingTarget


class Qwen2Audio(HearingTarget):
    """A Qwen2-Audio checkpoint. Recordings: `input_features` [recordings, mels, frames], and `feature_attention_mask`
    [recordings, frames]."""

    hf = ("Qwen2AudioForConditionalGeneration", "Qwen2AudioProcessor")
    model_type = "qwen2_audio"
    extra_inputs = ("input_features", "feature_attention_mask")
    chats = True

    def longest(self, processor: Any) -> float:
        """The processor cuts off what is longer than its window."""
        return float(processor.feature_extractor.chunk_length)

    def requested(self, text: str) -> None:
        """See `HearingTarget`; a request is asked in words, too."""
        super().requested(text)

    def features(self, given: dict[str, Any]) -> Tensor:
        """[slots, H]. The stock class has no function for them: a convolution halves frames, pairs are averaged."""
        tower, project = self.model.model.audio_tower, self.model.model.multi_modal_projector
        frames = given["input_features"]
        halves = (given["feature_attention_mask"].sum(-1) - 1) // 2 + 1  # [recordings] states of each
        states = torch.arange((frames.shape[-1] - 2) // 2 + 1, device=halves.device)
        mask = create_bidirectional_mask(
            config=tower.config,
            inputs_embeds=frames.new_zeros(len(halves), len(states), 1),
            attention_mask=(states < halves[:, None]).long(),
        )
        found: Tensor = project(tower(frames, attention_mask=mask).last_hidden_state)
        slots = (halves - 2) // 2 + 1
        return found[torch.arange(found.shape[1], device=slots.device) < slots[:, None]]


class Qwen3Asr(HearingTarget):
    """A Qwen3-ASR checkpoint. Recordings: `input_features` [recordings, mels, frames], and `input_features_mask`
    [recordings, frames].

    Asked "transcribe en", or "transcribe" where the language is not known: then the text that comes begins with it, as
    in "language English<asr_text>".
    """

    hf = ("Qwen3ASRForConditionalGeneration", "Qwen3ASRProcessor")
    model_type = "qwen3_asr"
    takes_words = False
    takes_language = True
