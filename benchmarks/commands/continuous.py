"""`mmspec bench continuous`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from mmspec.benchmarks.commands.images import CAPTIONS, CLOCKED, FEWER, JUDGED, QUESTIONS, Prompts
from mmspec.benchmarks.commands.options import (
    METHODS,
    Device,
    Dtype,
    Features,
    Json,
    Model,
    Out,
    OwnTemperature,
    Reader,
    Repeats,
    Seed,
    Threads,
)
from mmspec.benchmarks.commands.reading import kept_in, numbers, show, whole_numbers, words
from mmspec.benchmarks.lines import asked_for
from mmspec.benchmarks.start import at_own_temperature, loaded

ROWS = "none,none:steps=16,none:steps=8,mar,mar@continuous,mar@continuous-released"


def continuous(
    model: Model = "mar-mini",
    methods: Annotated[str, typer.Option(help=f"{METHODS} DRAFTER:steps=N draws in N steps.")] = ROWS,
    temperature: OwnTemperature = None,
    guidance: Annotated[float | None, typer.Option(help="Scale of guidance. [default: the model's own]")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes at which speed is measured.")] = "1,8,32",
    questions: Annotated[int | None, typer.Option(help=f"{CLOCKED} {FEWER.format(QUESTIONS)}")] = None,
    captions: Annotated[int | None, typer.Option(help=f"{JUDGED} {FEWER.format(CAPTIONS)}")] = None,
    prompts: Prompts = None,
    reader: Reader = None,
    features: Features = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Pictures of continuous tokens (MAR): acceptance and S of drafters, beside plain decoding in fewer steps.

    Example: mmspec bench continuous --methods none,none:steps=16,mar --captions 64 --out bench-mar
    """
    from mmspec.benchmarks.drawing.canvas_report import run_canvas
    from mmspec.benchmarks.drawing.run import ImageSettings
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.speed import SpeedSettings

    speed = SpeedSettings(
        model=model,
        drafters=words(methods),
        temperatures=(1.0,) if temperature is None else numbers(temperature),
        questions=asked_for(questions, QUESTIONS, prompts),
        repeats=repeats,
        seed=seed,
        threads=threads,
        dtype=dtype,
        device=device,
    )
    judged, sizes = asked_for(captions, CAPTIONS, prompts), whole_numbers(batch, "batch")
    settings = ImageSettings(speed, judged, sizes, guidance, prompts, reader, features=features)
    with kept_in(out) as folder:
        pipe = loaded(speed, "none")
        if temperature is None:
            settings = replace(settings, speed=at_own_temperature(speed, pipe))
        report = run_canvas(pipe, settings, folder)
        show(*keep(folder, report), as_json)
        report.save_sheet(folder)
