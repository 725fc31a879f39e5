"""What a drafter is trained on."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmspec.errors import InputError, check_least
from mmspec.training.answers import AnswerOptions


@dataclass(frozen=True)
class Course:
    """What to train on, and how often to look and to save.

    data: "miniworld", a folder, or a data set of the hub (see `mmspec.training.hub.address`). questions: None takes
    3000 of the world, all of the others. held_out: questions for validation. validate_every, save_every: updates.
    patience: validations in a row without a better tau before training stops and the best weights are taken; 0 is
    never. accumulate: batches per update. bf16: forwards of the drafter in mixed precision; its weights and their
    updates stay float32. memory, disk: gigabytes of the target's hidden states that are kept for the next epochs, in
    the computer's memory and on its disk. start: the drafter that training begins with, a folder or a hub id; of
    several drafters a folder of their folders. Its weights tell runs apart, and not their place.
    """

    data: str = "miniworld"
    questions: int | None = None
    held_out: int = 16
    validate_every: int = 100
    save_every: int = 50
    patience: int = 0
    accumulate: int = 1
    bf16: bool = False
    memory: float = 4.0
    disk: float = 0.0
    start: str | None = None
    answers: AnswerOptions = field(default_factory=AnswerOptions)

    def __post_init__(self) -> None:
        check_least(self, "questions", "held_out", "validate_every", "save_every", "accumulate")
        if self.patience < 0:
            raise InputError(f"patience={self.patience} is not valid: 0 (never stop early) or more is needed")
        if not (self.memory >= 0 and self.disk >= 0):
            raise InputError(f"memory and disk are gigabytes, 0 or more, got {self.memory} and {self.disk}")
