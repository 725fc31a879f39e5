"""What a drafter is trained on."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmspec.errors import InputError
from mmspec.training.answers import AnswerOptions


@dataclass(frozen=True)
class Course:
    """What to train on, and how often to look and to save.

    data: "miniworld" or a folder. questions: None takes 3000 of the world, or all of a folder. held_out: questions for
    validation. validate_every, save_every: updates. accumulate: batches per update. bf16: forwards of the drafter in
    mixed precision; its weights and their updates stay float32. memory, disk: gigabytes of the target's hidden states
    that are kept for the next epochs.
    """

    data: str = "miniworld"
    questions: int | None = None
    held_out: int = 16
    validate_every: int = 100
    save_every: int = 50
    accumulate: int = 1
    bf16: bool = False
    memory: float = 4.0
    disk: float = 0.0
    answers: AnswerOptions = field(default_factory=AnswerOptions)

    def __post_init__(self) -> None:
        for name in ("questions", "held_out", "validate_every", "save_every", "accumulate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value} is not valid: at least 1 is needed")
        if not (self.memory >= 0 and self.disk >= 0):
            raise InputError(f"memory and disk are gigabytes, 0 or more, got {self.memory} and {self.disk}")
