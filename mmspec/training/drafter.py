"""Trains drafters for a target, from questions to folders that `mmspec.load(drafter=...)` takes.

    questions -> answers (shards) -> warm-up on the data's own answers (spd) -> training with validation -> drafter
    and card

Everything that takes time is kept in the run folder and taken up again by the same command: shards of answers, shared
by all drafters of a target, and the Trainer's checkpoints, apart for every recipe. Several processes (`accelerate
launch`) share the answers and every update's batch; the first of them measures and writes.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback

from mmspec.checkpoints import fingerprint, save_drafter
from mmspec.errors import InputError, unknown_name
from mmspec.registry import modalities, resolve
from mmspec.safe_files import read_json
from mmspec.training.acceptance import measured_shares
from mmspec.training.answers import Answered, AnswerOptions, collect, prepare
from mmspec.training.card import model_card
from mmspec.training.cost import Cost
from mmspec.training.course import Course
from mmspec.training.data import open_data, warm_up_data
from mmspec.training.dflash import DFlashRecipe
from mmspec.training.eagle import Eagle1Recipe, EagleRecipe, HassRecipe
from mmspec.training.eagle3 import Eagle3Recipe
from mmspec.training.folders import run_folder, write_whole
from mmspec.training.kangaroo import KangarooRecipe
from mmspec.training.learner import Learner, LearnerTrainer
from mmspec.training.loop import Epochs, collate, last_checkpoint, training_arguments
from mmspec.training.medusa import HydraPlusRecipe, HydraRecipe, MedusaRecipe
from mmspec.training.processes import group, leader_first, told, wait
from mmspec.training.recipe import Recipe
from mmspec.training.spd import SpdRecipe
from mmspec.training.steps import HeadRecipe
from mmspec.training.store import Store, say_what_is_kept, states_size
from mmspec.training.validation import Validation, best_step, exhausted, measure

ALL: tuple[type[Recipe], ...] = (
    EagleRecipe,
    Eagle1Recipe,
    Eagle3Recipe,
    HassRecipe,
    MedusaRecipe,
    HydraRecipe,
    HydraPlusRecipe,
    KangarooRecipe,
    DFlashRecipe,
    SpdRecipe,
)
RECIPES: dict[str, type[Recipe]] = {recipe.method: recipe for recipe in ALL}


def find_recipe(method: str, modality: str | None = None) -> type[Recipe]:
    """The recipe of a method: that of the target's modality if it has its own, else one of those here or another
    modality's. Raises UnknownNameError for one that is not trained."""
    own = modalities("recipes")
    serving = own.get(method, [])
    if method in RECIPES and modality not in serving:
        return RECIPES[method]
    if not serving:
        raise unknown_name("trainable drafter", method, {*RECIPES, *own})
    found: Any = resolve("recipes", method, modality if modality in serving else serving[0])
    return found


def train_drafter(pipe: Any, recipe: Recipe, course: Course, out: Path, run: Path, name: str) -> dict[str, Any]:
    """`train_drafters` for a single one."""
    return train_drafters(pipe, [recipe], course, [out], run, name)[recipe.method]


