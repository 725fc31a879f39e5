"""What a question is about: the values that a chart or a table has for its names, and the things that it counts."""

import re
from collections.abc import Iterator

from mmspec.miniworld.facts import COLORS, ROWS, SHAPES, SIZES, TEXTURES, Chart, Facts, Shapes, Table, Thing
from mmspec.miniworld.phrases import plural

NOUNS = {plural(shape, 2): shape for shape in SHAPES}
ATTRIBUTES = {*COLORS, *SHAPES, *TEXTURES, *SIZES, *ROWS}


def names(facts: Facts) -> set[str]:
    """The names that stand for values in a picture, and those of a table's columns."""
    if isinstance(facts, Chart):
        return set(facts.categories)
    return {*facts.rows, *facts.columns} if isinstance(facts, Table) else set()


def values_named(facts: Facts, text: str, told: bool = False) -> Iterator[tuple[int, str]]:
    """Where names in a text end, and the values in the picture that are then known.

    A category of a chart names its value. Of a table, the cell is known with the second of a row and a column.

    Args: told: the text itself tells the values of a chart first, each with its name: only then they are known.
    """
    row, column = None, None
    unknown = set(names(facts)) if told else set()
    for found in re.finditer(r"\w+", text):
        name = found[0]
        if name in unknown:
            unknown.remove(name)
        elif isinstance(facts, Chart) and name in facts.categories:
            yield found.end(), str(facts.values[facts.categories.index(name)])
        if isinstance(facts, Table) and name in (*facts.rows, *facts.columns):
            row, column = (name, column) if name in facts.rows else (row, name)
            if row is not None and column is not None:
                yield found.end(), str(facts.cells[facts.rows.index(row)][facts.columns.index(column)])


def counted(scene: Shapes, text: str) -> tuple[Thing, ...]:
    """The things whose number a text asks for or states: those with every attribute in it."""
    words = {NOUNS.get(word, word) for word in re.findall(r"\w+", text.lower())} & ATTRIBUTES
    return tuple(
        thing
        for thing in scene.things
        if words <= {thing.color, thing.shape, thing.texture, thing.size, ROWS[thing.row]}
    )
