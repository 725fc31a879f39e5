"""Draws the facts of a picture: what is in it, before anything is rendered or asked.

Every rule that keeps a picture readable at 160 pixels (how many labels, how long, which values may go unprinted) is
decided here, so that the renderer only has to draw.
"""

import random
from collections.abc import Callable
from typing import Literal

from mmspec.miniworld.facts import COLORS, SHAPES, SIZES, TEXTURES, Chart, Facts, Shapes, Sign, Table, Thing
from mmspec.miniworld.words import CATEGORY_SETS, DAYS, MONTHS, SIGN_WORDS, TITLES

FAMILY_WEIGHTS = {"shapes": 0.22, "bar": 0.22, "line": 0.14, "pie": 0.14, "table": 0.14, "text": 0.14}
BACKGROUNDS = ("white", "gray", "cream", "sky", "mint")
INK_COLORS = tuple(color for color in COLORS if color != "white")  # white would vanish on a white ground
CALENDARS = (DAYS, MONTHS)


def draw_facts(rng: random.Random, family: str | None = None) -> Facts:
    """Facts of one picture.

    Args: rng: the only source of randomness; family: a key of FAMILY_WEIGHTS, or None to draw one by weight.
    Raises: ValueError for an unknown family.
    """
    if family is None:
        family = rng.choices(list(FAMILY_WEIGHTS), weights=list(FAMILY_WEIGHTS.values()))[0]
    drawers: dict[str, Callable[[random.Random], Facts]] = {
        "shapes": _shapes,
        "bar": _bar,
        "line": _line,
        "pie": _pie,
        "table": _table,
        "text": _sign,
    }
    if family not in drawers:
        raise ValueError(f"unknown family {family!r}; known: {', '.join(drawers)}")
    return drawers[family](rng)


def _shapes(rng: random.Random) -> Shapes:
    shapes: tuple[str, ...] = SHAPES
    colors: tuple[str, ...] = INK_COLORS
    if rng.random() < 0.5:  # few kinds, so that "how many red circles" has answers above one
        shapes, colors = tuple(rng.sample(shapes, 2)), tuple(rng.sample(colors, rng.randint(2, 3)))
    cells = sorted(rng.sample(range(9), rng.randint(1, 6)))
    things = tuple(
        Thing(
            shape=rng.choice(shapes),
            color=rng.choice(colors),
            texture=rng.choices(TEXTURES, weights=(40, 20, 20, 20))[0],
            size=rng.choice(SIZES),
            row=cell // 3,
            column=cell % 3,
        )
        for cell in cells
    )
    return Shapes(things, background=rng.choice(BACKGROUNDS))


def _bar(rng: random.Random) -> Chart:
    count = rng.randint(3, 5)
    colors = rng.sample(INK_COLORS, count) if rng.random() < 0.5 else [rng.choice(INK_COLORS)] * count
    return _axis_chart(rng, "bar", count, tuple(colors))


def _line(rng: random.Random) -> Chart:
    count = rng.randint(4, 6)
    return _axis_chart(rng, "line", count, (rng.choice(INK_COLORS),) * count)


def _axis_chart(rng: random.Random, kind: Literal["bar", "line"], count: int, colors: tuple[str, ...]) -> Chart:
    axis_max = rng.choices((10, 20, 50, 100), weights=(25, 25, 20, 30))[0]
    # A bar needs a few pixels of height for its colour to be seen; a point of a line may lie on the axis.
    low = max(1, axis_max // 20) if kind == "bar" else 0
    readable = [value for value in range(0, axis_max + 1, axis_max // 10) if value >= low]
    printed = _printed(rng, count)
    values: list[int] = []
    for shown in printed:
        pool = range(low, axis_max + 1) if shown else readable
        values.append(rng.choice([value for value in pool if value not in values]))
    return Chart(
        kind=kind,
        title=rng.choice(TITLES),
        categories=_categories(rng, count),
        values=tuple(values),
        colors=colors,
        printed=printed,
        axis_max=axis_max,
        step=axis_max // 5,
    )


def _pie(rng: random.Random) -> Chart:
    values = _percentages(rng, rng.randint(2, 5))
    printed = tuple(shown or value % 10 != 0 for shown, value in zip(_printed(rng, len(values)), values, strict=True))
    return Chart(
        kind="pie",
        title=rng.choice(TITLES),
        categories=_categories(rng, len(values)),
        values=values,
        colors=tuple(rng.sample(INK_COLORS, len(values))),
        printed=printed,
        axis_max=100,
        step=10,
    )


def _percentages(rng: random.Random, count: int) -> tuple[int, ...]:
    """Distinct multiples of 5, at least 5, that sum to 100; often multiples of 10, so that some can go unprinted."""
    unit = 10 if count <= 4 and rng.random() < 0.6 else 5
    while True:
        cuts = sorted(rng.sample(range(unit, 100, unit), count - 1))
        values = tuple(high - low for low, high in zip([0, *cuts], [*cuts, 100], strict=True))
        if len(set(values)) == count:
            return values


def _printed(rng: random.Random, count: int) -> tuple[bool, ...]:
    mode = rng.choice(("all", "none", "some", "some"))
    return tuple(mode == "all" or (mode == "some" and rng.random() < 0.5) for _ in range(count))


def _categories(rng: random.Random, count: int) -> tuple[str, ...]:
    """Distinct labels of one set, short enough to stand side by side under a chart."""
    names = rng.choice(CALENDARS if count > 5 else CATEGORY_SETS)
    if names in CALENDARS:
        return _calendar(rng, names, count)
    return tuple(rng.sample([name for name in names if count < 5 or len(name) <= 4], count))


def _calendar(rng: random.Random, names: tuple[str, ...], count: int) -> tuple[str, ...]:
    if rng.random() < 0.5:
        start = rng.randrange(len(names) - count + 1)
        return names[start : start + count]
    return tuple(names[index] for index in sorted(rng.sample(range(len(names)), count)))


def _table(rng: random.Random) -> Table:
    row_count, column_count = rng.randint(2, 4), rng.randint(1, 3)
    row_set = rng.choice(CATEGORY_SETS)
    head_set = rng.choice([names for names in CATEGORY_SETS if names != row_set]) if rng.random() < 0.5 else TITLES
    rows, columns = _ordered_sample(rng, row_set, row_count), _ordered_sample(rng, head_set, column_count)
    return Table(
        title=rng.choice([title for title in TITLES if title not in columns]),
        rows=rows,
        columns=columns,
        cells=tuple(tuple(rng.randint(0, 99) for _ in columns) for _ in rows),
    )


def _ordered_sample(rng: random.Random, names: tuple[str, ...], count: int) -> tuple[str, ...]:
    return _calendar(rng, names, count) if names in CALENDARS else tuple(rng.sample(names, count))


def _sign(rng: random.Random) -> Sign:
    board, frame = rng.sample(COLORS, 2)
    words = rng.sample(SIGN_WORDS, 6)
    lines = []
    for _ in range(rng.randint(1, 3)):
        line = [words.pop() for _ in range(rng.choice((1, 1, 2)))]
        if rng.random() < 0.25:
            line[-1] = str(rng.randint(2, 99))
        lines.append(" ".join(line))
    return Sign(tuple(lines), board=board, frame=frame)
