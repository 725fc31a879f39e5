"""A speech model behind a demo: the same sentence said code by code and with drafts, and when sound began.

What a page shows of it is made here, without gradio: both sounds.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, cast

from mmspec.contract import bound
from mmspec.demos.knobs import Knob, check_rule
from mmspec.demos.race import Race
from mmspec.demos.studio import Studio, check
from mmspec.demos.trace import Trace, follow
from mmspec.demos.waves import peaks_of
from mmspec.registry import resolve

if TYPE_CHECKING:
    from mmspec.api import Pipeline

LOOSE: dict[str, Knob] = {
    "tolerance": Knob("draws", 1, 8),
    "top-k": Knob("k", 0, 10),
    "max-ratio": Knob("rho", math.inf, 0.3),
    "beta": Knob("beta", 0.0, 1.0),
    "pcg": Knob("size", 0.0, 0.01),
}
RULES = ("exact", "ratio", *LOOSE, "unverified")
EXAMPLES = 6
LONGEST_TEXT = 200
"""Characters that are said at most."""


@dataclass(frozen=True)
class Line:
    """What a visitor wants said. voice: a name; "" is the model's first. looseness: of a relaxed rule, 0 (the law is
    kept) to 1. Raises: InputError for what is beyond the limits."""

    text: str
    drafter: str
    rule: str = "exact"
    voice: str = ""
    temperature: float = 1.0
    seed: int = 0
    shape: str = "auto"
    looseness: float = 0.3

    def __post_init__(self) -> None:
        check("sentence", self.text, LONGEST_TEXT, self.temperature, self.seed, self.shape)
        check_rule(self.rule, self.looseness, RULES)


@dataclass(frozen=True)
class Sound:
    """What was said. wav: a file. seconds: how long it is. first: seconds until the first chunk could be played.
    work: seconds that it took. peaks: see `waves`. words: pairs of a word of the sentence and the word that a listener
    heard in its place, "" where there is none; None if nobody listened."""

    wav: bytes
    seconds: float
    first: float | None
    work: float = 0.0
    peaks: tuple[float, ...] = ()
    words: tuple[tuple[str, str], ...] | None = None


@dataclass
class SpokenRace(Race):
    """Both utterances of a sentence."""

    slow_sound: Sound | None = None
    fast_sound: Sound | None = None


class Booth(Studio):
    """A speech model with its drafters, one request at a time. See `Studio`."""

    modality = "speech"
    knobs = LOOSE

    @cached_property
    def voices(self) -> list[str]:
        """The voices that the model knows by name."""
        return list(getattr(self.plain.processor, "voices", {}))

    @cached_property
    def sentences(self) -> list[str]:
        """Examples: held-out sentences of the synthetic world."""
        return cast("Any", resolve("judges", "listener", "speech")).texts(EXAMPLES)

    @cached_property
    def judge(self) -> Any:
        """Who listens, if a listener lies beside the model."""
        return cast("Any", resolve("judges", "listener", "speech")).find(self.plain.folder)

    def say(self, line: Line) -> Iterator[SpokenRace]:
        """Say it one code at a time, then with drafts; yields the growing race, the last time finished."""
        self.plain.target.check_codec()
        slow, fast = self.plain, self.drafting(line.drafter, line.shape, line.rule, line.looseness)
        race = SpokenRace(Trace("none"), Trace(line.drafter))
        race.invariant = bound(fast.rule, line.temperature == 0)
        recorder: Any = fast.drafter
        told: Any = {"temperature": line.temperature, "seed": line.seed, "voice": line.voice or None}
        stream = slow.stream(prompt=line.text, **told)
        for _ in follow(stream, race.slow, None, None, str):
            yield race
        race.slow_sound = self.heard(line, stream, race.slow.seconds)
        stream = fast.stream(prompt=line.text, **told)
        for _ in follow(stream, race.fast, None, recorder.rounds, str):
            yield race
        race.fast_sound = self.heard(line, stream, race.fast.seconds)
        race.finished = True
        yield race

    def heard(self, line: Line, stream: Any, work: float) -> Sound | None:
        """The sound of a stream that has ended; None if it said nothing. work: seconds that it took."""
        audio = stream.finish().audio
        if audio is None:
            return None
        words = None if self.judge is None else tuple(self.judge.words(line.text, audio))
        first, peaks = stream.first_audio_seconds, peaks_of(audio.samples)
        return Sound(audio.wav(), audio.seconds, first, work, peaks, words)

    def _warm(self, pipe: Pipeline) -> Pipeline:
        """A few codes, so that the first visitor's sentence is not slower than the others'."""
        pipe(prompt=self.sentences[0], max_new_tokens=max(8, pipe.target.least))
        return pipe


def player(sound: Sound | None, label: str) -> str:
    """A sound as an HTML element, with its length, the work in it, and what was heard. label: for screen readers."""
    if sound is None:
        return "<p>No sound yet.</p>"
    data = b64encode(sound.wav).decode()
    begun = "" if sound.first is None else f", first sound after {sound.first:.2f} s"
    return (
        f'<audio controls aria-label="{escape(label)}" style="width:100%" src="data:audio/wav;base64,{data}"></audio>'
        f"<p>{sound.seconds:.2f} s of speech, {sound.work / sound.seconds:.2f} s of work for each{begun}</p>"
        f"{transcript(sound)}"
    )


def transcript(sound: Sound) -> str:
    """What the listener heard, as HTML: wrong words are marked, missing ones struck out."""
    if sound.words is None:
        return ""
    spans = [
        escape(heard) if said == heard else f"<mark>{escape(heard)}</mark>" if heard else f"<del>{escape(said)}</del>"
        for said, heard in sound.words
    ]
    wrong = sum(said != heard for said, heard in sound.words)
    return f'<p class="mm-heard">Heard: {" ".join(spans)} ({wrong} wrong or missing)</p>'
