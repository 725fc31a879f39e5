"""What is said in a speech run, its sound, and what a judge hears in it.

Exact methods say the same codes: a sample is often one utterance under many names, which is made and heard once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmspec import Pipeline
from mmspec.benchmarks.figures import OURS
from mmspec.benchmarks.records import Sample

Voice = Callable[[str | None], Any]
"""From the name of a voice to what `Judge.mark` knows it by; None for none."""


@dataclass(frozen=True)
class Sentence:
    """What is said, and by whom: a voice's name, None where the model has none. other, another: the controls, None
    where there is no other sentence, or voice."""

    prompt: str
    voice: str | None
    other: str | None
    another: str | None
    image: ClassVar[None] = None


class Sounds:
    """The sounds of one sentence after another, the same object for the same codes. Args: pipe: makes them."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe = pipe
        self.sentence: Sentence | None = None
        self.made: dict[str, Any] = {}

    def keep(self, sentence: Sentence, tokens: Sequence[Any], audio: Any) -> None:
        """Take over the sound that codes were made into elsewhere."""
        self._turn_to(sentence)
        self.made.setdefault(json.dumps(tokens), audio)

    def of(self, sentence: Sentence, sample: Sample) -> dict[str, Any]:
        """The sound of every method, None where it said nothing. Empty where nothing makes sound of codes."""
        self._turn_to(sentence)
        inputs = self.pipe.prepare(None, sentence.prompt, sentence.voice)
        found = {}
        for name, run in sample.runs.items():
            codes = json.dumps(run.tokens)
            if codes not in self.made:
                product = self.pipe.target.product_of(inputs, 0, run.tokens)
                if "audio" not in product:
                    return {}
                self.made[codes] = product["audio"]
            found[name] = self.made[codes]
        return found

    def _turn_to(self, sentence: Sentence) -> None:
        """Forget the sentence before: all of them would fill the memory."""
        if sentence != self.sentence:
            self.sentence, self.made = sentence, {}


def voice_of(pipe: Pipeline, judge: Any, name: str | None) -> Any:
    """See `Voice`."""
    return None if name is None else judge.voice(pipe.processor.voices[name])


def marks(sounds: Sounds, sentence: Sentence, sample: Sample, judge: Any, voice: Voice) -> dict[str, dict[str, float]]:
    """Of every method: seconds of sound, what the judge says, and how far from the sound of our AR loop it is. Nothing
    where nothing makes sound."""
    said = sounds.of(sentence, sample)
    found: dict[str, dict[str, float]] = {name: {} for name in sample.runs}
    heard: dict[int, dict[str, float]] = {}
    for name, sound in said.items():
        if id(sound) not in heard:
            heard[id(sound)] = told(sentence, sound, said.get(OURS), judge, voice)
        found[name] = dict(heard[id(sound)])
    found.get(OURS, {}).pop("mel_distance", None)  # it is the one that others are away from
    return found


def told(sentence: Sentence, sound: Any, ours: Any, judge: Any, voice: Voice) -> dict[str, float]:
    """What can be said of one sound, None being silence. ours: that of our AR loop."""
    found = {"audio_seconds": sound.seconds if sound else 0.0}
    if judge is None:
        return found
    found |= judge.mark(sentence.prompt, sentence.other, sound, voice(sentence.voice), voice(sentence.another))
    if sound and ours:
        found["mel_distance"] = 0.0 if sound is ours else judge.mel_distance(sound, ours)
    return found
