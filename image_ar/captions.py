"""What a caption says of a scene, word by word, and whether a picture keeps it.

A scene is groups of equal things on a 3 x 3 grid. A caption names every thing once: by its place ("a red circle at the
top left"), by how two groups lie to each other ("a red circle above two blue squares"), or by number alone ("three
green stars"). What is said is known as facts, so a picture can be judged by a list of what stands in which cell.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mmspec.miniworld.facts import SHAPES
from mmspec.miniworld.scenes import BACKGROUNDS, INK_COLORS
from mmspec.miniworld.talk_shapes import PLACES

INKS, GROUNDS = INK_COLORS, BACKGROUNDS
NUMBERS = ("no", "a", "two", "three")
SIDES = {"above": (0, -1), "below": (0, 1), "to the left of": (1, -1), "to the right of": (1, 1)}
"""Words -> the axis of a cell (0 row, 1 column) and on which side of the second group the first one lies."""
KINDS = {"placed": 0.5, "related": 0.3, "counted": 0.2}
OPENINGS = ("", "a picture of", "draw", "an image with")
ON_GROUND = (("on a", "background"), ("on", ""), ("in front of a", "background"))
WORD = re.compile(r"\w+|[^\w\s]")
NOBODY, GROUND = -1, -2  # owners of words that belong to no group
GRID = 3  # cells in a row, and rows
MOST_THINGS = 4

Cell = tuple[int, int]
"""Row and column, 0 to 2."""
CELLS: tuple[Cell, ...] = tuple((row, column) for row in range(GRID) for column in range(GRID))


class Kind(NamedTuple):
    """What is told apart about a thing."""

    color: str
    shape: str


@dataclass(frozen=True)
class Group:
    """Equal things, and whether the caption says in which cell they are (then there is one)."""

    kind: Kind
    cells: tuple[Cell, ...]
    placed: bool


@dataclass(frozen=True)
class Said:
    """What a caption says. side: how group 0 lies to group 1, a key of SIDES. ground: None if it is not said."""

    groups: tuple[Group, ...]
    side: str | None
    ground: str | None

    @property
    def manner(self) -> str:
        """How it is told where things are, a key of KINDS."""
        if self.side is not None:
            return "related"
        return "placed" if self.groups[0].placed else "counted"


@dataclass(frozen=True)
class Caption:
    """text, and the owner of each of its words: the index of a group, GROUND or NOBODY."""

    text: str
    owners: tuple[int, ...]

    @property
    def ground(self) -> str | None:
        """What it says of the ground; None if nothing."""
        words = zip(WORD.findall(self.text), self.owners, strict=True)
        return next((word for word, owner in words if owner == GROUND), None)


def draw_groups(rng: random.Random) -> Said:
    """What there is and how it will be told; the ground is drawn with it and told most of the time."""
    kind = rng.choices(list(KINDS), weights=list(KINDS.values()))[0]
    side = rng.choice(list(SIDES)) if kind == "related" else None
    if kind == "placed":
        cells = rng.sample(CELLS, rng.randint(1, 3))
        groups = [Group(_kind(rng), (cell,), True) for cell in cells]
    elif side is not None:
        kinds = _different(rng, 2)
        groups = [Group(kind, cells, False) for kind, cells in zip(kinds, _apart(rng, *SIDES[side]), strict=True)]
    else:
        kinds = _different(rng, rng.randint(1, 2))
        counts = [rng.randint(1, 3 if len(kinds) == 1 else 2) for _ in kinds]
        cells = rng.sample(CELLS, sum(counts))
        groups = [
            Group(kind, tuple(sorted(cells[sum(counts[:i]) : sum(counts[: i + 1])])), False)
            for i, kind in enumerate(kinds)
        ]
    return Said(tuple(groups), side, rng.choice(GROUNDS) if rng.random() < 0.85 else None)


def _kind(rng: random.Random) -> Kind:
    return Kind(rng.choice(INKS), rng.choice(SHAPES))


def _different(rng: random.Random, count: int) -> list[Kind]:
    found: dict[Kind, None] = {}
    while len(found) < count:
        found.setdefault(_kind(rng))
    return list(found)


def _apart(rng: random.Random, axis: int, sign: int) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Cells of two groups of one or two, each in one row (column), the first one's before or behind the second's."""
    low, high = sorted(rng.sample(range(GRID), 2))
    lines = (low, high) if sign < 0 else (high, low)
    parts = []
    for line in lines:
        along = sorted(rng.sample(range(GRID), rng.randint(1, 2)))
        parts.append(tuple((line, place) if axis == 0 else (place, line) for place in along))
    return parts[0], parts[1]


def tell(said: Said, rng: random.Random) -> Caption:
    """A caption that says it."""
    pieces: list[tuple[str, int]] = [(rng.choice(OPENINGS), NOBODY)]
    order = list(range(len(said.groups)))
    if said.side is None:
        rng.shuffle(order)
    for place, index in enumerate(order):
        group = said.groups[index]
        if place:
            pieces.append((said.side or rng.choice((",", "and", ", with")), NOBODY if said.side is None else index))
        pieces.append((_phrase(group), index))
    if said.ground is not None:
        before, after = rng.choice(ON_GROUND)
        pieces += [(before, NOBODY), (said.ground, GROUND), (after, NOBODY)]
    words = [(word, owner) for piece, owner in pieces for word in WORD.findall(piece)]
    return Caption(" ".join(word for word, _ in words).replace(" ,", ","), tuple(owner for _, owner in words))


def _phrase(group: Group) -> str:
    count = len(group.cells)
    shape = group.kind.shape if count == 1 else group.kind.shape + ("es" if group.kind.shape == "cross" else "s")
    article = "an" if count == 1 and group.kind.color[0] == "o" else NUMBERS[count]
    where = f" at the {PLACES[group.cells[0][0]][group.cells[0][1]]}" if group.placed else ""
    return f"{article} {group.kind.color} {shape}{where}"


def kept(said: Said, seen: Mapping[Cell, Kind]) -> list[bool]:
    """Which of the things said hold in a picture that shows `seen`.

    One fact per group (its number of things of this kind, or the kind in its cell), one for the relation if there is
    one, and one that nothing else is there. The ground is not judged.
    """
    facts, mine = [], []
    for group in said.groups:
        cells = [cell for cell, kind in seen.items() if kind == group.kind]
        mine.append(cells)
        facts.append(group.cells[0] in cells if group.placed else len(cells) == len(group.cells))
    if said.side is not None:
        axis, sign = SIDES[said.side]
        pairs = [(first[axis], second[axis]) for first in mine[0] for second in mine[1]]
        facts.append(bool(pairs) and all((a - b) * sign > 0 for a, b in pairs))
    return [*facts, len(seen) == sum(len(group.cells) for group in said.groups)]
