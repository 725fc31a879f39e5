"""Training questions, whatever they come from (`mmspec.training.data` opens them)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mmspec.media import ImageSource

SLOT = "<image>"
"""What some data sets write into a text where a picture belongs."""
SLOTS = re.compile(rf"\s*(?:{SLOT}\s*)+")
"""Some of them, which a prompt that is one text loses: its pictures stand before it."""
Messages = list[dict[str, Any]]
"""A chat, as `mmspec.prompts.Chat` says."""


def without_slots(prompt: str) -> str:
    """A prompt as text alone; between words a slot leaves one space."""
    return SLOTS.sub(lambda slots: " " if slots.start() and slots.end() < len(prompt) else "", prompt)


def together(images: Sequence[ImageSource]) -> ImageSource | Sequence[ImageSource] | None:
    """Pictures as a question has them: several, one, or None."""
    return images if len(images) > 1 else next(iter(images), None)


def shown(prompt: str | Messages, images: Sequence[ImageSource]) -> tuple[Any, str | Messages]:
    """Pictures and prompt as a question has them: those of a chat stand in its messages.

    Args: images: those of a chat for its parts {"type": "image"}, in their order.
    """
    if isinstance(prompt, str):
        return together(images), prompt
    left = iter(images)
    return None, [
        {**turn, "content": [part if "text" in part else {**part, "image": next(left)} for part in turn["content"]]}
        for turn in prompt
    ]


def as_text(prompt: str | Messages) -> str:
    """A prompt for people to read: of a chat a line per turn, with `<image>` where a picture stands."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(
        f"{turn['role']}: {' '.join(part.get('text', SLOT) for part in turn['content'])}" for turn in prompt
    )


@dataclass(frozen=True)
class Question:
    """A prompt about a picture, or several (None: text alone), the data's own answer where there is one, and, for
    models that speak, the voice that says it (None: the model's first). A prompt that is a chat holds its pictures.
    where: its place in the data, for messages."""

    image: ImageSource | Sequence[ImageSource] | None
    prompt: str | Messages
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
