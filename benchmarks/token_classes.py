"""Which kinds of token are drafted well: of every class how many were emitted, and how many of these were drafted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

CLASSES = ("number", "word", "other")

Counts = dict[str, list[int]]
"""Class -> [tokens emitted by rounds, those of them that were drafted], or dependence -> [tokens, those held]."""


def class_of(text: str) -> str:
    """number: with a digit; word: with a letter; other: spaces, marks, parts of characters."""
    if any(letter.isdigit() for letter in text):
        return "number"
    return "word" if any(letter.isalpha() for letter in text) else "other"


def counts(tokens: Sequence[int], accept_lengths: Sequence[int], text_of: Callable[[int], str]) -> Counts:
    """Counts of one reply: the first token is the prefill's; a round emits drafted tokens, then one of its own."""
    found = {name: [0, 0] for name in CLASSES}
    place = 1
    for length in accept_lengths:
        for step, token in enumerate(tokens[place : place + length + 1]):
            entry = found[class_of(text_of(token))]
            entry[0] += 1
            entry[1] += step < length
        place += length + 1
    return found


def summed(parts: Iterable[Counts]) -> Counts:
    """Counts of several replies together."""
    whole = {name: [0, 0] for name in CLASSES}
    for part in parts:
        for name, (emitted, drafted) in part.items():
            whole[name][0] += emitted
            whole[name][1] += drafted
    return whole


DEPENDENCES = {"image": "the picture", "copy": "the question", "template": "neither"}
"""What a token of a reference answer depends on."""


def kinds_of(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int, str]], shift: int = 0) -> list[str]:
    """The dependence of every token of a labelled answer, see `mmspec.miniworld.facts.QA.spans`.

    A token that overlaps several spans belongs to the one that only the picture determines, else to the copied one.
    Args: offsets: start and end of each token in the text. shift: where the answer begins in that text.
    """
    found = []
    for start, end in offsets:
        touched = {kind for begin, stop, kind in spans if start < stop + shift and begin + shift < end}
        found.append(next((kind for kind in ("image", "copy") if kind in touched), "template"))
    return found
