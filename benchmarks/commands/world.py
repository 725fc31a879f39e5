"""What the bundled world knows: control of draft sizes, accuracy, what tokens depend on, ablations."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from mmspec.benchmarks.commands.options import (
    Acceptance,
    Batch,
    Device,
    Dtype,
    FixedShape,
    Json,
    MaxNewTokens,
    MinTokens,
    Model,
    Out,
    OutOnce,
    Plot,
    Questions,
    Repeats,
    Seed,
    Shuffle,
    Stock,
    Temperature,
    Threads,
)
from mmspec.benchmarks.commands.reading import kept_in, numbers, show, taken, words
from mmspec.benchmarks.start import check_sees, fitted, loaded

COMPARED, ABLATED = "spd,eagle2", "vispec,dream"


def auto(
    model: Model = "smolvlm-mini",
    drafter: Annotated[str, typer.Option(help="Name, folder or hub id of the drafter.")] = "dspark",
    temperature: Temperature = "0,1",
    questions: Questions = 12,
    max_new_tokens: MaxNewTokens = 96,
    min_tokens: MinTokens = 60,
    repeats: Repeats = 1,
    seed: Seed = 0,
    long_questions: Annotated[int, typer.Option(help="Prompts of the runs of fixed length.")] = 2,
    long_tokens: Annotated[int, typer.Option(help="Tokens of each reply in the runs of fixed length.")] = 512,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """The control of draft sizes against every fixed size; with random weights; on pictures from outside the world.

    Example: mmspec bench auto --drafter eagle2 --temperature 0 --out bench-auto
    """
    check_sees(model)
    from mmspec.benchmarks.auto import AutoSettings, run_auto
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.speed import SpeedSettings

    speed = taken(SpeedSettings, locals(), drafters=words(drafter), temperatures=numbers(temperature))
    settings = AutoSettings(speed, long_questions, long_tokens)
    with kept_in(out) as folder:
        report = run_auto(loaded(speed, "none"), settings, folder)
        show(*keep(folder, report), as_json)


def accuracy(
    model: Model = "smolvlm-mini",
    drafter: Annotated[str, typer.Option(help="Drafter: changes the time, not the answers.")] = "none",
    acceptance: Acceptance = "exact",
    questions: Questions = 3000,
    max_new_tokens: MaxNewTokens = 192,
    batch: Batch = 32,
    shuffle_images: Shuffle = False,
    stock: Stock = False,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Relaxed accuracy on held-out questions of every form, overall and per class.

    Example: mmspec bench accuracy --model smolvlm-mini --out bench-accuracy
    """
    check_sees(model)
    from mmspec.benchmarks.accuracy import AccuracySettings, run_accuracy
    from mmspec.benchmarks.records import Store
    from mmspec.benchmarks.report import AccuracyReport, keep
    from mmspec.benchmarks.weights import weights_of

    settings = taken(AccuracySettings, locals())
    with kept_in(out) as folder:
        pipe = loaded(settings, drafter)
        store = Store(folder, {"run": "accuracy", **asdict(settings), **weights_of(pipe, [drafter])})
        answers = run_accuracy(pipe, settings, store)
        show(*keep(folder, AccuracyReport(settings, answers)), as_json)


def dependence(
    model: Model = "smolvlm-mini",
    drafters: Annotated[
        str | None,
        typer.Option(
            help=f"Separated by commas; the first is held against the rest. [default: of {COMPARED} what the model has]"
        ),
    ] = None,
    questions: Questions = 32,
    shape: FixedShape = "own",
    plot: Plot = True,
    out: OutOnce = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Acceptance by what a token depends on: the picture, the question, or neither, as the synthetic world knows it.

    Example: mmspec bench dependence --drafters spd,eagle2 --questions 32 --out bench-dependence
    """
    check_sees(model)
    from mmspec.benchmarks.plot import draw_shares, require_matplotlib, save_panels
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.told import ToldSettings, run_told

    settings = taken(ToldSettings, locals(), drafters=words(COMPARED if drafters is None else drafters))
    if plot and out is not None:
        require_matplotlib()
    with kept_in(out) as folder:
        pipe = loaded(settings, "none")
        settings = fitted(settings, pipe) if drafters is None else settings
        report = run_told(pipe, settings)
        show(*keep(folder, report), as_json)
        if plot and out is not None:
            found = {method: report.totals(method) for method in report.counts}
            panel = partial(draw_shares, found=found, share="acceptance", title="by what a token depends on")
            save_panels([panel], f"{model}, {questions} questions", folder / "plot.png")


def ablations(
    model: Model = "smolvlm-mini",
    drafters: Annotated[
        str | None, typer.Option(help=f"Trained ones, separated by commas. [default: of {ABLATED} what the model has]")
    ] = None,
    questions: Questions = 32,
    shape: FixedShape = "own",
    out: OutOnce = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """What each part of a trained drafter is worth: acceptance with it, and after it is taken away.

    Example: mmspec bench ablations --drafters eagle2,vispec,dream --out bench-ablations
    """
    check_sees(model)
    from mmspec.benchmarks.ablations import run_ablations
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.told import ToldSettings

    settings = taken(ToldSettings, locals(), drafters=words(ABLATED if drafters is None else drafters))
    with kept_in(out) as folder:
        pipe = loaded(settings, "none")
        settings = fitted(settings, pipe) if drafters is None else settings
        show(*keep(folder, run_ablations(pipe, settings)), as_json)
