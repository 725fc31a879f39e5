"""What stands beside a speaking model: its tokenizer, its codec and the voices that it knows. A folder holds

tokenizer.json ...   codec/   voices/<name>.wav
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerFast

from mmspec.checkpoints import read_model
from mmspec.errors import CheckpointError, InputError, shorten, unknown_name
from mmspec.speech.audio import Audio, read_audio, resampled
from mmspec.speech.codec import MelCodec, MelCodecConfig

VOICE_S = 1.0
"""Seconds of a voice that the model hears."""
SHORTEST_S, LONGEST_S = 0.9, 30.0
QUIET = 1e-3
"""Root mean square below which a voice is silence."""


class SpeechProcessor:
    """A tokenizer, a codec, and voices by name.

    voices: name -> `Audio`. The first one speaks where none is asked for.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, codec: MelCodec, voices: dict[str, Audio]) -> None:
        self.tokenizer, self.codec, self.voices = tokenizer, codec.eval(), dict(sorted(voices.items()))
        self._heard: dict[str, Tensor] = {}

    @property
    def frames_per_second(self) -> float:
        """Frames of codes per second."""
        return self.codec.frames_per_second

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], **_: Any) -> SpeechProcessor:
        """Read a folder. Raises CheckpointError for a missing or damaged codec."""
        place = Path(folder)
        if not (place / "codec" / "config.json").exists():
            raise CheckpointError(f"{place} holds no codec: a folder codec/ is needed")
        MelCodecConfig.from_pretrained(place / "codec")
        codec = read_model(MelCodec, place / "codec", torch.float32)
        voices = {path.stem: read_audio(path) for path in sorted(place.glob("voices/*.wav"))}
        return cls(PreTrainedTokenizerFast.from_pretrained(place), codec, voices)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder that `from_pretrained` reads."""
        place = Path(folder)
        (place / "voices").mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(place)
        self.codec.save_pretrained(place / "codec")
        for name, audio in self.voices.items():
            audio.save(place / "voices" / f"{name}.wav")

    def voice(self, source: Any = None) -> Tensor:
        """Codes [K, P] of one second of a voice: a known name, a WAV file, its bytes or an `Audio`; None is the first.

        Raises: InputError: too short, too long or silent. UnknownNameError: neither a name nor a file.
        """
        if source is None:
            if not self.voices:
                raise InputError("this checkpoint comes without voices: pass voice= (a WAV file of a second or more)")
            source = next(iter(self.voices))
        if isinstance(source, str) and source in self.voices:
            if source not in self._heard:
                self._heard[source] = self._hear(self.voices[source], f"the voice {source!r}")
            return self._heard[source]
        if isinstance(source, str) and not os.path.isfile(source):
            raise unknown_name("voice", source, self.voices, "the path of a WAV file will also do")
        return self._hear(read_audio(source), "the voice")

    def _hear(self, audio: Audio, name: str) -> Tensor:
        if audio.seconds < SHORTEST_S:
            raise InputError(f"{name} lasts {audio.seconds:.2f} s: a second of speech is needed")
        if audio.seconds > LONGEST_S:
            raise InputError(f"{name} lasts {audio.seconds:.0f} s: give a second, {LONGEST_S:.0f} s at most")
        wanted = int(VOICE_S * self.codec.config.rate)
        samples = loudest(resampled(audio, self.codec.config.rate), wanted)
        samples = pad(samples, (0, wanted - len(samples)))  # every voice has as many frames
        if samples.square().mean().sqrt() < QUIET:
            raise InputError(f"{name} is silent: give a second of somebody speaking")
        codes = self.codec.encode(samples[None].to(self.codec.device))[0]
        return codes[:, : max(1, int(VOICE_S * self.codec.frames_per_second))]

    def audio(self, codes: Tensor) -> Audio:
        """Sound from codes [K, F]."""
        samples = self.codec.decode(codes[None].to(self.codec.device))[0]
        return Audio(samples.float().cpu().numpy(), self.codec.config.rate)

    def check(self, codebooks: int, size: int) -> None:
        """Raise CheckpointError unless the codec has this many codebooks of this size."""
        config = self.codec.config
        if (config.codebooks, config.codebook_size) != (codebooks, size):
            raise CheckpointError(
                f"the codec has {config.codebooks} codebooks of {config.codebook_size} codes, the model speaks "
                f"{codebooks} of {shorten(size)}"
            )


def loudest(samples: Tensor, count: int) -> Tensor:
    """The stretch of `count` samples with the most energy, on a grid of tenths of it; all if there are fewer."""
    if len(samples) <= count:
        return samples
    step = max(1, count // 10)
    starts = range(0, len(samples) - count + 1, step)
    energy = [float(samples[start : start + count].square().sum()) for start in starts]
    start = starts[energy.index(max(energy))]
    return samples[start : start + count]
