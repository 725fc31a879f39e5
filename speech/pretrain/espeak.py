"""espeak-ng as the speaker that the model learns from: several voices, rates and pitches. Needed for training only."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass
from itertools import count

import numpy as np

from mmspec.errors import InputError, MissingExtraError
from mmspec.speech.audio import Audio, read_audio
from mmspec.speech.pretrain.living import drifting, without_rest

PROGRAM = "espeak-ng"
WORDS_PER_MINUTE, PITCH = 165, 50


@dataclass(frozen=True)
class Speaker:
    """name: of the voice in a checkpoint. variant: of espeak-ng. rate: words per minute. pitch: 0 to 99.
    mood: seed of how each word departs from rate and pitch, and of what drifts within it; None for an even voice."""

    name: str
    variant: str
    rate: int
    pitch: int
    mood: int | None = None


VOICES = {"adam": "en-us+m3", "bella": "en-us+f2", "carl": "en-gb+m7", "dora": "en-gb+f4"}


def usual(name: str) -> Speaker:
    """The voice in its middle manner."""
    return Speaker(name, VOICES[name], WORDS_PER_MINUTE, PITCH)


def anyone(rng: random.Random) -> Speaker:
    """One of the voices, as fast and high as chance will have it: text and voice do not fix what comes next."""
    name = rng.choice(list(VOICES))
    rate, pitch = WORDS_PER_MINUTE + rng.randint(-30, 40), PITCH + rng.randint(-20, 20)
    return Speaker(name, VOICES[name], rate, pitch, rng.randrange(1 << 30))


def require_espeak() -> None:
    """Raises MissingExtraError unless the program is there."""
    if shutil.which(PROGRAM) is None:
        raise MissingExtraError(
            f"{PROGRAM} is not installed, which speaks the training data: apt-get install {PROGRAM}"
        )


def say(text: str, speaker: Speaker) -> Audio:
    """A sentence, spoken. Raises: MissingExtraError: the program is not there. InputError: it fails."""
    require_espeak()
    command = [
        PROGRAM,
        "--stdout",
        "-m",  # reads SSML
        "-v",
        speaker.variant,
        "-s",
        str(speaker.rate),
        "-p",
        str(speaker.pitch),
        "--",
        text if speaker.mood is None else _moody(text, random.Random(speaker.mood)),
    ]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)  # noqa: S603
    if done.returncode or not done.stdout:
        raise InputError(f"{PROGRAM} cannot speak {text!r}: {done.stderr.decode(errors='replace').strip()}")
    said = without_rest(read_audio(_sized(done.stdout)))
    return said if speaker.mood is None else drifting(said, np.random.default_rng(speaker.mood))


def _moody(text: str, rng: random.Random) -> str:
    """The same words in SSML, each faster or slower and higher or lower than the sentence."""
    marks = (f"<prosody rate='{rng.randint(80, 125)}%' pitch='{rng.randint(-15, 15):+d}%'>" for _ in count())
    return " ".join(f"{mark}{word}</prosody>" for mark, word in zip(marks, text.split(), strict=False))


def _sized(wav: bytes) -> bytes:
    """The same file with true sizes in its header: a program that writes to a pipe cannot know them in advance."""
    start = wav.index(b"data") + 8
    return (
        wav[:4] + (len(wav) - 8).to_bytes(4, "little") + wav[8 : start - 4] + (len(wav) - start).to_bytes(4, "little")
        + wav[start:]
    )  # fmt: skip
