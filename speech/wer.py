"""Word error rate: how many words were heard wrongly, too many or not at all, per word that was said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmspec.speech.text import spoken

LETTERS = " 'abcdefghijklmnopqrstuvwxyz"
"""What a listener writes; what else a text holds (commas, hyphens) is not heard."""


def audible(text: str) -> str:
    """What can be heard of a text: numbers as words, letters and apostrophes, single spaces."""
    return " ".join(re.sub(r"[^a-z']+", " ", spoken(text)).split())


def distance(said: Sequence[object], heard: Sequence[object]) -> int:
    """The least number of substitutions, deletions and insertions that make one of the other (Levenshtein)."""
    above = list(range(len(heard) + 1))
    for row, mine in enumerate(said, 1):
        here = [row]
        for column, other in enumerate(heard, 1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (mine != other)))
        above = here
    return above[-1]


def pairs(said: Sequence[str], heard: Sequence[str]) -> list[tuple[str, str]]:
    """Both texts word by word with the fewest errors; "" where one of them lacks the other's word."""
    found: list[tuple[str, str]] = []
    while said and heard:
        left = distance(said, heard)
        if left == distance(said[:-1], heard[:-1]) + (said[-1] != heard[-1]):
            found.append((said[-1], heard[-1]))
            said, heard = said[:-1], heard[:-1]
        elif left == distance(said[:-1], heard) + 1:
            found.append((said[-1], ""))
            said = said[:-1]
        else:
            found.append(("", heard[-1]))
            heard = heard[:-1]
    return [*((word, "") for word in said), *(("", word) for word in heard), *reversed(found)]


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Errors in what was heard of an `audible` text, and how many words that has. Their ratio, summed first, is WER."""
    words = said.split()
    return distance(words, heard.split()), len(words)
