"""Prompts that are classes: their numbers and names."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from mmspec.errors import InputError, shorten, unknown_name
from mmspec.safe_files import read_json

EXAMPLES = ("0", "1", "2", "3")
"""Prompts to begin with, classes that every model has."""


class Classes:
    """The names of classes, {number: name}, in the place of a tokenizer."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names

    @classmethod
    def from_pretrained(cls, folder: Path, **kwargs: Any) -> Classes:
        """Read `id2label` of a folder's configuration; placeholder names count as none."""
        found = read_json(Path(folder) / "config.json").get("id2label") or {}
        return cls({int(number): name for number, name in found.items() if not name.startswith("LABEL_")})


def class_numbers(processor: Classes, texts: list[str], count: int) -> list[int]:
    """The classes that texts name, by number or name. Args: count: how many there are.

    Raises: InputError: a number that is none, or a name of several classes. UnknownNameError: no class has the name.
    """
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, name in processor.names.items():
        numbers[name.lower()].append(number)
    found = []
    for text in texts:
        word = text.strip().lower()
        known = [int(word)] if re.fullmatch(r"[0-9]{1,9}", word) else numbers.get(word, [])
        if not known and numbers:
            raise unknown_name("class", text, numbers, f"a number from 0 to {count - 1} will also do")
        if len(known) > 1:
            raise InputError(f"{shorten(text)} names several classes: give a number, {' or '.join(map(str, known))}")
        if not known or known[0] >= count:
            raise InputError(f"{shorten(text)} is no class of this model: give a number from 0 to {count - 1}")
        found += known
    return found
