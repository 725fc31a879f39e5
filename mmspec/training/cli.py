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
    method: Annotated[str, typer.Option(help="eagle2 or spd.")] = "eagle2",
    data: Annotated[
        str, typer.Option(help='"miniworld", or a folder with *.jsonl lines {"image": "a.png", "prompt": "..."}.')
    ] = "miniworld",
    out: Annotated[Path | None, typer.Option(help="Folder of the drafter. [default: RUN/METHOD-drafter]")] = None,
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
    unroll: Annotated[int | None, typer.Option(help="eagle2: steps on the head's own estimates.")] = None,
    decay: Annotated[float | None, typer.Option(help="eagle2: weight of a step relative to the one before.")] = None,
    feature_weight: Annotated[
        float | None, typer.Option(help="eagle2: of the distance to the target's features.")
    ] = None,
    law_weight: Annotated[float | None, typer.Option(help="Of the cross-entropy to the target's law.")] = None,
    token_weight: Annotated[float | None, typer.Option(help="spd: of the cross-entropy to the tokens.")] = None,
    noise: Annotated[float | None, typer.Option(help="eagle2: on the features, relative to their size.")] = None,
    intermediate: Annotated[int | None, typer.Option(help="eagle2: width of the MLP. [default: the target's]")] = None,
    layers: Annotated[int | None, typer.Option(help="spd: of the Llama.")] = None,
    width: Annotated[int | None, typer.Option(help="spd: of the Llama.")] = None,
    heads: Annotated[int | None, typer.Option(help="spd: of the Llama.")] = None,
    held_out: Annotated[int, typer.Option(help="Questions for validation.")] = 16,
    validate_every: Annotated[int, typer.Option(help="Updates between measurements of tau.")] = 100,
    save_every: Annotated[int, typer.Option(help="Updates between checkpoints.")] = 50,
    seed: Annotated[int, typer.Option(help="Of weights, data, noise and answers.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... [default: the model's own choice]")] = None,
) -> None:
    """Train a drafter and write it, with a model card, to a folder. The same command goes on with what was interrupted.

    Example: mmspec train drafter --target smolvlm-mini --method eagle2 --out my-drafter
    """
    from mmspec.training.loop import require_training

    require_training()
    import torch

    import mmspec
    from mmspec.checkpoints import quiet
    from mmspec.training.answers import AnswerOptions
    from mmspec.training.course import Course
    from mmspec.training.drafter import find_recipe, train_drafter

    chosen = find_recipe(method)
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
        "noise": noise,
        "intermediate": intermediate,
        "layers": layers,
        "width": width,
        "heads": heads,
    }
    recipe = chosen(seed=seed, **_fitting(chosen, given))
    how = AnswerOptions(author=answers, sampled=sampled, max_new_tokens=max_new_tokens, batch=answer_batch, seed=seed)
    course = Course(data, questions, held_out, validate_every, save_every, how)
    pipe = mmspec.load(target, drafter="none", device=device)
    name = Path(target).name
    home = run or Path("runs/drafters") / name
    folder = out or home / f"{method}-drafter"
    torch.set_flush_denormal(True)  # they slow a CPU down, and are nothing to a gradient
    with quiet():  # the Trainer shows its own progress
        figures = train_drafter(pipe, recipe, course, folder, home, name)
    typer.echo(f"{folder}: tau {figures['tau_t0']:.2f} greedy, {figures['tau_t1']:.2f} at temperature 1", err=True)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def target(context: typer.Context, name: Annotated[str, typer.Argument(help="Bundled name.")]) -> None:
    """Train a bundled checkpoint from nothing. Its options are listed by: mmspec train target smolvlm-mini --help

    Example: mmspec train target smolvlm-mini --out my-mini
    """
    from mmspec.registry import resolve
    from mmspec.training.loop import require_training

    require_training()
    trainer: Any = resolve("trainers", name, "vlm")
    trainer(context.args)


def _fitting(recipe: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; those of another method are refused."""
    from mmspec.errors import InputError

    chosen = {name: value for name, value in given.items() if value is not None}
    known = {field.name for field in fields(recipe)}
    wrong = sorted(set(chosen) - known)
    if wrong:
        names = ", ".join("--" + name.replace("_", "-") for name in wrong)
        raise InputError(f"{names}: not an option of the method {recipe.method}")
    return chosen
