"""What the bundled world knows: control of draft sizes, accuracy, gauges, classes of tokens, ablations."""

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
from mmspec.benchmarks.commands.reading import kept_in, numbers, show, words
from mmspec.benchmarks.start import check_sees, fitted, loaded

CLASSES, ABLATED = "spd,eagle2", "vispec,dream"


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

    speed = SpeedSettings(
        model=model,
        drafters=words(drafter),
        temperatures=numbers(temperature),
        questions=questions,
        max_new_tokens=max_new_tokens,
        min_tokens=min_tokens,
        repeats=repeats,
        seed=seed,
        threads=threads,
        dtype=dtype,
        device=device,
    )
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

    settings = AccuracySettings(
        model=model,
        drafter=drafter,
        acceptance=acceptance,
        questions=questions,
        max_new_tokens=max_new_tokens,
        batch=batch,
        shuffle_images=shuffle_images,
        stock=stock,
        threads=threads,
        dtype=dtype,
        device=device,
    )
    with kept_in(out) as folder:
        pipe = loaded(settings, drafter)
        store = Store(folder, {"run": "accuracy", **asdict(settings), **weights_of(pipe, [drafter])})
        answers = run_accuracy(pipe, settings, store)
        show(*keep(folder, AccuracyReport(settings, answers)), as_json)


def gauges(
    model: Model = "smolvlm-mini",
    temperature: Temperature = "0,1",
    questions: Questions = 16,
    max_new_tokens: MaxNewTokens = 96,
    min_tokens: MinTokens = 60,
    seed: Seed = 0,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """How predictable the task is: top probabilities, image-determined tokens, S of prompt lookup, closed questions.

    Example: mmspec bench gauges --model smolvlm-mini
    """
    check_sees(model)
    from mmspec.benchmarks.records import Store
    from mmspec.benchmarks.report import speed_report
    from mmspec.benchmarks.speed import SpeedSettings, asked, run_speed
    from mmspec.benchmarks.tables import gauge_table

    settings = SpeedSettings(
        model=model,
        drafters=("none", "prompt-lookup"),
        temperatures=numbers(temperature),
        questions=questions,
        max_new_tokens=max_new_tokens,
        min_tokens=min_tokens,
        repeats=1,
        seed=seed,
        threads=threads,
        dtype=dtype,
        device=device,
    )
    with kept_in(None) as folder:
        pipe = loaded(settings, "none")
        prompts, _ = asked(pipe, settings)
        samples = run_speed(pipe, settings, Store(folder, {"run": "gauges", **asdict(settings)}), prompts)
        found = speed_report(pipe, samples, settings, prompts, {}).gauges
    show([asdict(each) for each in found], gauge_table(found), as_json)


def classes(
    model: Model = "smolvlm-mini",
    drafters: Annotated[
        str | None,
        typer.Option(
            help=f"Separated by commas; the first is held against the rest. [default: of {CLASSES} what the model has]"
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

    Example: mmspec bench classes --drafters spd,eagle2 --questions 32 --out bench-classes
    """
    check_sees(model)
    from mmspec.benchmarks.plot import draw_classes, require_matplotlib, save_panels
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.told import ToldSettings, run_told

    named = words(CLASSES if drafters is None else drafters)
    settings = ToldSettings(model, named, questions, shape, threads=threads, dtype=dtype, device=device)
    if plot and out is not None:
        require_matplotlib()
    with kept_in(out) as folder:
        pipe = loaded(settings, "none")
        settings = fitted(settings, pipe) if drafters is None else settings
        report = run_told(pipe, settings)
        show(*keep(folder, report), as_json)
        if plot and out is not None:
            panel = partial(draw_classes, found={method: report.totals(method) for method in report.counts})
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

    named = words(ABLATED if drafters is None else drafters)
    settings = ToldSettings(model, named, questions, shape, threads=threads, dtype=dtype, device=device)
    with kept_in(out) as folder:
        pipe = loaded(settings, "none")
        settings = fitted(settings, pipe) if drafters is None else settings
        show(*keep(folder, run_ablations(pipe, settings)), as_json)
