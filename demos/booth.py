"""A speech model behind a demo: the same sentence said code by code and with drafts, and when sound began.

What a page shows of it is made here, without gradio: both sounds, and a cell per code as `mmspec.demos.easel` draws it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from mmspec.control import read_shape
from mmspec.demos.race import Race
from mmspec.demos.recorder import Recorder
from mmspec.demos.studio import Studio, usable
from mmspec.demos.trace import Trace, follow
from mmspec.errors import InputError, unknown_name
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
        if not self.text.strip():
            raise InputError("the sentence is empty: write one, or click on an example")
        if len(self.text) > LONGEST_TEXT:
            raise InputError(f"the sentence has {len(self.text)} characters: at most {LONGEST_TEXT} are taken")
        if not 0 <= self.temperature <= 2:
            raise InputError(f"temperature {self.temperature:g} is not valid: 0 (greedy) to 2 is taken")
        if self.rule not in RULES:
            raise unknown_name("rule", self.rule, RULES)
        if not 0 <= self.seed < 2**31:
            raise InputError(f"the seed {self.seed} is not valid: 0 to {2**31 - 1} is taken")


@dataclass(frozen=True)
class Sound:
    """What was said. wav: a file. seconds: how long it is. first: seconds until the first chunk could be played."""

    wav: bytes
    seconds: float
    first: float | None


@dataclass
class SpokenRace(Race):
    """Both utterances of a sentence."""

    slow_sound: Sound | None = None
    fast_sound: Sound | None = None


class Booth(Studio):
    """A speech model with its drafters, one request at a time. See `Studio`."""

    @cached_property
    def drafters(self) -> list[str]:
        """The drafters to choose from."""
        return self._drafters if self._drafters is not None else usable(self.model, "speech")

    @cached_property
    def voices(self) -> list[str]:
        """The voices that the model knows by name."""
        return list(getattr(self.plain.processor, "voices", {}))

    @cached_property
    def sentences(self) -> list[str]:
        """Examples: held-out sentences of the synthetic world."""
        return cast("Any", resolve("judges", "listener", "speech")).texts(EXAMPLES)

    def speaking(self, line: Line) -> Pipeline:
        """The pipeline that a line asks for, whose drafts are recorded."""
        if line.drafter not in self.drafters:
            raise unknown_name("drafter", line.drafter, self.drafters)
        recorder = Recorder(self.plain.with_drafter(line.drafter, acceptance="exact").drafter)
        return self.plain.with_drafter(recorder, read_shape(line.shape), line.rule)

    def say(self, line: Line) -> Iterator[SpokenRace]:
        """Say it one code at a time, then with drafts; yields the growing race, the last time finished."""
        slow, fast = self.plain, self.speaking(line)
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
    return None if audio is None else Sound(audio.wav(), audio.seconds, stream.first_audio_seconds)


def player(sound: Sound | None) -> str:
    """A sound as an HTML element, with its length and when it could begin."""
    if sound is None:
        return "<p>No sound yet.</p>"
    data = b64encode(sound.wav).decode()
    begun = "" if sound.first is None else f", first sound after {sound.first:.2f} s"
    return (
        f'<audio controls style="width:100%" src="data:audio/wav;base64,{data}"></audio>'
        f"<p>{sound.seconds:.2f} s of speech{begun}</p>"
    )
