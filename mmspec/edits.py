"""How far two texts lie apart: Levenshtein's edits, of letters or of words."""

from __future__ import annotations

from collections.abc import Sequence


def costs(first: Sequence[object], second: Sequence[object]) -> list[list[int]]:
    """The least number of substitutions, deletions and insertions that make the first column items of `second` of the
    first row items of `first`."""
    table = [list(range(len(second) + 1))]
    for row, one in enumerate(first, 1):
        above, here = table[-1], [row]
        for column, other in enumerate(second, 1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (one != other)))
        table.append(here)
    return table


def distance(first: Sequence[object], second: Sequence[object]) -> int:
    """That number for the whole of both."""
    return costs(first, second)[-1][-1]
