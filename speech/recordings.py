"""Recordings that a model is to hear, beside prompts or in chats, as samples at the model's rate."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from mmspec.errors import InputError, shorten
from mmspec.prompts import Chat
from mmspec.speech.audio import read_audio, resampled

URL = re.compile(r"(?i:[a-z][a-z0-9+.-]+://|data:)")


def recordings(voice: Any, count: int, rate: int, longest: float) -> list[np.ndarray]:
    """The samples of each of `count` recordings. See `voices` and `samples_of`."""
    return [samples_of(one, rate, longest) for one in voices(voice, count)]


def voices(voice: Any, count: int) -> list[Any]:
    """What comes with each of `count` prompts, of one thing for all of them or of a list with one for each."""
    return list(voice) if isinstance(voice, list | tuple) else [voice] * count


def samples_of(source: Any, rate: int, longest: float) -> np.ndarray:
    """The samples [N] float32 of a recording.

    Args: source: what `read_audio` reads. rate: samples per second. longest: seconds.
    Raises: InputError: there is none, or one that cannot be read or is too long.
    """
    if source is None:
        raise InputError("speech is missing: pass voice=, a WAV file for each prompt")
    if isinstance(source, str) and URL.match(source) and not os.path.isfile(source):
        raise InputError(f"recording {shorten(source)}: URLs are not fetched; download the file and pass its path")
    audio = read_audio(source)
    if audio.seconds > longest:
        raise InputError(f"the speech lasts {audio.seconds:.0f} s; {longest:.0f} s are heard at most: cut it")
    samples: np.ndarray = resampled(audio, rate).numpy()
    return samples


def about(chat: Chat, voice: Any) -> Chat:
    """A chat about a recording that came beside it, which stands before the first words of its user.

    Raises: InputError: the chat has recordings of its own.
    """
    if chat.held("audio"):
        raise InputError("a chat holds its recordings in its messages: leave voice out")
    place = next(place for place, turn in enumerate(chat.messages) if turn["role"] == "user")
    turn = {"role": "user", "content": [{"type": "audio", "audio": voice}, *chat.messages[place]["content"]]}
    return Chat([*chat.messages[:place], turn, *chat.messages[place + 1 :]])


def sampled(chat: Chat, rate: int, longest: float) -> list[dict[str, Any]]:
    """The messages of a chat, with the samples of its recordings. See `samples_of`."""

    def part(told: dict[str, Any]) -> dict[str, Any]:
        return {**told, "audio": samples_of(told["audio"], rate, longest)} if told["type"] == "audio" else told

    return [{**turn, "content": [part(told) for told in turn["content"]]} for turn in chat.messages]
