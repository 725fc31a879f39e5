"""`mmspec bench`: speed (the default), auto, accuracy, dependence, ablations, stores, speech, images, load, gpu."""

from __future__ import annotations

import typer

from mmspec.benchmarks.commands.images import images
from mmspec.benchmarks.commands.service import load, stores
from mmspec.benchmarks.commands.speech import speech
from mmspec.benchmarks.commands.speed import speed
from mmspec.benchmarks.commands.world import ablations, accuracy, auto, dependence
from mmspec.benchmarks.gpu.cli import gpu

app = typer.Typer(
    help="Measure speed and accuracy of a model with several drafters, beside what transformers does on its own. "
    "With --task, --table or --config on official data sets or their stand-ins, else on the bundled world. tau is the "
    "number of tokens per forward of the model, S how many times as fast a reply is as without drafts.",
    epilog="Try (it takes a few minutes on two cores): mmspec bench --questions 8 --repeats 1 --no-memory",
    add_completion=False,
    rich_markup_mode=None,
)
app.callback(invoke_without_command=True)(speed)
for command in (speed, auto, accuracy, dependence, ablations, stores, speech, images, load, gpu):
    app.command()(command)
