"""Pictures and speech: a cell per emitted code, whose colour and mark tell how the code came about."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mmspec.demos.markup import MEANING
from mmspec.demos.trace import BONUS, CORRECTED, DRAFTED, PLAIN, Step

CELL = 12
"""Pixels of a cell, one of which is the gap to the next."""
COLOURS = {DRAFTED: "#7bc47f", CORRECTED: "#f0954e", BONUS: "#6f9be8", PLAIN: "#b9b9b9"}
MARKS = {DRAFTED: "m1 9h9", CORRECTED: "m5.5 3v5m-2.5-2.5h5", BONUS: "m5.5 3v5"}
"""Strokes from a cell's corner, because colour alone tells some people nothing: a line below, a cross, an upright."""


def grid(steps: Sequence[Step], columns: int) -> str:
    """The cells of steps, as one path per kind: a cell of its own for every code would be most of what a page loads."""
    kinds = kinds_of(steps)
    rows = max(-(-len(kinds) // columns), 1)
    return f'<div class="mm-cells">{picture(columns * CELL, rows * CELL, counted(kinds), layers(kinds, columns))}</div>'


def kinds_of(steps: Sequence[Step]) -> list[str]:
    """How each code of steps came about."""
    return [kind for step in steps for kind in step.kinds]


def counts(kinds: Sequence[str]) -> dict[str, int]:
    """How many there are of each kind that there is."""
    return {kind: kinds.count(kind) for kind in COLOURS if kind in kinds}


def counted(kinds: Sequence[str]) -> str:
    """How many codes there are, of all kinds and of each."""
    parts = ", ".join(f"{count} {kind}" for kind, count in counts(kinds).items())
    return f"{len(kinds)} codes: {parts}" if kinds else "no codes yet"


def layers(kinds: Sequence[str], columns: int) -> str:
    """The cells of codes, in rows of so many columns."""
    found = {kind: [place for place, each in enumerate(kinds) if each == kind] for kind in COLOURS}
    return "".join(layer(kind, places, columns) for kind, places in found.items() if places)


def layer(kind: str, places: Sequence[int], columns: int) -> str:
    """All cells of a kind, and their marks."""
    corners = [(place % columns * CELL, place // columns * CELL) for place in places]
    side = CELL - 1
    squares = "".join(f"M{x} {y}h{side}v{side}h-{side}z" for x, y in corners)
    strokes = "".join(f"M{x} {y}{MARKS[kind]}" for x, y in corners) if kind in MARKS else ""
    marks = f'<path d="{strokes}" fill="none" stroke="#1a1a1a" stroke-width="1.4"/>' if strokes else ""
    return f'<g><title>{escape(kind)}</title><path d="{squares}" fill="{COLOURS[kind]}"/>{marks}</g>'


def legend() -> str:
    """What colours and marks mean."""
    keys = ((kind, picture(CELL, CELL, kind, layer(kind, [0], 1))) for kind in COLOURS)
    lines = (f'<span class="mm-key">{drawn} <b>{kind}</b> {escape(MEANING[kind])}</span>' for kind, drawn in keys)
    return f'<div class="mm-legend">{"".join(lines)}</div>'


def picture(width: int, height: int, label: str, parts: str) -> str:
    """An SVG element with a name for those who cannot see it."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{parts}</svg>'
