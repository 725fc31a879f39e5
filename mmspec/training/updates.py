"""The updates of a run that trains drafters: the Trainer from where it left off, the best weights, a frozen target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback

from mmspec.errors import InputError, OutOfMemoryError, out_of_memory
from mmspec.safe_files import read_json, whole
from mmspec.training.answers import Answered
from mmspec.training.course import Course
from mmspec.training.learner import Learner, LearnerTrainer
from mmspec.training.loop import Epochs, collate, last_checkpoint, training_arguments
from mmspec.training.processes import group, wait
from mmspec.training.recipe import Recipe
from mmspec.training.validation import exhausted


def share(batch: int) -> int:
    """How many answers of an update each process takes. Raises: InputError: they cannot be shared equally."""
    processes = group().num_processes
    if batch % processes:
        raise InputError(f"{batch} answers per update cannot be shared by {processes} processes: give another --batch")
    return batch // processes


def answers_read(recipe: Recipe, course: Course, steps: int) -> int:
    """How many answers that many updates read, all processes together; an answer counts each time."""
    return steps * recipe.batch * course.accumulate


@dataclass
class Best:
    """The best weights of a learner so far, in a file that is written whole or not at all."""

    learner: Learner
    file: Path

    def keep(self) -> None:
        """These are the best."""
        if group().is_main_process:
            with whole(self.file) as draft:
                save_file({name: weight.contiguous() for name, weight in self.learner.state_dict().items()}, draft)

    def take(self) -> None:
        """Back to the best."""
        wait()
        self.learner.load_state_dict(load_file(self.file))


def train(
    recipe: Recipe,
    course: Course,
    learner: Learner,
    rows: list[Answered],
    steps: int,
    folder: Path,
    callbacks: list[TrainerCallback],
    settled: int = 0,
) -> list[dict[str, Any]]:
    """Train `learner` in place, from where `folder` left off; returns the Trainer's history.

    Args: settled: see `mmspec.training.validation.best_step`.
    Raises: OutOfMemoryError: too little memory for an update, or for the held-out questions.
    """
    left = last_checkpoint(folder)
    before = read_json(Path(left, "trainer_state.json"))["log_history"] if left else []
    if exhausted(before, course.patience, settled):
        return before
    arguments = training_arguments(
        folder,
        steps=steps,
        batch=share(recipe.batch),
        rate=recipe.rate,
        seed=recipe.seed,
        use_cpu=next(learner.parameters()).device.type == "cpu",
        save_steps=course.save_every,
        gradient_accumulation_steps=course.accumulate,
        bf16=course.bf16,
    )
    trainer = LearnerTrainer(
        model=learner,
        args=arguments,
        train_dataset=Epochs(rows, answers_read(recipe, course, steps), recipe.seed),
        data_collator=collate,
        callbacks=callbacks,
    )
    try:
        trainer.train(resume_from_checkpoint=left)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"too little memory to train with {recipe.batch} answers per batch: give a smaller --batch, with "
            "--accumulate for as large an update, or a smaller --answer-batch, in which held-out questions are asked"
        ) from error
    return trainer.state.log_history


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Keeps gradients out of the target, whose head every loss goes through."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
