"""Sentences to speak: what is said about the synthetic world, one sentence at a time, no sentence in two splits."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator

from mmspec.errors import InputError
from mmspec.miniworld.language import questions
from mmspec.miniworld.scenes import draw_facts
from mmspec.speech.text import spoken

SPLITS = {"train": range(0, 94), "dev": range(94, 97), "test": range(97, 100)}
"""Hundredths of all sentences, by their hash: the same sentence is always in the same split."""
WORDS = range(3, 13)
LONGEST = 72
"""Characters of a sentence as it is spoken."""


def sentences(split: str, count: int, seed: int = 0) -> list[str]:
    """Different sentences of a split, as they are written for the model. Raises: InputError: a count below 1."""
    if count < 1:
        raise InputError(f"{count} sentences are asked for: 1 or more are needed")
    found: dict[str, None] = {}
    for sentence in _all(f"speech/{split}/{seed}"):
        if _bucket(sentence) in SPLITS[split]:
            found.setdefault(sentence)
        if len(found) == count:
            return list(found)
    raise AssertionError  # the stream has no end


def _all(seed: str) -> Iterator[str]:
    index = 0
    while True:
        facts = draw_facts(random.Random(f"{seed}/{index}/facts"))
        for qa in questions(facts, random.Random(f"{seed}/{index}/language")):
            for part in re.split(r"(?<=[.?!]) ", f"{qa.question} {qa.answer}"):
                try:
                    plain = spoken(part)
                except InputError:
                    continue
                if len(plain.split()) in WORDS and len(plain) <= LONGEST:
                    yield plain
        index += 1


def _bucket(sentence: str) -> int:
    return int.from_bytes(hashlib.sha256(sentence.encode()).digest()[:4], "big") % 100
