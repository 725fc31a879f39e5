"""Audio Flamingo 3 (arXiv 2507.08128) and GLM-ASR as targets: Whisper's encoder trained on, a Qwen2 or Llama decoder.

Their processors cut recordings into windows of 30 seconds, whose features stand side by side.
"""

from __future__ import annotations

from typing import Any

from mmspec.speech.hearing import HearingTarget


class AudioFlamingo3(HearingTarget):
    """An Audio Flamingo 3 checkpoint. Recordings: `input_features` [windows, mels, frames], and `input_features_mask`
    [windows, frames]. Asked "transcribe", or anything; in a chat its processor takes one recording."""

    hf = ("AudioFlamingo3ForConditionalGeneration", "AudioFlamingo3Processor")
    model_type = "audioflamingo3"
    chats = True

    def longest(self, processor: Any) -> float:
        """The processor cuts off what does not fit into whole windows."""
        window = processor.feature_extractor.chunk_length
        return min(super().longest(processor), float(processor.max_audio_len // window * window))


class GlmAsr(AudioFlamingo3):
    """A GLM-ASR checkpoint, with the same inputs and prompts: a recogniser, which takes no chats."""

    hf = ("GlmAsrForConditionalGeneration", "GlmAsrProcessor")
    model_type = "glmasr"
    chats = False
