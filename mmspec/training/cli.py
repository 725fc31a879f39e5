"""`mmspec train`: drafters for a target, and the bundled target itself.

The options of the command are read from the recipes' own defaults; what is not given stays as the recipe has it.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Train drafters, and the bundled target again.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def drafter(
    target: Annotated[
        str, typer.Option(help="Bundled name, folder or hub id of the model to draft for.")
    ] = "smolvlm-mini",
    method: Annotated[
        str,
        typer.Option(
            help="eagle, eagle2, eagle3, hass, medusa, hydra, hydra++, kangaroo, dflash or spd. Several, as in "
            "eagle2,medusa, learn from the same forwards of the target (spd learns alone)."
        ),
    ] = "eagle2",
    data: Annotated[
        str, typer.Option(help='"miniworld", or a folder with *.jsonl lines {"image": "a.png", "prompt": "..."}.')
    ] = "miniworld",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the drafter; of several, folder of their folders. [default: RUN/METHOD-drafter]"),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Folder of answers and checkpoints; reused. [default: runs/drafters/TARGET]")
    ] = None,
    questions: Annotated[
        int | None, typer.Option(help="How many. [default: 3000 of miniworld, all of a folder]")
    ] = None,
    answers: Annotated[str, typer.Option(help='Whose: "target" (regenerated) or "data" (the data\'s own).')] = "target",
    sampled: Annotated[
        float, typer.Option(help="Share of regenerated answers at temperature 1; others are greedy.")
    ] = 0.5,
    max_new_tokens: Annotated[int, typer.Option(help="Where a regenerated answer is cut.")] = 160,
    answer_batch: Annotated[int, typer.Option(help="Questions that the target answers together.")] = 32,
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    batch: Annotated[int | None, typer.Option(help="Answers per update.")] = None,
    rate: Annotated[float | None, typer.Option(help="Peak learning rate of matrices.")] = None,
    warm_steps: Annotated[int | None, typer.Option(help="spd: updates on the data's own answers before.")] = None,
    warm_questions: Annotated[int | None, typer.Option(help="spd: questions of that warm-up.")] = None,
    unroll: Annotated[
        int | None, typer.Option(help="eagle, eagle2, eagle3, hass: steps on the head's own estimates.")
    ] = None,
    decay: Annotated[float | None, typer.Option(help="Weight of a level relative to the one before.")] = None,
    feature_weight: Annotated[
        float | None, typer.Option(help="eagle, eagle2, hass: of the distance to the target's features.")
    ] = None,
    law_weight: Annotated[
        float | None, typer.Option(help="eagle, eagle2, hass, spd: of the cross-entropy to the target's law.")
    ] = None,
    token_weight: Annotated[float | None, typer.Option(help="spd: of the cross-entropy to the tokens.")] = None,
    top: Annotated[int | None, typer.Option(help="hass: how many of the likeliest tokens count once more.")] = None,
    top_weight: Annotated[float | None, typer.Option(help="hass: how much they count.")] = None,
    noise: Annotated[
        float | None, typer.Option(help="eagle, eagle2, hass: on the features, relative to their size.")
    ] = None,
    intermediate: Annotated[
        int | None, typer.Option(help="eagle to eagle3, hass, dflash: width of the MLP. [default: the target's]")
    ] = None,
    words: Annotated[int | None, typer.Option(help="eagle3: size of the draft vocabulary.")] = None,
    levels: Annotated[int | None, typer.Option(help="medusa, hydra, hydra++: heads, one per level.")] = None,
    exit_layer: Annotated[int | None, typer.Option(help="kangaroo: layers of the target that draft.")] = None,
    block: Annotated[int | None, typer.Option(help="dflash: slots of a block.")] = None,
    anchors: Annotated[int | None, typer.Option(help="dflash: blocks per answer and update.")] = None,
    layers: Annotated[
        int | None, typer.Option(help="spd, dflash: of the drafter; medusa, hydra, hydra++: of each head.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="spd: of the Llama.")] = None,
    heads: Annotated[int | None, typer.Option(help="spd: of the Llama.")] = None,
    held_out: Annotated[int, typer.Option(help="Questions for validation.")] = 16,
    validate_every: Annotated[int, typer.Option(help="Updates between measurements of tau.")] = 100,
    save_every: Annotated[int, typer.Option(help="Updates between checkpoints.")] = 50,
    accumulate: Annotated[int, typer.Option(help="Batches per update.")] = 1,
    bf16: Annotated[bool, typer.Option("--bf16", help="Train in mixed precision.")] = False,
    memory: Annotated[float, typer.Option(help="GB of the target's hidden states kept in memory.")] = 4.0,
    disk: Annotated[float, typer.Option(help="GB of them kept on disk, in the run's folder.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of weights, data, noise and answers.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... [default: the model's own choice]")] = None,
) -> None:
    """Train drafters and write each, with a model card, to a folder; the same command goes on where it was interrupted.

    Example: mmspec train drafter --target smolvlm-mini --method eagle2 --out my-drafter
    """
    from mmspec.training.loop import require_training

    require_training()
    import torch

    import mmspec
    from mmspec.checkpoints import quiet
    from mmspec.training.answers import AnswerOptions
    from mmspec.training.course import Course
    from mmspec.training.drafter import find_recipe, train_drafters

    chosen = [find_recipe(name.strip()) for name in method.split(",")]
    given = {
        "steps": steps,
        "batch": batch,
        "rate": rate,
        "warm_steps": warm_steps,
        "warm_questions": warm_questions,
        "unroll": unroll,
        "decay": decay,
        "feature_weight": feature_weight,
        "law_weight": law_weight,
        "token_weight": token_weight,
        "top": top,
        "top_weight": top_weight,
        "noise": noise,
        "intermediate": intermediate,
        "words": words,
        "levels": levels,
        "exit_layer": exit_layer,
        "block": block,
        "anchors": anchors,
        "layers": layers,
        "width": width,
        "heads": heads,
    }
    recipes = [recipe(seed=seed, **options) for recipe, options in zip(chosen, _fitting(chosen, given), strict=True)]
    how = AnswerOptions(author=answers, sampled=sampled, max_new_tokens=max_new_tokens, batch=answer_batch, seed=seed)
    course = Course(data, questions, held_out, validate_every, save_every, accumulate, bf16, memory, disk, answers=how)
    pipe = mmspec.load(target, drafter="none", device=device)
    name = Path(target).name
    home = run or Path("runs/drafters") / name
    folders = [home / f"{recipe.method}-drafter" if out is None else out / recipe.method for recipe in recipes]
    if out is not None and len(recipes) == 1:
        folders = [out]
    torch.set_flush_denormal(True)  # they slow a CPU down, and are nothing to a gradient
    with quiet():  # the Trainer shows its own progress
        figures = train_drafters(pipe, recipes, course, folders, home, name)
    for recipe, folder in zip(recipes, folders, strict=True):
        last = figures[recipe.method]
        typer.echo(f"{folder}: tau {last['tau_t0']:.2f} greedy, {last['tau_t1']:.2f} at temperature 1", err=True)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def target(context: typer.Context, name: Annotated[str, typer.Argument(help="Bundled name.")]) -> None:
    """Train a bundled checkpoint from nothing. Its options are listed by: mmspec train target smolvlm-mini --help

    Example: mmspec train target smolvlm-mini --out my-mini
    """
    from mmspec.registry import entries, resolve
    from mmspec.training.loop import require_training

    require_training()
    modality = {key.partition("/")[2]: key.partition("/")[0] for key in entries("trainers")}
    trainer: Any = resolve("trainers", name, modality.get(name, "vlm"))
    trainer(context.args)


def _fitting(recipes: list[Any], given: dict[str, Any]) -> list[dict[str, Any]]:
    """For each recipe the given options that it has; those that none of them has are refused."""
    from mmspec.errors import InputError

    chosen = {name: value for name, value in given.items() if value is not None}
    known = [{field.name for field in fields(recipe)} for recipe in recipes]
    wrong = sorted(set(chosen) - set().union(*known))
    if wrong:
        names = ", ".join("--" + name.replace("_", "-") for name in wrong)
        methods = " or ".join(recipe.method for recipe in recipes)
        raise InputError(f"{names}: not an option of the method {methods}")
    return [{name: value for name, value in chosen.items() if name in own} for own in known]
