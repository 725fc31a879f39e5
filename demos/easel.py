"""An image model behind a demo: the same picture drawn code by code and with drafts, and where every code came from.

What a page shows of it is made here, without gradio: the picture as it was known at each moment.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, cast

from PIL import Image

from mmspec.contract import bound
from mmspec.demos.knobs import Knob, check_rule
from mmspec.demos.race import Race
from mmspec.demos.studio import LONGEST_PROMPT, Studio, check
from mmspec.demos.trace import Trace, follow
from mmspec.registry import resolve

if TYPE_CHECKING:
    from mmspec.api import Pipeline
    from mmspec.demos.recorder import Recorded
    from mmspec.results import Piece, Stream

LOOSE: dict[str, Knob] = {
    "lantern": Knob("delta", 0.0, 0.4),
    "lantern++": Knob("bound", 1.0, 5.0),
    "gsd": Knob("size", 1, 50, {"distance": None}),  # codes of a small model lie too far apart for the usual limit
    "cool-sd": Knob("delta", 1.0, 2.0),
}
RULES = ("exact", "ratio", *LOOSE)
EXAMPLES = 6
LOOK = 0.25
"""Seconds between two pictures of a race that are decoded, at first."""
MOST = 32
"""Pictures of a request that are kept: a visitor's last race lies in memory until it is forgotten."""


@dataclass(frozen=True)
class Wish:
    """What a visitor wants drawn. looseness: of a relaxed rule, 0 (the law is kept) to 1.

    Raises: InputError for what is beyond the limits.
    """

    prompt: str
    drafter: str
    rule: str = "exact"
    temperature: float = 1.0
    seed: int = 0
    shape: str = "auto"
    looseness: float = 0.3
    rules: ClassVar[Sequence[str]] = RULES

    def __post_init__(self) -> None:
        check("caption", self.prompt, LONGEST_PROMPT, self.temperature, self.seed, self.shape)
        check_rule(self.rule, self.looseness, self.rules)


@dataclass
class Sketches:
    """Pictures of a request, PNG files, each with the seconds at which it was known. pause: seconds between two.
    looked: when the last look was, by the clock."""

    shots: list[tuple[float, bytes]] = field(default_factory=list)
    pause: float = field(default_factory=lambda: LOOK)
    looked: float = 0.0

    def look(self, seconds: float, piece: Piece) -> None:
        """Keep the picture known at a time, if the last look was a while ago; a decoder that ran each round would be
        most of what a visitor waits for."""
        if time.monotonic() - self.looked >= self.pause:
            self.add(seconds, piece.image)
            self.looked = time.monotonic()

    def add(self, seconds: float, picture: Image.Image) -> None:
        """Keep a picture; where there are many, every other one is dropped, and they come half as often."""
        if len(self.shots) == MOST:
            self.shots, self.pause = self.shots[::2], 2 * self.pause
        file = BytesIO()
        picture.save(file, "PNG")
        self.shots.append((seconds, file.getvalue()))

    @property
    def last(self) -> Image.Image:
        """The whole picture."""
        return Image.open(BytesIO(self.shots[-1][1])).convert("RGB")

    def at(self, moment: float) -> bytes | None:
        """The last picture that was known by a time; None if there was none yet."""
        return next((picture for seconds, picture in reversed(self.shots) if seconds <= moment), None)


@dataclass
class PictureRace(Race):
    """Both drawings of a caption. columns: codes per row of the picture.

    kept: of the things that the caption says, how many hold in the slow picture, in the fast one, and how many there
    are; None if nobody can tell.
    """

    caption: str = ""
    columns: int = 1
    slow_sketches: Sketches = field(default_factory=Sketches)
    fast_sketches: Sketches = field(default_factory=Sketches)
    kept: tuple[int, int, int] | None = None

    @property
    def law(self) -> str:
        """What is said beside S, where the name of a rule does not tell whether it is lossy."""
        return ""


class Easel(Studio):
    """An image model with its drafters, one request at a time. See `Studio`."""

    modality = "image"
    knobs = LOOSE

    @cached_property
    def asked(self) -> list[Any]:
        """Examples, with what they state: held-out captions of the synthetic world."""
        return cast("Any", resolve("judges", "reader", "image")).captions(EXAMPLES)

    @cached_property
    def captions(self) -> list[str]:
        """Their texts, or what models of this family draw instead."""
        from mmspec.loading import family_of

        return self.offered(family_of(self.model))

    def offered(self, family: Any) -> list[str]:
        """The same, for a family or a target."""
        return list(family.examples) or [one.prompt for one in self.asked]

    @cached_property
    def judge(self) -> Any:
        """What reads pictures, if there is one for the model."""
        return cast("Any", resolve("judges", "reader", "image")).find(self.plain.folder)

    def kept(self, race: PictureRace) -> tuple[int, int, int] | None:
        """See `PictureRace`; only of the examples is it known what they state."""
        asked = next((one for one in self.asked if one.prompt == race.caption), None)
        if asked is None or self.judge is None:
            return None
        pictures = [race.slow_sketches.last, race.fast_sketches.last]
        slow, fast = self.judge.facts([asked, asked], pictures)
        return sum(slow), sum(fast), len(slow)

    def draw(self, wish: Wish) -> Iterator[PictureRace]:
        """Draw one code at a time, then with drafts; yields the growing race, the last time finished."""
        self.plain.target.check_codec()
        slow, fast = self.plain, self.drafting(wish.drafter, wish.shape, wish.rule, wish.looseness)
        race = self.begun(wish, fast)
        race.invariant = bound(fast.rule, wish.temperature == 0)
        recorder: Any = fast.drafter
        options: Any = {"temperature": wish.temperature, "seed": wish.seed}
        sides = (
            (slow, race.slow, None, race.slow_sketches),
            (fast, race.fast, recorder.rounds, race.fast_sketches),
        )
        for pipe, trace, recorded, sketches in sides:
            for piece in self.followed(pipe.stream(prompt=wish.prompt, **options), trace, recorded):
                sketches.look(trace.seconds, piece)
                yield race
            sketches.add(trace.seconds, piece.image)  # the whole one
        race.kept = self.kept(race)
        race.finished = True
        yield race

    def begun(self, wish: Wish, fast: Pipeline) -> PictureRace:
        """A race before its start. fast: what draws with drafts."""
        race = PictureRace(Trace("none"), Trace(wish.drafter), caption=wish.prompt)
        race.columns = self.plain.target.layout.width
        return race

    def followed(self, stream: Stream, trace: Trace, recorded: Sequence[Recorded] | None) -> Iterator[Piece]:
        """A request as it goes. See `follow`."""
        return follow(stream, trace, None, recorded, str)

    def _warm(self, pipe: Pipeline) -> Pipeline:
        """A few codes, so that the first visitor's picture is not slower than the others'."""
        pipe(prompt=self.captions[0], max_new_tokens=8)
        return pipe


def shown(picture: bytes | None, caption: str, side: int = 256) -> str:
    """A PNG file as an HTML element, each pixel a square; an empty frame where there is none yet."""
    style = f"width:{side}px;height:{side}px;image-rendering:pixelated;background:#7f7f7f;border-radius:6px"
    if picture is None:
        return f'<div style="{style}"></div>'
    data = b64encode(picture).decode()
    return f'<img alt="{escape(caption)}, as far as it is drawn" style="{style}" src="data:image/png;base64,{data}">'
