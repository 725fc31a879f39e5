"""How far two texts lie apart: Levenshtein's edits, of letters or of words."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence


def costs(first: Sequence[object], second: Sequence[object]) -> Iterator[list[int]]:
    """Row by row, the least number of substitutions, deletions and insertions that make the first column items of
    `second` of the first row items of `first`."""
    above = list(range(len(second) + 1))
    yield above
    for row, one in enumerate(first, 1):
        here = [row]
        for column, other in enumerate(second, 1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (one != other)))
        above = here
        yield here


def distance(first: Sequence[object], second: Sequence[object]) -> int:
    """That number for the whole of both."""
    (last,) = deque(costs(first, second), maxlen=1)
    return last[-1]
