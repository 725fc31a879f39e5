"""Word error rate: how many words were heard wrongly, too many or not at all, per word that was said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmspec.edits import costs, distance
from mmspec.speech.text import spoken

LETTERS = " 'abcdefghijklmnopqrstuvwxyz"
"""What a listener writes; what else a text holds (commas, hyphens) is not heard."""


def audible(text: str) -> str:
    """What can be heard of a text: numbers as words, letters and apostrophes, single spaces."""
    return " ".join(re.sub(r"[^a-z']+", " ", spoken(text)).split())


def pairs(said: Sequence[str], heard: Sequence[str]) -> list[tuple[str, str]]:
    """Both texts word by word with the fewest errors; "" where one of them lacks the other's word."""
    table, row, column = list(costs(said, heard)), len(said), len(heard)
    found: list[tuple[str, str]] = []
    while row or column:
        here = table[row][column]
        if row and column and here == table[row - 1][column - 1] + (said[row - 1] != heard[column - 1]):
            row, column = row - 1, column - 1
            found.append((said[row], heard[column]))
        elif row and here == table[row - 1][column] + 1:
            row -= 1
            found.append((said[row], ""))
        else:
            column -= 1
            found.append(("", heard[column]))
    return found[::-1]


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Errors in what was heard of an `audible` text, and how many words that has. Their ratio, summed first, is WER."""
    words = said.split()
    return distance(words, heard.split()), len(words)
