"""Recordings that a model is to hear: one for each prompt, as samples at the model's rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import InputError
from mmspec.speech.audio import read_audio, resampled


def recordings(voice: Any, count: int, rate: int, longest: float) -> list[np.ndarray]:
    """The samples [N] float32 of each of `count` recordings.

    Args: voice: what `read_audio` reads, the same for all prompts, or a list with one for each. rate: samples per
        second. longest: seconds.
    Raises: InputError: there is none, or another number of them, or one that cannot be read or is too long.
    """
    told = list(voice) if isinstance(voice, list | tuple) else [voice] * count
    if voice is None or len(told) != count:
        raise InputError("speech is missing: pass voice=, a WAV file for each prompt")
    return [_samples(one, rate, longest) for one in told]


def _samples(source: Any, rate: int, longest: float) -> np.ndarray:
    audio = read_audio(source)
    if audio.seconds > longest:
        raise InputError(f"the speech lasts {audio.seconds:.0f} s; {longest:.0f} s are heard at most: cut it")
    samples: np.ndarray = resampled(audio, rate).numpy()
    return samples
