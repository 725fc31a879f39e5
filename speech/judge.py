"""What benchmarks ask about speech: whether it says the text, whose voice it has, how far it is from other speech.

The words are heard, and voices compared, by a listener (`mmspec.speech.listener`) in the folder `listener` beside the
model or wherever one is told; its own errors come along, since no word error rate means anything without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.errors import InputError, shorten
from mmspec.safe_files import read_lines
from mmspec.speech.audio import Audio, resampled
from mmspec.speech.listener import Listener, energies
from mmspec.speech.text import spoken
from mmspec.speech.texts import sentences
from mmspec.speech.wer import audible, pairs, word_errors

BESIDE = "listener"


class Judge:
    """Marks utterances. Args: listener: see above."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    @classmethod
    def find(cls, model: Path | None, listener: str | os.PathLike[str] | None = None) -> Judge | None:
        """The judge with the listener in a folder, else with the one beside the model; None if there is none.

        Raises: CheckpointError: the folder that was named holds no listener.
        """
        if listener is not None:
            return cls(Listener.load(listener))
        beside = model / BESIDE if model else None
        return cls(Listener.load(beside)) if beside and beside.is_dir() else None

    @property
    def own_errors(self) -> dict[str, float]:
        """How wrong the listener is about speech that is right: WER of recordings, of the codec's resynthesis, ..."""
        return self.listener.figures

    @staticmethod
    def texts(
        count: int, file: str | os.PathLike[str] | None = None, check: Callable[[str], object] = spoken
    ) -> list[str]:
        """Sentences to be said: the first lines of a file, or held-out ones of the synthetic world.

        Args: check: raises InputError for a line that cannot be said, or judged.
        Raises: InputError: the file cannot be read, has too few lines, or one that `check` refuses.
        """
        if file is None:
            return sentences("test", count)
        lines = read_lines(file)
        if len(lines) < count:
            raise InputError(f"{file} holds {len(lines)} sentences, one a line; {count} are asked for")
        for place, line in enumerate(lines[:count], 1):
            try:
                check(line)
            except InputError as error:
                raise InputError(f"{file}, sentence {place}: {error}") from error
        return lines[:count]

    @staticmethod
    def check(text: str) -> None:
        """Raise InputError for a text that no listener writes down."""
        try:
            spoken(text)
        except InputError as error:
            raise InputError(
                f"the listener cannot write down {shorten(text)}: it knows English letters, numbers and simple "
                "punctuation"
            ) from error

    def voice(self, audio: Audio) -> Tensor:
        """What a voice is known by, for `mark`."""
        return self.listener.manner_of(audio)

    def mark(
        self,
        text: str,
        other: str | None,
        audio: Audio | None,
        voice: Tensor | None = None,
        another: Tensor | None = None,
    ) -> dict[str, float]:
        """What can be said of one utterance; of silence (None) nothing was heard.

        Args: text: what it should say. other: what it should not, the control. voice: whose it should be, and
        `another` that it should not be, as `self.voice` tells them.
        Returns: errors of words; other_errors of other_words; own_voice and other_voice, cosines in [-1, 1].
        """
        heard, manner = ("", None) if audio is None else self.listener.take_in(audio)
        marks: dict[str, float] = {}
        marks["errors"], marks["words"] = word_errors(audible(text), heard)
        if other is not None:
            marks["other_errors"], marks["other_words"] = word_errors(audible(other), heard)
        for name, whose in (("own_voice", voice), ("other_voice", another)):
            if manner is not None and whose is not None:
                marks[name] = float(manner @ whose)
        return marks

    def words(self, text: str, audio: Audio) -> list[tuple[str, str]]:
        """The words of a text, each beside the one that is heard in its place (see `wer.pairs`)."""
        return pairs(audible(text).split(), self.listener.hear(audio).split())

    def spectrogram(self, audio: Audio) -> np.ndarray:
        """[mels, T] log-mel energies (natural logarithms), to be looked at."""
        return energies(self.listener.config, resampled(audio, self.listener.config.rate)).numpy()

    def mel_distance(self, one: Audio, other: Audio) -> float:
        """Mean distance of log-mel values (natural logarithms) along the best alignment in time."""
        config = self.listener.config
        mine, theirs = (energies(config, resampled(audio, config.rate)).T for audio in (one, other))
        return path_cost(torch.cdist(mine, theirs, p=1) / config.mels)


def path_cost(costs: Any) -> float:
    """Mean cost per step of the cheapest monotone path through costs [T, U] (dynamic time warping, slope-weighted).

    A diagonal step counts twice, so that a path's weight is T + U whatever its way. The cells of an anti-diagonal
    depend on those of the two before it alone, and are found at once.
    """
    table = np.asarray(costs, dtype=np.float64)
    height, width = table.shape
    before, last = np.full((2, height + 1), np.inf)  # the cheapest ways to the cells of two anti-diagonals, row by row
    before[0] = 0  # where all ways begin: above row 0
    for number in range(height + width - 1):
        rows = np.arange(max(0, number - width + 1), min(height, number + 1))
        cost, here = table[rows, number - rows], np.full(height + 1, np.inf)
        here[rows + 1] = np.minimum(np.minimum(last[rows], last[rows + 1]) + cost, before[rows] + 2 * cost)
        before, last = last, here
    return float(last[height] / (height + width))
