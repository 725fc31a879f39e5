"""`mmspec bench speech`."""

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
    Json,
    MinTokens,
    Model,
    Out,
    OwnTemperature,
    Plot,
    Repeats,
    Seed,
    Threads,
)
from mmspec.benchmarks.commands.reading import kept_in, numbers, show, taken, words
from mmspec.benchmarks.lines import asked_for
from mmspec.benchmarks.start import at_own_temperature, loaded, usual_rows

SPEECH = (
    "none,prompt-lookup,depth,vadusa,mtp-viterbi,ssd,eagle2,vadusa@tolerance=4,ssd@beta=0.4,mtp-viterbi@unverified,"
    "eagle2:shape=7@top-k=3,eagle2:shape=7@beta=0.4,eagle2:shape=7@pcg=0.004"
)
SENTENCES = 24
LONGEST = "Most codes of an utterance, of CSM K to a frame; of MusicGen, Dia, Higgs columns. [default: of 10 seconds]"
MANY = f"How many sentences are said. [default: {SENTENCES}, or all of --texts where these are fewer]"


def speech(
    model: Model = "valle-mini",
    methods: Annotated[str | None, typer.Option(help=f"{METHODS} [default: of {SPEECH} what the model has]")] = None,
    temperature: OwnTemperature = None,
    questions: Annotated[int | None, typer.Option("--sentences", "--questions", help=MANY)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help=LONGEST)] = None,
    min_tokens: MinTokens = 20,
    repeats: Repeats = 1,
    seed: Seed = 0,
    curve: Annotated[bool, typer.Option("--curve", help="Add every tolerant rule at several settings.")] = False,
    texts: Annotated[Path | None, typer.Option(help="File of sentences, one a line. [default: held-out ones]")] = None,
    listener: Annotated[Path | None, typer.Option(help="Folder of the listener. [default: the model's own]")] = None,
    plot: Plot = True,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    compile: Compile = None,
    as_json: Json = False,
) -> None:
    """Speech: tau and S of drafters and rules, the words and the voice that a listener hears, time to first audio.

    Example: mmspec bench speech --methods none,vadusa,vadusa@tolerance=4 --sentences 24 --out bench-speech
    """
    from mmspec.benchmarks.plot import require_matplotlib
    from mmspec.benchmarks.report import keep
    from mmspec.benchmarks.speaking.report import speech_report
    from mmspec.benchmarks.speaking.run import SpeechSettings, curve_rows, judge_of, run_speech, script
    from mmspec.benchmarks.speaking.sounds import draw_sounds, sounds, write_sounds
    from mmspec.benchmarks.speed import SpeedSettings

    speed = taken(
        SpeedSettings,
        locals(),
        drafters=words(SPEECH if methods is None else methods),
        temperatures=(1.0,) if temperature is None else numbers(temperature),
        questions=asked_for(questions, SENTENCES, texts),
        max_new_tokens=max(1, min_tokens) if max_new_tokens is None else max_new_tokens,
    )
    if plot and out is not None:
        require_matplotlib()
    with kept_in(out) as folder:
        pipe = loaded(speed, "none")
        if temperature is None:
            speed = at_own_temperature(speed, pipe)
        if max_new_tokens is None:
            speed = replace(speed, max_new_tokens=pipe.target.budget // 3)  # which is that of 30 seconds
        rows = usual_rows(pipe, speed.drafters) if methods is None else speed.drafters
        more = usual_rows(pipe, curve_rows()) if curve else ()
        settings = SpeechSettings(replace(speed, drafters=tuple(dict.fromkeys([*rows, *more]))), texts, listener)
        judge = judge_of(pipe, settings)
        said = script(pipe, settings, judge)
        found = run_speech(pipe, settings, folder, said, judge)
        report = speech_report(pipe, found, settings, said, judge)
        show(*keep(folder, report), as_json)
        if out is not None:
            kept = sounds(pipe, said, found)
            write_sounds(kept, folder)
            if plot:
                report.draw(folder / "plot.png")
            if plot and judge is not None:
                draw_sounds(kept, judge, folder / "spectrograms.png")
