"""Audio Flamingo 3 (arXiv 2507.08128) and GLM-ASR as targets: Whisper's encoder trained on, a Qwen2 or Llama decoder.

Their processors cut recordings into windows of 30 seconds, whose features stand side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.speech.hearing import HearingTarget
from mmspec.templates import control_as_text


class AudioFlamingo3(HearingTarget):
    """An Audio Flamingo 3 checkpoint. Recordings: `input_features` [windows, mels, frames], and `input_features_mask`
    [windows, frames]. Asked "transcribe", or anything."""

    hf = ("AudioFlamingo3ForConditionalGeneration", "AudioFlamingo3Processor")
    model_type = "audioflamingo3"

    def longest(self, processor: Any) -> float:
        """The processor cuts off what does not fit into whole windows."""
        window = processor.feature_extractor.chunk_length
        return min(super().longest(processor), float(processor.max_audio_len // window * window))

    def asked(self, processor: Any, text: str, language: str | None, samples: np.ndarray) -> dict[str, Any]:
        """See `HearingTarget`; the processor knows where the recording stands, and how to ask for what is said."""
        with control_as_text([text], processor.tokenizer) as told:
            prompt = text if language is None else None
            made: dict[str, Any] = processor.apply_transcription_request([samples], prompt=prompt, **told)
        return made


class GlmAsr(AudioFlamingo3):
    """A GLM-ASR checkpoint, with the same inputs and prompts."""

    hf = ("GlmAsrForConditionalGeneration", "GlmAsrProcessor")
    model_type = "glmasr"
