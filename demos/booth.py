"""A speech model behind a demo: the same sentence said code by code and with drafts, and when sound began.

What a page shows of it is made here, without gradio: both sounds.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mmspec.demos.knobs import Knob
from mmspec.demos.race import Race
from mmspec.demos.studio import Studio, Wish
from mmspec.demos.trace import Trace, follow
from mmspec.demos.waves import peaks_of
from mmspec.registry import resolve

if TYPE_CHECKING:
    from mmspec.api import Pipeline
    from mmspec.demos.recorder import Recorded
    from mmspec.results import Stream

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
class Line(Wish):
    """What a visitor wants said. voice: a name; "" is the model's first. See `Wish`."""

    voice: str = ""
    noun = "sentence"
    longest = LONGEST_TEXT
    rules = RULES

    def options(self) -> dict[str, Any]:
        """See `Wish`."""
        return {**super().options(), "voice": self.voice or None}


@dataclass(frozen=True)
class Sound:
    """What was said. wav: a file. seconds: how long it is. first: seconds until the first chunk could be played.
    work: seconds that it took, the codec's included. peaks: see `waves`. words: pairs of a word of the sentence and the
    word that a listener heard in its place, "" where there is none; None if nobody listened."""

    wav: bytes
    seconds: float
    first: float | None
    work: float = 0.0
    peaks: tuple[float, ...] = ()
    words: tuple[tuple[str, str], ...] | None = None


@dataclass
class SpokenRace(Race):
    """Both utterances of a sentence."""

    text: str = ""
    slow_sound: Sound | None = None
    fast_sound: Sound | None = None


class Booth(Studio):
    """A speech model with its drafters, one request at a time. See `Studio`."""

    title = "Speaking"
    modality = "speech"
    shows = ("ids", "columns")
    knobs = LOOSE
    wish = Line

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

    def samples(self, folder: Path) -> list[dict[str, Any]]:
        """See `Studio`."""
        return [{"prompt": sentence} for sentence in self.sentences]

    def begun(self, wish: Wish, fast: Pipeline) -> SpokenRace:
        """See `Studio`."""
        return SpokenRace(Trace("none"), Trace(wish.drafter), text=wish.prompt)

    def followed(self, race: Any, trace: Trace, stream: Stream, recorded: Sequence[Recorded] | None) -> Iterator[Any]:
        """See `Studio`."""
        yield from follow(stream, trace, None, recorded, str)
        sound = self.heard(race.text, stream)
        if trace is race.slow:
            race.slow_sound = sound
        else:
            race.fast_sound = sound

    def heard(self, text: str, stream: Stream) -> Sound | None:
        """The sound of a stream that has ended; None if it said nothing."""
        audio = stream.finish().audio
        if audio is None:
            return None
        words = None if self.judge is None else tuple(self.judge.words(text, audio))
        first, work, peaks = stream.first_audio_seconds, stream.worked_seconds, peaks_of(audio.samples)
        return Sound(audio.wav(), audio.seconds, first, work, peaks, words)

    def warm_prompt(self, pipe: Pipeline) -> str:
        """See `Studio`."""
        return self.sentences[0]


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
