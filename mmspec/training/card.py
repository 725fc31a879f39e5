"""The model card of a trained drafter, written from the run's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

import mmspec
from mmspec.training.answers import Answered
from mmspec.training.cost import last_cost
from mmspec.training.course import Course
from mmspec.training.loop import Epochs
from mmspec.training.recipe import Recipe
from mmspec.training.updates import answers_read

ASKED = {
    "vlm": "picture.png QUESTION",
    "text": "QUESTION",
    "image": "CAPTION --out picture.png",
    "speech": "SENTENCE --out speech.wav",
}
"""What `mmspec generate` takes from models of each modality."""
LIMITS = (
    "It fits this target only; another target, or the same one with other weights, accepts less or refuses it. With a "
    "lossless acceptance rule the drafter never changes what the target says, only how fast. The figures hold for "
    "questions like those of the training data; on others fewer tokens are accepted."
)


@dataclass(frozen=True)
class Trained:
    """What a card tells of.

    target, modality: the target's name, and what it does. together: the methods that the run trained, this one
    included. rows: what was there to train on. history: the Trainer's: losses, cost, and this method's figures of
    validation. measured: how many held-out questions tau was measured on. served: see `mmspec.training.answers.served`.
    best: the step whose weights were taken; 0 where nobody chose.
    """

    target: str
    modality: str
    recipe: Recipe
    course: Course
    together: Sequence[str]
    rows: Sequence[Answered]
    history: Sequence[dict[str, Any]]
    parameters: int
    measured: int
    served: bool = False
    best: int = 0


def model_card(trained: Trained) -> str:
    """The card as markdown."""
    target, recipe, course, history = trained.target, trained.recipe, trained.course, trained.history
    answers = asdict(course.answers)
    answers["answer batch"] = answers.pop("batch")  # `batch` is that of an update
    settings = {**asdict(recipe), **asdict(course), **answers, "data": shown_place(course.data)}
    del settings["answers"]
    if course.start is not None:
        settings["start"] = shown_place(course.start)
    return "\n".join([
        "---",
        f"base_model: {target}",
        "library_name: mmspec",
        f"tags: [speculative-decoding, mmspec, {recipe.method}]",
        "---",
        "",
        f"# {recipe.method} drafter for {target}",
        "",
        f"{recipe.about} {trained.parameters:,} trained parameters.",
        "",
        f"    mmspec generate {ASKED[trained.modality]} {recipe.usage.format(target=target)}",
        "",
        "## Data",
        "",
        *_data(trained),
        "",
        "## Recipe",
        "",
        f"Made by `mmspec train drafter` of mmspec {mmspec.__version__}, with these settings:",
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {value} |" for name, value in settings.items()),
        "",
        *_together(trained),
        *_losses(history),
        "",
        *_cost(recipe, course, trained.rows, history),
        "## Validation",
        "",
        *_validation(trained),
        "",
        "## Limits",
        "",
        LIMITS,
        "",
    ])  # fmt: skip


def shown_place(told: str) -> str:
    """A name or a folder as others may read it: not where it lies on the disk of who trained."""
    path = Path(told)
    if not path.is_absolute():
        return told
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def millions(*models: nn.Module) -> float:
    """How many million parameters models have together."""
    return sum(weight.numel() for model in models for weight in model.parameters()) / 1e6


def figure_list(figures: Mapping[str, float], digits: int = 3) -> str:
    """What was measured, as markdown."""
    return "\n".join(f"- {name.replace('_', ' ')}: {value:.{digits}f}" for name, value in figures.items())


def _data(trained: Trained) -> list[str]:
    course = trained.course
    steps = last_cost(trained.history).get("step", trained.recipe.steps)
    rows = trained.rows[: answers_read(trained.recipe, course, steps)]  # their order is that of the first epoch
    tokens = sum(len(row.answer) for row in rows)
    by = "the data's own"
    if course.answers.author == "target":
        greedy = sum(row.temperature == 0 for row in rows)
        how = "as its checkpoint says" if trained.served else "at temperature 1"
        by = f"the target's, {greedy:,} of them greedy and {len(rows) - greedy:,} sampled {how}"
    return [f"{len(rows):,} questions of `{shown_place(course.data)}`; the answers ({tokens:,} tokens) are {by}."]


def _together(trained: Trained) -> list[str]:
    """Whose figures the loss and the cost are, if not this drafter's alone."""
    others = [method for method in trained.together if method != trained.recipe.method]
    return (
        [f"Trained together with {', '.join(others)}: losses and cost are those of all of them.", ""] if others else []
    )


def _losses(history: Sequence[dict[str, Any]]) -> list[str]:
    losses = [entry for entry in history if "loss" in entry]
    return [f"Loss at step {entry['step']}: {float(entry['loss']):.4f}." for entry in (losses[:1] + losses[1:][-1:])]


def _cost(recipe: Recipe, course: Course, rows: Sequence[Answered], history: Sequence[dict[str, Any]]) -> list[str]:
    """What the run took, for all drafters that it trained."""
    spent = last_cost(history)
    if not spent:
        return []
    seen = Epochs(rows, answers_read(recipe, course, spent["step"]), recipe.seed)
    tokens = sum(len(seen[place][1].answer) for place in range(len(seen)))
    return [
        "## Cost",
        "",
        f"{tokens:,} tokens of answers in {spent['step']:,} updates took {spent['seconds'] / 60:.1f} minutes on "
        f"{spent['device']}, validation included, the making of the answers not; peak memory "
        f"{spent['peak_bytes'] / 2**30:.1f} GB, the target's weights included.",
        "",
    ]


def _validation(trained: Trained) -> list[str]:
    history, served = trained.history, trained.served
    taus = {"tau_t1": "as its checkpoint samples"} if served else {"tau_t0": "greedy", "tau_t1": "temperature 1"}
    measured = [one for one in history if taus.keys() <= one.keys()]
    return [
        f"tau, tokens per target verification (bonus included, prefill excluded), on {trained.measured} held-out "
        "questions, with the exact rule and the default draft:",
        *([f"The weights are those of step {trained.best}, the best."] if trained.best else []),
        "",
        f"| step | {' | '.join(taus.values())} |",
        f"|---|{'---|' * len(taus)}",
        *(f"| {one['step']} | {' | '.join(f'{one[tau]:.2f}' for tau in taus)} |" for one in measured),
    ]
