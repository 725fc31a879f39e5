"""A speech model behind a demo: the same sentence said code by code and with drafts, and when sound began.

What a page shows of it is made here, without gradio: both sounds.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, cast

from mmspec.demos.race import Race
from mmspec.demos.studio import Studio, check
from mmspec.demos.trace import Trace, follow
from mmspec.demos.waves import peaks_of
from mmspec.errors import unknown_name
from mmspec.registry import resolve

if TYPE_CHECKING:
    from mmspec.api import Pipeline

RULES = ("exact", "ratio", "tolerance", "top-k", "max-ratio", "beta", "pcg", "unverified")
EXAMPLES = 6
LONGEST_TEXT = 200
"""Characters that are said at most."""


@dataclass(frozen=True)
class Line:
    """What a visitor wants said. voice: a name; "" is the model's first. Raises: InputError for what is beyond the
    limits."""

    text: str
    drafter: str
    rule: str = "exact"
    voice: str = ""
    temperature: float = 1.0
    seed: int = 0
    shape: str = "auto"

    def __post_init__(self) -> None:
        check("sentence", self.text, LONGEST_TEXT, self.temperature, self.seed)
        if self.rule not in RULES:
            raise unknown_name("rule", self.rule, RULES)


@dataclass(frozen=True)
class Sound:
    """What was said. wav: a file. seconds: how long it is. first: seconds until the first chunk could be played.
    peaks: see `waves`."""

    wav: bytes
    seconds: float
    first: float | None
    peaks: tuple[float, ...] = ()


@dataclass
class SpokenRace(Race):
    """Both utterances of a sentence."""

    slow_sound: Sound | None = None
    fast_sound: Sound | None = None


class Booth(Studio):
    """A speech model with its drafters, one request at a time. See `Studio`."""

    modality = "speech"

    @cached_property
    def voices(self) -> list[str]:
        """The voices that the model knows by name."""
        return list(getattr(self.plain.processor, "voices", {}))

    @cached_property
    def sentences(self) -> list[str]:
        """Examples: held-out sentences of the synthetic world."""
        return cast("Any", resolve("judges", "listener", "speech")).texts(EXAMPLES)

    def say(self, line: Line) -> Iterator[SpokenRace]:
        """Say it one code at a time, then with drafts; yields the growing race, the last time finished."""
        slow, fast = self.plain, self.drafting(line.drafter, line.shape, line.rule)
        race = SpokenRace(Trace("none"), Trace(line.drafter))
        race.invariant = line.temperature == 0 or fast.rule.invariant
        recorder: Any = fast.drafter
        told: Any = {"temperature": line.temperature, "seed": line.seed, "voice": line.voice or None}
        stream = slow.stream(prompt=line.text, **told)
        for race.slow in follow(stream, "none", None, None, str):
            yield race
        race.slow_sound = heard(stream)
        stream = fast.stream(prompt=line.text, **told)
        for race.fast in follow(stream, line.drafter, None, recorder.rounds, str):
            yield race
        race.fast_sound = heard(stream)
        race.finished = True
        yield race

    def _warm(self, pipe: Pipeline) -> Pipeline:
        """A few codes, so that the first visitor's sentence is not slower than the others'."""
        pipe(prompt=self.sentences[0], max_new_tokens=8)
        return pipe


def heard(stream: Any) -> Sound | None:
    """The sound of a stream that has ended; None if it said nothing."""
    audio = stream.finish().audio
    if audio is None:
        return None
    return Sound(audio.wav(), audio.seconds, stream.first_audio_seconds, peaks_of(audio.samples))


def player(sound: Sound | None, label: str) -> str:
    """A sound as an HTML element, with its length and when it could begin. label: what it is, for screen readers."""
    if sound is None:
        return "<p>No sound yet.</p>"
    data = b64encode(sound.wav).decode()
    begun = "" if sound.first is None else f", first sound after {sound.first:.2f} s"
    return (
        f'<audio controls aria-label="{escape(label)}" style="width:100%" src="data:audio/wav;base64,{data}"></audio>'
        f"<p>{sound.seconds:.2f} s of speech{begun}</p>"
    )
