"""Options with the help that they print: those that several sub-commands take, and those of `speed` and `accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.benchmarks.tasks.task import TASKS

OUT = "Folder for samples, summary, table and plot; the same call goes on where it stopped. [default: nothing is kept]"
DATA = (
    "With --task its official files, or a data set of the hub (owner/name); of several tasks a folder with one folder "
    "each. Without: questions of your own, a folder with *.jsonl files of lines {image, prompt}, or of conversations, "
    "{messages} or LLaVA's {image, conversations}, each of which is one question, its last. The last lines are asked: "
    "train with --held-out as large as --questions here, or the drafter has learnt from some of them. [default: the "
    "bundled world's]"
)
ONCE = "Folder for summary and table (and plot, where there is one). [default: nothing is kept]"
METHODS = (
    "Rows, separated by commas: DRAFTER[:NAME=VALUE...][@RULE[=KNOB | :NAME=VALUE...]], as in "
    "eagle2:shape=4:dtype=int8, vadusa@tolerance=4 or sjd:window=16@lantern:delta=0.1:k=50. A drafter takes shape, "
    "dtype (of its weights) and, without training, settings of its own; a rule those that mmspec rules lists, of "
    "which KNOB is the first. none decodes one token at a time."
)
TEMPERATURES = "Temperatures, separated by commas; 0 is greedy."

Model = Annotated[str, typer.Option(help="Bundled name, folder or hub id of the model.")]
Drafters = Annotated[
    str,
    typer.Option(
        help="Names, folders or hub ids, separated by commas; none decodes one token at a time. NAME:dtype=int8 rounds "
        "a drafter's weights."
    ),
]
Acceptance = Annotated[str, typer.Option(help="Acceptance rule (mmspec rules).")]
Temperature = Annotated[str, typer.Option(help=TEMPERATURES)]
OwnTemperature = Annotated[str | None, typer.Option(help=f"{TEMPERATURES} [default: the checkpoint's own]")]
Questions = Annotated[
    int, typer.Option("--questions", "--limit", help="How many questions, at most; with several tasks, of each.")
]
MaxNewTokens = Annotated[int, typer.Option(help="Most tokens of a reply.")]
MinTokens = Annotated[int, typer.Option(help="Shorter replies do not count.")]
Repeats = Annotated[int, typer.Option(help="Times that each question is answered, with successive seeds.")]
Seed = Annotated[int, typer.Option(help="Seed of the first repetition.")]
Batch = Annotated[int, typer.Option(help="Questions answered together.")]
Shuffle = Annotated[bool, typer.Option("--shuffle-images", help="Control: show the picture of another question.")]
Stock = Annotated[bool, typer.Option("--stock", help="Compare each reply with that of transformers alone.")]
Memory = Annotated[bool, typer.Option(help="Measure peak memory, each drafter in a process of its own.")]
Plot = Annotated[bool, typer.Option(help="Draw plot.png into --out (needs the extra `bench`).")]
Out = Annotated[Path | None, typer.Option(help=OUT)]
OutOnce = Annotated[Path | None, typer.Option(help=ONCE)]
Threads = Annotated[int, typer.Option(help="CPU threads; 0 leaves torch's choice.")]
Dtype = Annotated[
    str | None, typer.Option(help="Of the weights, such as bfloat16. [default: float32 on a CPU, else as stored]")
]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda. [default: a CUDA device if there is one]")]
Tasks = Annotated[str, typer.Option("--task", "--tasks", help=f"Data sets, separated by commas: {', '.join(TASKS)}.")]
Data = Annotated[Path | None, typer.Option(help=DATA)]
Style = Annotated[str, typer.Option(help="Prompts of tasks: speed asks to explain, score is as published.")]
JudgeModel = Annotated[
    str | None,
    typer.Option("--judge", help="Text model that finds answers in replies, for mathvista. [default: rules do]"),
]
Table = Annotated[
    str | None,
    typer.Option(
        help='Print table 1 (text) or 2 (vision-language) of the survey "Speculative Decoding for Multimodal Models", '
        "with its tasks, and its drafters as far as the model has them; or drafters: one of all drafters, on the "
        "bundled world."
    ),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with the settings of a run of tasks; options go first.")]
FixedShape = Annotated[
    str, typer.Option(help="Of the drafts: own, a length such as 4, or a tree such as 5x4x16 or 5x4x16x0.1.")
]
Shape = Annotated[
    str | None,
    typer.Option(
        help="Of drafts: auto, own, a length such as 4, or a tree such as 5x4x16 or 5x4x16x0.1. [default: auto]"
    ),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Our loop runs compiled, none included; transformers' methods stay as they are. [default: on CUDA]",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Spread the questions over a Ray cluster: its address (auto, or HOST:PORT), or local for workers on this "
        "machine. Timings from workers that share a machine are not speeds. Needs the extra `ray`."
    ),
]
Workers = Annotated[int, typer.Option(help="Workers on Ray, each with the model. 0: one per GPU, without GPUs two.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON instead of the table.")]
Reader = Annotated[Path | None, typer.Option(help="Folder of the reader of pictures. [default: the model's own]")]
Features = Annotated[
    Path | None, typer.Option(help="Folder of an image model of timm's that sees for the Frechet distance.")
]
