"""Trains drafters for a target, from questions to folders that `mmspec.load(drafter=...)` takes.

    questions -> answers (shards) -> warm-up on the data's own answers (spd) -> training with validation -> drafter
    and card

Everything that takes time is kept in the run folder and taken up again by the same command: shards of answers, shared
by all drafters of a target, and the Trainer's checkpoints, apart for every recipe. Several processes (`accelerate
launch`) share the answers and every update's batch; the first of them measures and writes.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from mmspec.checkpoints import bundled, check_successor, fingerprint, weights_digest
from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.precision import placed
from mmspec.errors import InputError, MismatchError, unknown_name
from mmspec.registry import ANY, modalities, resolve
from mmspec.safe_files import write_whole
from mmspec.spread import Here, Spread
from mmspec.training.answers import Answered, AnswerOptions, begun_with, collect, law_of, served
from mmspec.training.asking import held_out_batches
from mmspec.training.card import Trained, model_card
from mmspec.training.cost import Cost
from mmspec.training.course import Course
from mmspec.training.data import MINIWORLD, as_many_as_read, has_answers, open_data, warm_up_data
from mmspec.training.features import Features
from mmspec.training.folders import run_folder
from mmspec.training.learner import Learner
from mmspec.training.processes import group, leader_first, told, wait
from mmspec.training.questions import Questions
from mmspec.training.recipe import Recipe
from mmspec.training.shares import measured_shares
from mmspec.training.start import begin, digest, shaped
from mmspec.training.steps import HeadRecipe
from mmspec.training.store import Store, say_what_is_kept
from mmspec.training.updates import Best, answers_read, frozen, share, train
from mmspec.training.validation import Validation, best_step, measure

logger = logging.getLogger(__name__)


def find_recipe(method: str, modality: str | None = None) -> type[Recipe]:
    """The recipe of a method: that of the target's modality if it has its own, else the one for any.

    Args: modality: None takes the recipe for any, or else some modality's.
    Raises: UnknownNameError: it is not trained. MismatchError: it is not for targets of this modality.
    """
    known = modalities("recipes")
    if method not in known:
        raise unknown_name("trainable drafter", method, known)
    serving = [each for each in (modality, ANY) if each in known[method]]
    if modality is not None and not serving:
        raise MismatchError(f"{method} is trained for {' and '.join(known[method])} models, not for {modality} models")
    found: Any = resolve("recipes", method, (serving or known[method])[0])
    return found


def train_drafters(
    pipe: Any,
    recipes: Sequence[Recipe],
    course: Course,
    outs: Sequence[Path],
    run: Path,
    name: str,
    spread: Spread | None = None,
) -> dict[str, dict[str, Any]]:
    """Train one drafter per recipe, all on the same forwards of the target, and save each to its folder of `outs`.

    Args: pipe: a `mmspec.Pipeline` of the target without a drafter. run: folder of shards and checkpoints. name: of the
        target, for the cards and a warning. spread: where the target answers, by default here; left when it has.
    Returns: by method, the figures of the last validation, or of the best one where training may stop early.
    Raises: InputError: data that cannot be used, or recipes that cannot be trained together. MismatchError: `run` holds
        the answers of another target, or others, or a folder of `outs` a drafter of another target.
    """
    check_together(recipes)
    share(recipes[0].batch)
    lead, target, model = recipes[0], pipe.target, pipe.target.model
    for recipe, out in zip(recipes, outs, strict=True):
        recipe.check(target)
        recipe.check_place(pipe, out)
        check_successor(out, target)
    voices = list(getattr(pipe.processor, "voices", ()))
    asked_for = (course.data, course.questions, course.held_out, lead.seed)
    questions, held_out = open_data(*asked_for, target.modality, voices, target.chats)
    found = len(questions)
    questions, shards = to_answer(questions, lead, course, run)
    if course.data == MINIWORLD and name not in bundled() and group().is_main_process:
        logger.warning(
            "the questions are about a synthetic world: unless %s was trained on it, name your own with --data", name
        )
    if lead.warm_steps and not has_answers(questions):
        raise InputError(
            f"{lead.method} begins with the data's own answers, and {course.data} has none: give --warm-steps 0"
        )
    inputs, left_out = held_out_batches(pipe, held_out, course.answers.batch)
    begun: dict[str, Any] = {}
    if course.start is not None:
        starts = begin(course.start, [recipe.method for recipe in recipes], target)
        begun = {recipe.method: recipe.begin(starts[recipe.method], target) for recipe in recipes}
        recipes = [shaped(recipe, begun[recipe.method]) for recipe in recipes]
        lead = recipes[0]
    marks = {**fingerprint(target), "weights": weights_digest(model)}
    law = law_of(target, course.answers)
    answers = {"data": questions.name, "questions": found, **asdict(course.answers), **law}
    described = asdict(lead) if len(recipes) == 1 else {recipe.method: asdict(recipe) for recipe in recipes}
    together = "+".join(recipe.method for recipe in recipes)
    how = {"accumulate": course.accumulate, "bf16": course.bf16}
    of_start = {"start": {method: digest(net) for method, net in begun.items()}} if begun else {}
    # taus of other questions do not compare
    measured_on: dict[str, Any] = {"data": held_out.name, "questions": len(held_out)}
    if left_out:
        measured_on["left_out"] = left_out
    settings = {"target": marks, "answers": answers, "held_out": measured_on, "recipe": described, **how, **of_start}
    with leader_first():
        home = run_folder(run / together, settings)

    # the data's own first: they cost nothing, and the target's much
    own = own_answers(pipe, lead, course, run / "answers-warm", marks) if lead.warm_steps else []
    with spread or Here(pipe) as workers:
        rows = collect(pipe, questions, course.answers, shards, marks, workers)
    if not rows:
        raise InputError(f"no answer to {course.data} is longer than two tokens: there is nothing to draft")
    nets: dict[str, Any] = {}
    for recipe in recipes:
        net = recipe.suit(begun[recipe.method], target, rows) if begun else recipe.build(target, rows)
        nets[recipe.method] = net.to(model.device)
    if lead.warm_steps:
        warmed = Learner(nets, [lead.loss(nets[lead.method], target, None)])
        train(lead, course, warmed, own, lead.warm_steps, home / "warm", [])

    asked = sum(len(batch["input_ids"]) for batch in inputs)
    most = course.answers.max_new_tokens

    def drafting(recipe: Recipe) -> tuple[Any, Any]:
        net = placed(copy.deepcopy(nets[recipe.method]), model.device, model.dtype)
        return recipe.serving(pipe, net), recipe.drafter(net)

    def figures() -> list[dict[str, Any]]:
        if not group().is_main_process:
            return told([])
        measured = [measure(*drafting(recipe), inputs, most, recipe.seed) for recipe in recipes]
        return told([{"method": recipe.method, **one} for recipe, one in zip(recipes, measured, strict=True)])

    taps = {tap for recipe in recipes for tap in recipe.taps(nets[recipe.method])}
    context = any(recipe.context for recipe in recipes)
    features = lead.features_class(pipe, questions, sorted(taps), int(course.memory * 2**30), context=context)
    beside = sum(recipe.beside(target) for recipe in recipes)
    keep_states(features, rows, course, run / "features", {"target": marks, "answers": answers}, beside)
    # curricula are shares of the run, whose positions count all batches of an update
    taught = [replace(recipe, batch=recipe.batch * course.accumulate) for recipe in recipes]
    learner = Learner(nets, [recipe.loss(nets[recipe.method], target, features) for recipe in taught])
    best = Best(learner, home / "best.safetensors")
    settled = max(recipe.settled() for recipe in recipes)
    validation = Validation(figures, course.validate_every, course.patience, best.keep, settled)
    with frozen(model):
        history = train(lead, course, learner, rows, lead.steps, home, [validation, Cost(model.device)], settled)
    taken = best_step(history, settled) if course.patience else 0
    if taken:
        best.take()
        history = [entry for entry in history if "method" not in entry or entry["step"] <= taken]

    for recipe, out in zip(recipes, outs, strict=True):
        if not group().is_main_process:
            break
        net = nets[recipe.method]
        made: Any = recipe.drafter(placed(net, model.device, torch.bfloat16))
        if isinstance(made, HeadDrafter) and (made.static or made.measured):
            made.shares = measured_shares(*drafting(recipe), inputs, most, recipe.seed)
        recipe.save(recipe.serving(pipe, net), made, out)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        own_history = [entry for entry in history if entry.get("method", recipe.method) == recipe.method]
        trained = Trained(
            name,
            target.modality,
            recipe,
            course,
            list(nets),
            rows,
            own_history,
            parameters,
            asked,
            served(target),
            taken,
        )
        write_whole(out / "README.md", model_card(trained))
    wait()
    last = {entry["method"]: entry for entry in history if "method" in entry}
    return {recipe.method: last.get(recipe.method, {}) for recipe in recipes}


def to_answer(questions: Questions, recipe: Recipe, course: Course, run: Path) -> tuple[Questions, Path]:
    """Those of the questions that a run answers, and the folder of their answers. Where they are mixed it is one of
    their own, since of more or fewer questions others would be in it."""
    ordered = run / f"answers-{course.answers.author}"
    mixed = ordered.with_name(f"{ordered.name}-{len(questions)}")
    batch = course.answers.batch
    # whole shards: a run of other length adds to them, and makes none of them again
    count = math.ceil(answers_read(recipe, course, recipe.steps) / batch) * batch
    seed = None if course.data == MINIWORLD else recipe.seed
    chosen = as_many_as_read(questions, count, seed, [begun_with(ordered), begun_with(mixed)])
    return chosen, ordered if chosen.name == questions.name else mixed


def own_answers(pipe: Any, recipe: Recipe, course: Course, folder: Path, marks: dict[str, Any]) -> list[Answered]:
    """The data's own answers, for the warm-up of a recipe.

    Args: folder: for shards. marks: what tells the target from others.
    Raises: InputError: there is nothing to learn from them.
    """
    count = min(recipe.warm_questions, answers_read(recipe, course, recipe.warm_steps))
    questions = warm_up_data(course.data, count, course.held_out, recipe.seed)
    options = AnswerOptions(author="data", max_new_tokens=course.answers.max_new_tokens)
    try:
        rows = collect(pipe, questions, options, folder, marks)
    except InputError as error:
        raise InputError(f"the warm-up on the data's own answers (--warm-steps 0 leaves it out): {error}") from error
    if not rows:
        raise InputError(f"none of {course.data}'s own answers is longer than two tokens: give --warm-steps 0")
    return rows


def keep_states(
    features: Features, rows: list[Answered], course: Course, folder: Path, described: dict[str, Any], beside: int = 0
) -> None:
    """Let hidden states be kept on disk where the course allows it, and say how much of them will be kept.

    Args: folder: for them. described: what they are of, beside the taps and whether prompts are left out. beside: bytes
        per token that are kept with them.
    """
    if course.disk:
        with leader_first():
            cut = {} if features.context else {"context": False}
            place = run_folder(folder, {**described, "taps": list(features.taps), **cut})
        features.store = Store(place, int(course.disk * 2**30), group().num_processes)
        logger.info("hidden states are stored in %s: it may be removed when no run needs them any more", place)
    size = features.size(rows) + beside * sum(len(row.ids) for row in rows)
    say_what_is_kept(size, int(course.memory * 2**30), int(course.disk * 2**30), group().num_processes)


def check_together(recipes: Sequence[Recipe]) -> None:
    """Raise InputError unless the recipes can share their batches: of different methods, all on the target's features,
    in the same steps of the same size."""
    if len({recipe.method for recipe in recipes}) < len(recipes):
        raise InputError("a method can be trained once per run: name each of them once")
    if len(recipes) > 1 and not all(isinstance(recipe, HeadRecipe) for recipe in recipes):
        alone = next(recipe.method for recipe in recipes if not isinstance(recipe, HeadRecipe))
        raise InputError(f"{alone} does not learn from the target's features: train it in a run of its own")
    for field in ("steps", "batch", "rate", "seed"):
        if len({getattr(recipe, field) for recipe in recipes}) > 1:
            values = ", ".join(f"{recipe.method} {getattr(recipe, field)}" for recipe in recipes)
            raise InputError(f"drafters that are trained together need the same {field} ({values}): give --{field}")
