"""Training questions, whatever they come from (`mmspec.training.data` opens them)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mmspec.media import ImageSource


@dataclass(frozen=True)
class Question:
    """A prompt about a picture (None: text alone), the data's own answer where there is one, and, for models that
    speak, the voice that says it (None: the model's first)."""

    image: ImageSource | None
    prompt: str
    answer: str | None = None
    voice: str | None = None


class Questions(Protocol):
    """A numbered source of questions. Equal names mean equal questions at equal numbers."""

    name: str

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int) -> Question:
        """Question `index`, from 0."""
