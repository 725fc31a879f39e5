"""Trains a drafter for a target, from questions to a folder that `mmspec.load(drafter=...)` takes.

    questions -> answers (shards) -> warm-up on the data's own answers (spd) -> training with validation -> drafter
    and card

Everything that takes time is kept in the run folder and taken up again by the same command: shards of answers, shared
by all drafters of a target, and the Trainer's checkpoints, apart for every recipe.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from mmspec.checkpoints import fingerprint, save_drafter
from mmspec.errors import InputError, unknown_name
from mmspec.training.answers import Answered, AnswerOptions, collect, prepare
from mmspec.training.card import model_card
from mmspec.training.course import Course
from mmspec.training.data import open_data, warm_up_data
from mmspec.training.eagle import EagleRecipe
from mmspec.training.features import Features
from mmspec.training.folders import run_folder, write_whole
from mmspec.training.loop import Epochs, LossTrainer, collate, last_checkpoint, training_arguments
from mmspec.training.recipe import Loss, Recipe
from mmspec.training.spd import SpdRecipe
from mmspec.training.validation import Validation, measure

RECIPES: dict[str, type[Recipe]] = {recipe.method: recipe for recipe in (EagleRecipe, SpdRecipe)}


def find_recipe(method: str) -> type[Recipe]:
    """The recipe of a method. Raises UnknownNameError for one that is not trained here."""
    if method not in RECIPES:
        raise unknown_name("trainable drafter", method, RECIPES)
    return RECIPES[method]


def train_drafter(pipe: Any, recipe: Recipe, course: Course, out: Path, run: Path, name: str) -> dict[str, Any]:
    """Train, save to `out`, and return the figures of the last validation.

    Args: pipe: a `mmspec.Pipeline` of the target without a drafter. run: folder of shards and checkpoints. name: of the
        target, for the card.
    Raises: InputError: data that cannot be used. MismatchError: `run` holds the answers of another target, or others.
    """
    questions, held_out = open_data(course.data, course.questions, course.held_out, recipe.seed)
    model = pipe.target.model
    target = {**fingerprint(pipe.target), "weights": weights_digest(model)}
    answers = {"data": questions.name, "questions": len(questions), **asdict(course.answers)}
    home = run_folder(run / recipe.method, {"target": target, "answers": answers, "recipe": asdict(recipe)})

    rows = collect(pipe, questions, course.answers, run / f"answers-{course.answers.author}", target)
    if not rows:
        raise InputError(f"no answer to {course.data} is longer than two tokens: there is nothing to draft")
    net = recipe.build(pipe.target).to(model.device)
    if recipe.warm_steps:
        warm = warm_up_data(course.data, recipe.warm_questions, recipe.seed)
        own = AnswerOptions(author="data", max_new_tokens=course.answers.max_new_tokens)
        warm_rows = collect(pipe, warm, own, run / "answers-warm", target)
        loss = recipe.loss(net, pipe.target, None)
        _train(recipe, course, net, loss, warm_rows, recipe.warm_steps, home / "warm")

    inputs = prepare(pipe, [held_out[index] for index in range(len(held_out))])

    def figures() -> dict[str, float]:
        drafter = recipe.drafter(copy.deepcopy(net).to(model.dtype))
        return measure(pipe, drafter, inputs, course.answers.max_new_tokens, recipe.seed)

    loss = recipe.loss(net, pipe.target, Features(pipe, questions))
    watch = [Validation(figures, course.validate_every)]
    with frozen(model):
        history = _train(recipe, course, net, loss, rows, recipe.steps, home, watch)

    save_drafter(recipe.drafter(net.to(torch.bfloat16)), out, pipe.target)
    parameters = sum(parameter.numel() for parameter in net.parameters())
    write_whole(out / "README.md", model_card(name, recipe, course, rows, history, parameters))
    return next((entry for entry in reversed(history) if "tau_t0" in entry), {})


def _train(
    recipe: Recipe,
    course: Course,
    net: nn.Module,
    loss: Loss,
    rows: list[Answered],
    steps: int,
    folder: Path,
    callbacks: list[TrainerCallback] | None = None,
) -> list[dict[str, Any]]:
    """Train `net` in place, from where `folder` left off; returns the Trainer's history."""
    arguments = training_arguments(
        folder,
        steps=steps,
        batch=recipe.batch,
        rate=recipe.rate,
        seed=recipe.seed,
        use_cpu=next(net.parameters()).device.type == "cpu",
        save_steps=course.save_every,
    )
    trainer = LossTrainer(
        loss,
        model=net,
        args=arguments,
        train_dataset=Epochs(rows, steps * recipe.batch, recipe.seed),
        data_collator=collate,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
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


def weights_digest(model: nn.Module) -> str:
    """A short hash that changes when the weights do: of the sum of every parameter's squares."""
    sums = [float(parameter.detach().double().square().sum()) for parameter in model.parameters()]
    return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]