def train_drafters(
    pipe: Any, recipes: Sequence[Recipe], course: Course, outs: Sequence[Path], run: Path, name: str
) -> dict[str, dict[str, Any]]:
    """Train one drafter per recipe, all on the same forwards of the target, and save each to its folder of `outs`.

    Args: pipe: a `mmspec.Pipeline` of the target without a drafter. run: folder of shards and checkpoints. name: of the
        target, for the cards.
    Returns: by method, the figures of the last validation, or of the best one where training may stop early.
    Raises: InputError: data that cannot be used, or recipes that cannot be trained together. MismatchError: `run` holds
        the answers of another target, or others.
    """
    check_together(recipes)
    share(recipes[0].batch)
    lead, target, model = recipes[0], pipe.target, pipe.target.model
    for recipe in recipes:
        recipe.check(target)
    questions, held_out = open_data(course.data, course.questions, course.held_out, lead.seed, target.modality)
    marks = {**fingerprint(target), "weights": weights_digest(model)}
    answers = {"data": questions.name, "questions": len(questions), **asdict(course.answers)}
    described = asdict(lead) if len(recipes) == 1 else {recipe.method: asdict(recipe) for recipe in recipes}
    together = "+".join(recipe.method for recipe in recipes)
    how = {"accumulate": course.accumulate, "bf16": course.bf16}
    with leader_first():
        home = run_folder(run / together, {"target": marks, "answers": answers, "recipe": described, **how})

    rows = collect(pipe, questions, course.answers, run / f"answers-{course.answers.author}", marks)
    if not rows:
        raise InputError(f"no answer to {course.data} is longer than two tokens: there is nothing to draft")
    nets = {recipe.method: recipe.build(target, rows).to(model.device) for recipe in recipes}
    if lead.warm_steps:
        warmed = Learner(nets, [lead.loss(nets[lead.method], target, None)])
        warm = warm_up_data(course.data, lead.warm_questions, lead.seed)
        own = AnswerOptions(author="data", max_new_tokens=course.answers.max_new_tokens)
        warm_rows = collect(pipe, warm, own, run / "answers-warm", marks)
        _train(lead, course, warmed, warm_rows, lead.warm_steps, home / "warm", [])

    inputs = prepare(pipe, [held_out[index] for index in range(len(held_out))])
    most = course.answers.max_new_tokens

    def drafter(recipe: Recipe) -> Any:
        return recipe.drafter(copy.deepcopy(nets[recipe.method]).to(model.dtype))

    def figures() -> list[dict[str, Any]]:
        if not group().is_main_process:
            return told([])
        measured = [measure(pipe, drafter(recipe), inputs, most, recipe.seed) for recipe in recipes]
        return told([{"method": recipe.method, **one} for recipe, one in zip(recipes, measured, strict=True)])

    taps = {tap for recipe in recipes for tap in recipe.taps(nets[recipe.method])}
    features = lead.features_class(pipe, questions, sorted(taps), int(course.memory * 2**30))
    if course.disk:
        kept = {"target": marks, "answers": answers, "taps": list(features.taps)}
        with leader_first():
            place = run_folder(run / "features", kept)
        features.store = Store(place, int(course.disk * 2**30), group().num_processes)
    size = states_size(rows, len(features.taps), target.hidden_size, model.dtype.itemsize)
    say_what_is_kept(size, *(int(part * 2**30) for part in (course.memory, course.disk)))
    learner = Learner(nets, [recipe.loss(nets[recipe.method], target, features) for recipe in recipes])
    best = Best(learner, home / "best.safetensors")
    validation = Validation(figures, course.validate_every, course.patience, best.keep)
    with frozen(model):
        history = _train(lead, course, learner, rows, lead.steps, home, [validation, Cost(model.device)])
    if course.patience:
        best.take()
        history = [entry for entry in history if "method" not in entry or entry["step"] <= best_step(history)]

    for recipe, out in zip(recipes, outs, strict=True):
        if not group().is_main_process:
            break
        net = nets[recipe.method]
        made: Any = recipe.drafter(net.to(torch.bfloat16))
        if getattr(made, "static", False):
            made.shares = measured_shares(pipe, drafter(recipe), inputs, most, recipe.seed)
        save_drafter(made, out, target)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        own_history = [entry for entry in history if entry.get("method", recipe.method) == recipe.method]
        write_whole(out / "README.md", model_card(name, recipe, course, rows, own_history, parameters))
    wait()
    last = {entry["method"]: entry for entry in history if "method" in entry}
    return {recipe.method: last.get(recipe.method, {}) for recipe in recipes}


def check_together(recipes: Sequence[Recipe]) -> None:
    """Raise InputError unless the recipes can share their batches: the same steps of the same size, and no warm-up."""
    if len({recipe.method for recipe in recipes}) < len(recipes):
        raise InputError("a method can be trained once per run: name each of them once")
    if len(recipes) > 1 and not all(isinstance(recipe, HeadRecipe) for recipe in recipes):
        alone = next(recipe.method for recipe in recipes if not isinstance(recipe, HeadRecipe))
        raise InputError(f"{alone} does not learn from the target's features: train it in a run of its own")
    for field in ("steps", "batch", "rate", "seed"):
        if len({getattr(recipe, field) for recipe in recipes}) > 1:
            values = ", ".join(f"{recipe.method} {getattr(recipe, field)}" for recipe in recipes)
            raise InputError(f"drafters that are trained together need the same {field} ({values}): give --{field}")


def share(batch: int) -> int:
    """How many answers of an update each process takes. Raises: InputError: they cannot be shared equally."""
    processes = group().num_processes
    if batch % processes:
        raise InputError(f"{batch} answers per update cannot be shared by {processes} processes: give another --batch")
    return batch // processes


@dataclass
class Best:
    """The best weights of a learner so far, in a file that is written whole or not at all."""

    learner: Learner
    file: Path

    def keep(self) -> None:
        """These are the best."""
        if group().is_main_process:
            temporary = self.file.with_suffix(".tmp")
            save_file({name: weight.contiguous() for name, weight in self.learner.state_dict().items()}, temporary)
            os.replace(temporary, self.file)

    def take(self) -> None:
        """Back to the best."""
        wait()
        self.learner.load_state_dict(load_file(self.file))


def _train(
    recipe: Recipe,
    course: Course,
    learner: Learner,
    rows: list[Answered],
    steps: int,
    folder: Path,
    callbacks: list[TrainerCallback],
) -> list[dict[str, Any]]:
    """Train `learner` in place, from where `folder` left off; returns the Trainer's history."""
    left = last_checkpoint(folder)
    before = read_json(Path(left, "trainer_state.json"))["log_history"] if left else []
    if exhausted(before, course.patience):
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
        train_dataset=Epochs(rows, steps * recipe.batch * course.accumulate, recipe.seed),
        data_collator=collate,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=left)
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
