"""Training questions, whatever they come from (`mmspec.training.data` opens them)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mmspec.media import ImageSource

SLOTS = re.compile(r"\s*(?:<image>\s*)+")
"""What some data sets write into a prompt where pictures belong; here pictures stand before the text."""


def without_slots(prompt: str) -> str:
    """A prompt as text alone; between words a slot leaves one space."""
    return SLOTS.sub(lambda slots: " " if slots.start() and slots.end() < len(prompt) else "", prompt)


def together(images: Sequence[ImageSource]) -> ImageSource | Sequence[ImageSource] | None:
    """Pictures as a question has them: several, one, or None."""
    return images if len(images) > 1 else next(iter(images), None)


@dataclass(frozen=True)
class Question:
    """A prompt about a picture, or several (None: text alone), the data's own answer where there is one, and, for
    models that speak, the voice that says it (None: the model's first). where: its place in the data, for messages."""

    image: ImageSource | Sequence[ImageSource] | None
    prompt: str
    answer: str | None = None
    voice: str | None = None
    where: str = field(default="", compare=False)


class Questions(Protocol):
    """A numbered source of questions. Equal names mean equal questions at equal numbers."""

    name: str
    """With a folder or a data set, where it lies, a digest of what it holds, and which of its questions these are."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int) -> Question:
        """Question `index`, from 0."""


def place_of(name: str) -> str:
    """The folder or data set in a name of questions (see `Questions`), for messages: all before the digest."""
    return re.split(r" [0-9a-f]{16}(?=$|\[|,| said by )", name)[0]
