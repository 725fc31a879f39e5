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
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from PIL import Image

from mmspec.demos.knobs import Knob
from mmspec.demos.race import Race
from mmspec.demos.studio import Studio, Wish
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


class Caption(Wish):
    """What a visitor wants drawn. See `Wish`."""

    noun = "caption"
    rules = RULES


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

    title = "Drawing"
    modality = "image"
    knobs = LOOSE
    wish = Caption

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

    def samples(self, folder: Path) -> list[dict[str, Any]]:
        """See `Studio`."""
        return [{"prompt": caption} for caption in self.captions]

    def kept(self, race: PictureRace) -> tuple[int, int, int] | None:
        """See `PictureRace`; only of the examples is it known what they state."""
        asked = next((one for one in self.asked if one.prompt == race.caption), None)
        if asked is None or self.judge is None:
            return None
        pictures = [race.slow_sketches.last, race.fast_sketches.last]
        slow, fast = self.judge.facts([asked, asked], pictures)
        return sum(slow), sum(fast), len(slow)

    def begun(self, wish: Wish, fast: Pipeline) -> PictureRace:
        """See `Studio`."""
        columns = self.plain.target.layout.width
        return PictureRace(Trace("none"), Trace(wish.drafter), caption=wish.prompt, columns=columns)

    def followed(self, race: Any, trace: Trace, stream: Stream, recorded: Sequence[Recorded] | None) -> Iterator[Any]:
        """See `Studio`; the last picture is the whole one, and with both of them it is known what holds in them."""
        sketches = race.slow_sketches if trace is race.slow else race.fast_sketches
        for piece in self.pieces(stream, trace, recorded):
            sketches.look(trace.seconds, piece)
            yield piece
        sketches.add(trace.seconds, piece.image)
        if trace is race.fast:
            race.kept = self.kept(race)

    def pieces(self, stream: Stream, trace: Trace, recorded: Sequence[Recorded] | None) -> Iterator[Piece]:
        """A request as it goes. See `follow`."""
        return follow(stream, trace, None, recorded, str)

    def warm_prompt(self, pipe: Pipeline) -> str:
        """See `Studio`."""
        return self.captions[0]


def shown(picture: bytes | None, caption: str, side: int = 256) -> str:
    """A PNG file as an HTML element, each pixel a square; an empty frame where there is none yet."""
    style = f"width:{side}px;height:{side}px;image-rendering:pixelated;background:#7f7f7f;border-radius:6px"
    if picture is None:
        return f'<div style="{style}"></div>'
    data = b64encode(picture).decode()
    return f'<img alt="{escape(caption)}, as far as it is drawn" style="{style}" src="data:image/png;base64,{data}">'
