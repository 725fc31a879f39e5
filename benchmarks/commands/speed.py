"""`mmspec bench`: speed of a model with several drafters; of tasks and tables by `tasks`."""

from __future__ import annotations

import inspect
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import typer

from mmspec.benchmarks.commands.images import images
from mmspec.benchmarks.commands.options import (
    Acceptance,
    Compile,
    Config,
    Data,
    Device,
    Drafters,
    Dtype,
    Json,
    JudgeModel,
    Memory,
    MinTokens,
    Model,
    Out,
    Plot,
    Ray,
    Seed,
    Shape,
    Style,
    Table,
    Tasks,
    Temperature,
    Threads,
    Workers,
)
from mmspec.benchmarks.commands.reading import given, kept_in, numbers, option, show, taken, words
from mmspec.benchmarks.commands.speech import speech
from mmspec.benchmarks.commands.tasks import TABLE_QUESTIONS, TASK_REPEATS, plan_of, run_drafters, run_tasks
from mmspec.benchmarks.start import check_sees, fitted, loaded
from mmspec.errors import InputError

DRAFTERS = "none,prompt-lookup,spd,eagle2,dspark"
QUESTIONS, REPEATS, LENGTH = 32, 2, 96
ASKED = "How many questions, at most; with several tasks, of each."
ASKED += f" [default: {QUESTIONS}, of --table drafters {TABLE_QUESTIONS}]"
REPEATED = "Times that each question is answered, with successive seeds."
REPEATED += f" [default: {REPEATS}, of tasks and tables {TASK_REPEATS}]"
LONGEST = f"Most tokens of a reply. [default: {LENGTH}, of tasks with --data 8 to 2048, by task and style]"
OTHERS = {"image": images, "speech": speech}
"""Modalities with a benchmark of their own, which `mmspec bench --model` runs."""


def speed(
    context: typer.Context,
    model: Model = "smolvlm-mini",
    drafters: Drafters = DRAFTERS,
    acceptance: Acceptance = "exact",
    temperature: Temperature = "0,1",
    questions: Annotated[int | None, typer.Option("--questions", "--limit", help=ASKED)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help=LONGEST)] = None,
    min_tokens: MinTokens = 60,
    repeats: Annotated[int | None, typer.Option(help=REPEATED)] = None,
    seed: Seed = 0,
    memory: Memory = True,
    plot: Plot = True,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    task: Tasks = "",
    data: Data = None,
    style: Style = "speed",
    judge: JudgeModel = None,
    table: Table = None,
    config: Config = None,
    shape: Shape = None,
    compile: Compile = None,
    ray: Ray = None,
    workers: Workers = 0,
    as_json: Json = False,
) -> None:
    """Speed of every drafter: tau, S with its interval, time split, equality, memory; of tasks also their score. A
    model that draws or speaks is measured as `images` or `speech` do; one that hears is asked --data with a `voice`.

    Example: mmspec bench --model smolvlm-mini --drafters none,eagle2 --temperature 0 --questions 8 --out bench-eagle2
    """
    if context.invoked_subcommand is not None:
        refuse_misplaced(context)
        return
    from mmspec.spread import read_where, spread_over

    if table == "drafters":
        run_drafters(context, out, as_json)
        return
    where = read_where(ray, workers)
    if task or table or config:
        run_tasks(plan_of(context), out, plot and out is not None, as_json, where)
        return
    if judge is not None:
        raise InputError("--judge belongs to a task: add --task mathvista")
    if "style" in given(context):
        raise InputError("--style belongs to a task: add --task chartqa")
    from mmspec.loading import family_of

    family = family_of(model)
    if family.makes != "text":
        run_other(context, OTHERS[family.modality])
        return
    from mmspec.benchmarks.memory import draft_weights, peaks
    from mmspec.benchmarks.plot import require_matplotlib
    from mmspec.benchmarks.questions import own_questions
    from mmspec.benchmarks.records import Store
    from mmspec.benchmarks.report import keep, speed_report
    from mmspec.benchmarks.speed import SpeedSettings, asked, run_speed
    from mmspec.benchmarks.weights import weights_of

    settings = taken(
        SpeedSettings,
        locals(),
        drafters=words(drafters),
        temperatures=numbers(temperature),
        questions=QUESTIONS if questions is None else questions,
        max_new_tokens=LENGTH if max_new_tokens is None else max_new_tokens,
        repeats=REPEATS if repeats is None else repeats,
        data=None if data is None else str(data),
    )
    if plot and out is not None:
        require_matplotlib()  # before the long part
    told: dict[str, Any] = {"run": "speed", **({"shared": True} if where else {})}
    whole = 0
    if settings.data is not None:
        own = own_questions(settings.data, settings.questions, family.modality == "vlm", family.chats)
        whole = len(own.source)
        settings, told["asked"] = replace(settings, questions=len(own)), own.name  # it says where they begin
    else:
        check_sees(model)
    load = partial(loaded, settings, "none")
    with kept_in(out) as folder:
        pipe = load()
        if "drafters" not in given(context):
            settings = fitted(settings, pipe)
        prompts, refused = asked(pipe, settings)
        told |= {"refused": refused} if refused else {}
        store = Store(folder, told | asdict(settings) | weights_of(pipe, settings.drafters))
        with spread_over(where, pipe, load) as spread:
            samples = run_speed(pipe, settings, store, prompts, spread)
        found = peaks(settings) if memory else {}
        weights = draft_weights(pipe, settings.drafters)
        report = speed_report(pipe, samples, settings, prompts, found, spread.shared, weights, whole, refused)
        show(*keep(folder, report), as_json)
        if plot and out is not None:
            report.draw(folder / "plot.png")


def run_other(context: typer.Context, command: Any) -> None:
    """Run the sub-command that measures this kind of model, with the options that were given."""
    takes = inspect.signature(command).parameters
    told = {"methods" if name == "drafters" else name: value for name, value in given(context).items()}
    for name in told:
        if name not in takes:
            raise InputError(f"{option(name)} is not for this model: see mmspec bench {command.__name__} --help")
    command(**told)


def refuse_misplaced(context: typer.Context) -> None:
    """Options before a sub-command would be lost."""
    for name in given(context):
        raise InputError(f"{option(name)} stands before {context.invoked_subcommand!r}: put all options behind it")
