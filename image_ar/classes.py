"""Prompts that are classes: their numbers and names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mmspec.errors import InputError, shorten, unknown_name
from mmspec.safe_files import read_json


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
    """The classes that texts name, by number or name. Args: count: how many there are."""
    numbers = {name.lower(): number for number, name in processor.names.items()}
    found = []
    for text in texts:
        word = text.strip().lower()
        number = int(word) if re.fullmatch(r"[0-9]{1,9}", word) else numbers.get(word)
        if number is None and numbers:
            raise unknown_name("class", text, numbers, f"a number from 0 to {count - 1} will also do")
        if number is None or number >= count:
            raise InputError(f"{shorten(text)} is no class of this model: give a number from 0 to {count - 1}")
        found.append(number)
    return found
