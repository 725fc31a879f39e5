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
from mmspec.benchmarks.commands.reading import kept_in, numbers, show, taken, whole_numbers, words
from mmspec.benchmarks.lines import asked_for
from mmspec.benchmarks.start import at_own_temperature, loaded
from mmspec.errors import InputError

IMAGES = "none,jacobi,sjd@ratio,scd-mc@ratio,scd-gs@ratio,sjd-pac@ratio,scd-gs,scd-mc@lantern:delta=0.1"
IMAGES += ",scd-mc@lantern++:bound=2,scd-mc@gsd:size=14:distance=none,scd-mc@cool-sd=1.3"
CONTINUOUS = "none,none:steps=16,none:steps=8,mar,mar@continuous,mar@continuous-released"
BATCHES, MANY = "1,8", "1,8,32"
QUESTIONS, CAPTIONS = 8, 128
ROWS = f"{METHODS} Of MAR DRAFTER:steps=N draws in N steps. [default: {IMAGES}; of MAR {CONTINUOUS}]"
SIZES = f"Batch sizes at which speed is measured. [default: {BATCHES}; of MAR {MANY}]"
CLOCKED = "Captions that are timed, at least two batches of each size."
JUDGED = "Captions whose pictures are judged, of each method."
DIVERGED = "The column KL is there from half as many captions on as there are codes: 256 of janus-mini."
FEWER = "[default: {}, or all of --prompts where these are fewer]"
Prompts = Annotated[
    Path | None, typer.Option(help="File of captions, one a line. [default: held-out ones of the bundled world]")
]


def images(
    model: Model = "janus-mini",
    methods: Annotated[str | None, typer.Option(help=ROWS)] = None,
    temperature: OwnTemperature = None,
    guidance: Annotated[float | None, typer.Option(help="Scale of guidance. [default: the model's own]")] = None,
    batch: Annotated[str | None, typer.Option(help=SIZES)] = None,
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
    Of continuous tokens (MAR): the same beside plain decoding in fewer steps, and the share of drafts that is accepted.

    \b
    Examples: codes, continuous tokens
      mmspec bench images --methods none,scd-gs,scd-mc@lantern --captions 64 --out bench-images
      mmspec bench images --model mar-mini --methods none,none:steps=16,mar --captions 64 --out bench-mar
    """
    from mmspec.benchmarks.drawing.images import run_images
    from mmspec.benchmarks.drawing.run import ImageSettings, curve_rows
    from mmspec.benchmarks.plot import require_matplotlib
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.speed import SpeedSettings
    from mmspec.loading import family_of

    continuous = family_of(model).emits == "values"
    if curve and continuous:
        raise InputError("--curve adds rules for codes, and this model draws continuous tokens: leave it out")
    named = words((CONTINUOUS if continuous else IMAGES) if methods is None else methods)
    speed = taken(
        SpeedSettings,
        locals(),
        drafters=tuple(dict.fromkeys([*named, *curve_rows()])) if curve else named,
        temperatures=(1.0,) if temperature is None else numbers(temperature),
        questions=asked_for(questions, QUESTIONS, prompts),
    )
    sizes = whole_numbers((MANY if continuous else BATCHES) if batch is None else batch, "batch")
    judged = asked_for(captions, CAPTIONS, prompts)
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
