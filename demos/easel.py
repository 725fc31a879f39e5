"""An image model behind a demo: the same picture drawn code by code and with drafts, and where every code came from.

What a page shows of it is made here, without gradio: the picture as it was known at each moment, and a grid with a cell
per code in the colours of `mmspec.demos.markup`.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

from PIL import Image

from mmspec.control import read_shape
from mmspec.demos.race import Race
from mmspec.demos.recorder import Recorder
from mmspec.demos.studio import LONGEST_PROMPT, Studio, usable
from mmspec.demos.trace import BONUS, CORRECTED, DRAFTED, PLAIN, Step, Trace, follow
from mmspec.errors import InputError, UnsupportedError, unknown_name
from mmspec.registry import resolve

if TYPE_CHECKING:
    from mmspec.api import Pipeline

RULES = ("exact", "ratio", "lantern", "lantern++", "gsd", "cool-sd")
EXAMPLES = 6
COLOURS = {DRAFTED: "#7bc47f", CORRECTED: "#f0954e", BONUS: "#6f9be8", PLAIN: "#b9b9b9"}
CELL = 12
"""Pixels of a cell of the grid."""
LOOK = 0.25
"""Seconds between two pictures of a race that are decoded."""


@dataclass(frozen=True)
class Wish:
    """What a visitor wants drawn. Raises: InputError for what is beyond the limits."""

    prompt: str
    drafter: str
    rule: str = "exact"
    temperature: float = 1.0
    seed: int = 0
    shape: str = "auto"

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise InputError("the caption is empty: write one, or click on an example")
        if len(self.prompt) > LONGEST_PROMPT:
            raise InputError(f"the caption has {len(self.prompt)} characters: at most {LONGEST_PROMPT} are taken")
        if not 0 <= self.temperature <= 2:
            raise InputError(f"temperature {self.temperature:g} is not valid: 0 (greedy) to 2 is taken")
        if self.rule not in RULES:
            raise unknown_name("rule", self.rule, RULES)
        if not 0 <= self.seed < 2**31:
            raise InputError(f"the seed {self.seed} is not valid: 0 to {2**31 - 1} is taken")


@dataclass
class Sketches:
    """Pictures of a request, each with the seconds at which it was known."""

    shots: list[tuple[float, Image.Image]] = field(default_factory=list)

    def at(self, moment: float) -> Image.Image | None:
        """The last picture that was known by a time; None if there was none yet."""
        return next((picture for seconds, picture in reversed(self.shots) if seconds <= moment), None)


@dataclass
class PictureRace(Race):
    """Both drawings of a caption. columns: codes per row of the picture."""

    columns: int = 1
    slow_sketches: Sketches = field(default_factory=Sketches)
    fast_sketches: Sketches = field(default_factory=Sketches)


class Easel(Studio):
    """An image model with its drafters, one request at a time. See `Studio`."""

    @cached_property
    def drafters(self) -> list[str]:
        """The drafters to choose from."""
        return self._drafters if self._drafters is not None else usable(self.model, "image")

    @cached_property
    def captions(self) -> list[str]:
        """Examples: held-out captions of the synthetic world."""
        judge = cast("Any", resolve("judges", "reader", "image"))
        return [one.prompt for one in judge.captions(EXAMPLES)]

    def drawing(self, wish: Wish) -> Pipeline:
        """The pipeline that a wish asks for, whose drafts are recorded."""
        if wish.drafter not in self.drafters:
            raise unknown_name("drafter", wish.drafter, self.drafters)
        recorder = Recorder(self.plain.with_drafter(wish.drafter, acceptance="exact").drafter)
        return self.plain.with_drafter(recorder, read_shape(wish.shape), wish.rule)

    def draw(self, wish: Wish) -> Iterator[PictureRace]:
        """Draw one code at a time, then with drafts; yields the growing race, the last time finished."""
        if not hasattr(self.plain.target, "layout"):
            raise UnsupportedError(f"{self.model} draws without codes: this page shows pictures of codes")
        slow, fast = self.plain, self.drawing(wish)
        race = PictureRace(Trace("none"), Trace(wish.drafter), columns=slow.target.layout.width)
        race.invariant = wish.temperature == 0 or fast.rule.invariant
        recorder: Any = fast.drafter
        options: Any = {"temperature": wish.temperature, "seed": wish.seed}
        sides = ((slow, None, race.slow_sketches), (fast, recorder.rounds, race.fast_sketches))
        for index, (pipe, recorded, sketches) in enumerate(sides):
            watched = Watched(pipe.stream(prompt=wish.prompt, **options))
            name = "none" if index == 0 else wish.drafter
            for trace in follow(cast("Any", watched), name, None, recorded, str):
                sketches.shots += watched.look(trace.seconds)
                if index == 0:
                    race.slow = trace
                else:
                    race.fast = trace
                yield race
            sketches.shots += watched.look(trace.seconds, last=True)
        race.finished = True
        yield race

    def _warm(self, pipe: Pipeline) -> Pipeline:
        """A few codes, so that the first visitor's picture is not slower than the others'."""
        pipe(prompt=self.captions[0], max_new_tokens=8)
        return pipe


class Watched:
    """A stream that remembers its last piece, whose picture is decoded now and then. See `mmspec.answers.Stream`."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.stats = stream, stream.stats
        self.piece: Any = None
        self.looked = 0.0

    def __iter__(self) -> Iterator[Any]:
        for piece in self.stream:
            self.piece = piece
            yield piece

    def look(self, seconds: float, last: bool = False) -> list[tuple[float, Image.Image]]:
        """The picture known at a time, if the last look was a while ago; a decoder that ran each round would be most
        of what a visitor waits for."""
        if not last and time.monotonic() - self.looked < LOOK:
            return []
        picture = self.piece.image
        self.looked = time.monotonic()
        return [(seconds, picture)]


def shown(picture: Image.Image | None, side: int = 256) -> str:
    """A picture as an HTML element, each pixel a square; an empty frame where there is none yet."""
    style = f"width:{side}px;height:{side}px;image-rendering:pixelated;background:#7f7f7f;border-radius:6px"
    if picture is None:
        return f'<div style="{style}"></div>'
    file = BytesIO()
    picture.save(file, "PNG")
    data = b64encode(file.getvalue()).decode()
    return f'<img alt="the picture as far as it is drawn" style="{style}" src="data:image/png;base64,{data}">'


def grid(steps: list[Step], columns: int) -> str:
    """A cell per emitted code, row by row, in the colour of how it came about."""
    kinds = [kind for step in steps for kind in step.kinds]
    rows = -(-len(kinds) // columns) if kinds else 0
    cells = "".join(
        f'<rect x="{place % columns * CELL}" y="{place // columns * CELL}" width="{CELL - 1}" height="{CELL - 1}" '
        f'fill="{COLOURS[kind]}"><title>{kind}</title></rect>'
        for place, kind in enumerate(kinds)
    )
    width, height = columns * CELL, max(rows, 1) * CELL
    return f'<div class="mm-drawing"><svg width="{width}" height="{height}" role="img">{cells}</svg></div>'
