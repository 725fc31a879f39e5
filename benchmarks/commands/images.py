"""`mmspec bench images`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mmspec.benchmarks.commands.options import (
    METHODS,
    Compile,
    Device,
    Dtype,
    Features,
    Json,
    Model,
    Out,
    OwnTemperature,
    Plot,
    Reader,
    Repeats,
    Seed,
    Threads,
)
from mmspec.benchmarks.commands.reading import kept_in, numbers, show, whole_numbers, words
from mmspec.benchmarks.lines import asked_for
from mmspec.benchmarks.start import at_own_temperature, loaded

IMAGES = "none,jacobi,sjd@ratio,scd-mc@ratio,scd-gs@ratio,sjd-pac@ratio,scd-gs,scd-mc@lantern:delta=0.1"
IMAGES += ",scd-mc@lantern++:bound=2,scd-mc@gsd:size=14:distance=none,scd-mc@cool-sd=1.3"
QUESTIONS, CAPTIONS = 8, 128
CLOCKED = "Captions that are timed, at least two batches of each size."
JUDGED = "Captions whose pictures are judged, of each method."
DIVERGED = "The column KL is there from half as many captions on as there are codes: 256 of janus-mini."
FEWER = "[default: {}, or all of --prompts where these are fewer]"
Prompts = Annotated[
    Path | None, typer.Option(help="File of captions, one a line. [default: held-out ones of the bundled world]")
]


def images(
    model: Model = "janus-mini",
    methods: Annotated[str, typer.Option(help=METHODS)] = IMAGES,
    temperature: OwnTemperature = None,
    guidance: Annotated[float | None, typer.Option(help="Scale of guidance. [default: the model's own]")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes at which speed is measured.")] = "1,8",
    questions: Annotated[int | None, typer.Option(help=f"{CLOCKED} {FEWER.format(QUESTIONS)}")] = None,
    captions: Annotated[int | None, typer.Option(help=f"{JUDGED} {DIVERGED} {FEWER.format(CAPTIONS)}")] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Add every relaxed rule at several settings.")] = False,
    prompts: Prompts = None,
    reader: Reader = None,
    clip: Annotated[Path | None, typer.Option(help="Folder of a CLIP model, for the CLIP score.")] = None,
    features: Features = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    plot: Plot = True,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    compile: Compile = None,
    as_json: Json = False,
) -> None:
    """Pictures: tau, S and forwards of drafters and rules, whether captions are kept, how far codes and pictures drift.

    Example: mmspec bench images --methods none,scd-gs,scd-mc@lantern --captions 64 --out bench-images
    """
    from mmspec.benchmarks.drawing.report import run_images
    from mmspec.benchmarks.drawing.run import ImageSettings, curve_rows
    from mmspec.benchmarks.plot import require_matplotlib
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.speed import SpeedSettings

    rows = words(methods)
    speed = SpeedSettings(
        model=model,
        drafters=tuple(dict.fromkeys([*rows, *curve_rows()])) if curve else rows,
        temperatures=(1.0,) if temperature is None else numbers(temperature),
        questions=asked_for(questions, QUESTIONS, prompts),
        repeats=repeats,
        seed=seed,
        threads=threads,
        dtype=dtype,
        device=device,
        compile=compile,
    )
    judged, sizes = asked_for(captions, CAPTIONS, prompts), whole_numbers(batch, "batch")
    settings = ImageSettings(speed, judged, sizes, guidance, prompts, reader, clip, features)
    if plot and out is not None:
        require_matplotlib()
    with kept_in(out) as folder:
        pipe = loaded(speed, "none")
        if temperature is None:
            settings = replace(settings, speed=at_own_temperature(speed, pipe))
        report = run_images(pipe, settings, folder)
        show(*keep(folder, report), as_json)
        report.save_sheet(folder)
        if plot and out is not None:
            report.draw(folder)
