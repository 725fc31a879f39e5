"""What a miniworld picture shows: plain, frozen records, the ground truth of every question.

The renderer turns them into a picture, the language module into questions and answers. Nothing here draws or talks.
"""

from dataclasses import dataclass
from typing import Literal

COLORS = ("red", "green", "blue", "yellow", "orange", "purple", "black", "white")
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
TEXTURES = ("plain", "striped", "dotted", "checked")
SIZES = ("small", "large")
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "center", "right")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True)
class Thing:
    """One shape in a cell of the 3 x 3 grid (row 0 is the top, column 0 the left)."""

    shape: str
    color: str
    texture: str
    size: str
    row: int
    column: int


@dataclass(frozen=True)
class Shapes:
    """A scene of one to six shapes, at most one per cell, on a background of one colour."""

    things: tuple[Thing, ...]
    background: str
    family: Literal["shapes"] = "shapes"


@dataclass(frozen=True)
class Chart:
    """A bar, line or pie chart.

    values: integers 0 to 100 (bar, line: 0 to axis_max; pie: percentages, multiples of 5 that sum to 100).
    printed: whether the value is written beside the bar, point or slice. A value that is not printed lies on a
        gridline or half way between two (bar, line) or is a multiple of 10 (pie), so that an eye can read it.
    colors: one per category for bar and pie; for a line chart one colour repeated.
    axis_max: 10, 20, 50 or 100; step: distance of gridlines (axis_max / 5). 100 and 10 for pies.
    """

    kind: Literal["bar", "line", "pie"]
    title: str
    categories: tuple[str, ...]
    values: tuple[int, ...]
    colors: tuple[str, ...]
    printed: tuple[bool, ...]
    axis_max: int
    step: int

    @property
    def family(self) -> str:
        """The family's name: the kind of chart."""
        return self.kind


@dataclass(frozen=True)
class Table:
    """A table of two to four rows and one to three columns of integers 0 to 99; cells[row][column]."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[int, ...], ...]
    family: Literal["table"] = "table"


@dataclass(frozen=True)
class Sign:
    """Rendered text: one to three lines of one or two words or numbers, on a coloured board with a coloured frame."""

    lines: tuple[str, ...]
    board: str
    frame: str
    family: Literal["text"] = "text"


Facts = Shapes | Chart | Table | Sign


@dataclass(frozen=True)
class Mark:
    """Where the renderer put what.

    kind: "char", "color", "shape", "texture", "size", or "fact" for what belongs to the thing in the box without being
    drawn in it (the name and value of a bar, the row and column of a cell); value: its name; box: left, top, right,
    bottom in pixels of the 320 canvas.
    """

    kind: str
    value: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class QA:
    """A question and its answer.

    form: "describe" | "worked" | "short" | "yesno" | "choice".
    topic: what is asked ("value", "max", "min", "compare", "difference", "count", "color", "shape", "position", ...).
    gold: the value by which an answer is judged (None for descriptions). The answer's last sentence states it.
    spans: (start, end, kind) character spans of the answer; kind "image" = only the picture determines it, "copy" = it
        stands in the question. Everything else is template. Spans do not overlap and are sorted.
    reason: the value that a yes, a no or the letter of a choice hangs on; the answer need not say it.
    """

    question: str
    answer: str
    form: str
    topic: str
    gold: str | None
    spans: tuple[tuple[int, int, str], ...]
    reason: str | None = None
