"""Sound as samples, and WAV files read and written with the standard library alone.

Only uncompressed WAV is read: 8, 16, 24 or 32 bit integers (with Python 3.11 under the plain header alone, and ffmpeg
writes the extensible one above 16 bits). Channels are averaged. Of an untrusted file no more is read than may be used,
whatever length it declares: one that was written to a pipe declares a false one.
"""

from __future__ import annotations

import math
import os
import wave
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.errors import InputError, one_line, reason, require, shorten
from mmspec.safe_files import check_sound, whole

LONGEST_S = 600.0
"""Seconds of a file that are read at most; more is refused."""
RATES = (4_000, 192_000)
WIDEST = 4
"""Bytes of a sample."""
LARGEST_FILTER = 2**22
"""Numbers in a resampling filter, which has one phase for each step in which two rates come together again."""


@dataclass
class Audio:
    """Sound. samples: [N] float32 in [-1, 1], one channel. rate: samples per second."""

    samples: np.ndarray
    rate: int

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / self.rate

    def wav(self) -> bytes:
        """The bytes of a 16-bit WAV file."""
        whole = np.round(np.clip(self.samples, -1.0, 1.0) * 32767).astype("<i2")
        file = BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(self.rate)
            out.writeframes(whole.tobytes())
        return file.getvalue()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a 16-bit WAV file: whole, or not at all.

        Raises: InputError: another ending than .wav, or a place that cannot be written.
        """
        goal = check_sound(path)
        try:
            with whole(goal) as draft:
                draft.write_bytes(self.wav())
        except OSError as error:
            raise InputError(f"{goal} cannot be written: {reason(error)}") from error
        return goal


def read_audio(source: Any) -> Audio:
    """Sound from an `Audio`, the path of a WAV file, or the bytes of one.

    Raises: InputError: no such file, not a WAV file, or one that is empty, damaged, too long or not finite.
    """
    if isinstance(source, Audio):
        return _checked(np.asarray(source.samples), source.rate, "the audio")
    if isinstance(source, bytes | bytearray):
        return _read(BytesIO(source), "the audio")
    if isinstance(source, str | os.PathLike):
        if not os.path.isfile(source):
            raise InputError(f"there is no audio file {shorten(str(source))}")
        return _read(os.fspath(source), shorten(str(source)))
    raise InputError(f"audio must be a WAV file's path or bytes, or an Audio, not {type(source).__name__}")


def _read(file: Any, name: str) -> Audio:
    try:
        with wave.open(file, "rb") as sound:
            channels, width, rate, count = sound.getparams()[:4]
            _check_rate(rate, name)
            if width > WIDEST:
                raise InputError(f"{name} has samples of {8 * width} bits; 8, 16, 24 or 32 are read")
            data = sound.readframes(min(count, int(LONGEST_S * rate) + 1))
    except (wave.Error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{name} is not a WAV file that can be read (PCM is needed, as ffmpeg -c:a pcm_s16le writes it): "
            f"{one_line(error)}"
        ) from error
    data = data[: len(data) // (width * channels) * width * channels]  # a cut file ends inside a sample
    return _checked(_decoded(data, width).reshape(-1, channels).mean(1), rate, name)


def _decoded(data: bytes, width: int) -> np.ndarray:
    """[N] float32 in [-1, 1] from little-endian integers of `width` bytes (8 bits are unsigned)."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    parts = np.frombuffer(data, np.uint8).reshape(-1, width)
    words = np.zeros((len(parts), 4), np.uint8)
    words[:, 4 - width :] = parts
    return (words.view("<i4")[:, 0] / 2.0**31).astype(np.float32)


def _check_rate(rate: int, name: str) -> None:
    low, high = RATES
    if not low <= rate <= high:
        raise InputError(f"{name} has {rate} samples per second; {low} to {high} can be used")


def _checked(samples: np.ndarray, rate: Any, name: str) -> Audio:
    if not isinstance(rate, int) or isinstance(rate, bool):
        raise InputError(f"{name} has the rate {shorten(rate)}; a whole number of samples per second is needed")
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise InputError(f"{name} must have one channel of floating-point samples, [N]")
    _check_rate(rate, name)
    if not len(samples):
        raise InputError(f"{name} holds no sound")
    if len(samples) > LONGEST_S * rate:
        raise InputError(f"{name} is too long: at most {LONGEST_S:.0f} s are read")
    if not np.isfinite(samples).all():
        raise InputError(f"{name} holds samples that are not finite")
    return Audio(samples.astype(np.float32), rate)


def resampled(audio: Audio, rate: int) -> Tensor:
    """The samples [N] at another rate.

    Raises: InputError: rates that have so little in common that the filter would not fit into memory.
    """
    samples = torch.from_numpy(audio.samples)
    if audio.rate == rate:
        return samples
    if math.lcm(audio.rate, rate) // math.gcd(audio.rate, rate) > LARGEST_FILTER:
        raise InputError(
            f"{audio.rate} samples per second cannot be brought to {rate}, with which they have too little in common: "
            "save the sound at a usual rate, such as 48000"
        )
    return torchaudio().functional.resample(samples, audio.rate, rate)


def torchaudio() -> Any:
    """The package, imported where it is used. Its `load` and `save` need yet another package and are not used."""
    return require("torchaudio", "speech")
