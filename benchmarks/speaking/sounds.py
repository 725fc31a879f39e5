"""What a speech run said, to be listened to and looked at: WAV files, and log-mel spectrograms side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmspec import Pipeline
from mmspec.benchmarks.plot import require_matplotlib, save_figure
from mmspec.benchmarks.records import plain
from mmspec.benchmarks.speaking.figures import Marked
from mmspec.benchmarks.speaking.marking import Sentence, Sounds

KEPT = 2
"""Sentences of which every method's sound is kept."""


def sounds(pipe: Pipeline, said: Sequence[Sentence], found: Sequence[Marked]) -> list[tuple[str, dict[str, Any]]]:
    """The first sentences with the sound of every method (None if it said nothing)."""
    kept = []
    made = Sounds(pipe)
    for sample, _ in found:
        if sample.question < KEPT and sample.repeat == 0 and sample.temperature == found[0][0].temperature:
            sentence, silent = said[sample.question], dict.fromkeys(sample.runs)
            kept.append((sentence.prompt, silent | made.of(sentence, sample)))
    return kept


def write_sounds(kept: Sequence[tuple[str, dict[str, Any]]], folder: Path) -> list[Path]:
    """A WAV file per sentence and method: `sounds/0-none.wav`."""
    place = folder / "sounds"
    place.mkdir(parents=True, exist_ok=True)
    return [
        audio.save(place / f"{index}-{plain(method)}.wav")
        for index, (_, made) in enumerate(kept)
        for method, audio in made.items()
        if audio is not None
    ]


def draw_sounds(kept: Sequence[tuple[str, dict[str, Any]]], judge: Any, path: Path) -> None:
    """The spectrograms, a row per method and a column per sentence, on one scale of time and energy."""
    pyplot = require_matplotlib()
    methods = list(dict.fromkeys(method for _, made in kept for method in made))
    size = (7 * len(kept), 1.6 * len(methods))
    figure, places = pyplot.subplots(len(methods), len(kept), squeeze=False, figsize=size, layout="constrained")
    longest = max((audio.seconds for _, made in kept for audio in made.values() if audio is not None), default=1.0)
    for column, (text, made) in enumerate(kept):
        places[0][column].set_title(text, fontsize="small")
        for row, method in enumerate(methods):
            panel = places[row][column]
            panel.set(yticks=[], ylabel=method if column == 0 else "")
            panel.yaxis.label.set(rotation=0, ha="right", fontsize="small")
            if made[method] is not None:
                energies, seconds = judge.spectrogram(made[method]), made[method].seconds
                panel.imshow(energies, origin="lower", aspect="auto", extent=(0, seconds, 0, 1), vmin=-11, vmax=4)
            panel.set_xlim(0, longest)
        places[-1][column].set_xlabel("seconds")
    save_figure(figure, path, dpi=110)
