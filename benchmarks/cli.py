"""`mmspec bench`: speed (also without a sub-command), auto, accuracy, gauges, speech, images."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.benchmarks.start import loaded
from mmspec.benchmarks.tasks.task import TASKS
from mmspec.errors import InputError

if TYPE_CHECKING:
    from mmspec.benchmarks.plan import Plan

app = typer.Typer(
    help="Measure speed and accuracy of a model with several drafters, beside what transformers does on its own. "
    "With --task, --table or --config on official data sets or their stand-ins, else on the bundled world.",
    epilog="Try: mmspec bench --task chartqa --data ChartQA/test --questions 20 --out bench-chartqa",
    rich_markup_mode=None,
)

OUT = "Folder for samples, summary, table and plot; the same call goes on where it stopped. Default: nothing is kept."
DATA = (
    "Official files of the task; of several tasks a folder with one folder each. Default: stand-ins of the miniworld."
)
DRAFTERS = "none,prompt-lookup,spd,eagle2"
SPEECH = "none,prompt-lookup,vadusa,mtp-viterbi,ssd,vadusa@tolerance=4,ssd@beta=0.4,mtp-viterbi@unverified"
IMAGES = "none,jacobi,sjd@ratio,scd-mc@ratio,scd-gs@ratio,sjd-pac@ratio,scd-gs,scd-mc@lantern:delta=0.1"
IMAGES += ",scd-mc@lantern++:bound=2,scd-mc@gsd=14,scd-mc@cool-sd=1.3"
METHODS = "Rows DRAFTER, DRAFTER@RULE or DRAFTER@RULE=KNOB, separated by commas; none is our AR loop."

Model = Annotated[str, typer.Option(help="Bundled name, folder or hub id of the model.")]
Drafters = Annotated[str, typer.Option(help="Names, folders or hub ids, separated by commas; none is our AR loop.")]
Acceptance = Annotated[str, typer.Option(help="Acceptance rule.")]
Temperature = Annotated[str, typer.Option(help="Temperatures, separated by commas; 0 is greedy.")]
Questions = Annotated[int, typer.Option("--questions", "--limit", help="Questions, of each task the most.")]
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
Threads = Annotated[int, typer.Option(help="CPU threads; 0 leaves torch's choice.")]
Dtype = Annotated[str | None, typer.Option(help="Dtype of the weights, such as float32. Default: as `load` chooses.")]
Device = Annotated[str | None, typer.Option(help="Device, such as cpu or cuda. Default: as `load` chooses.")]
Tasks = Annotated[str, typer.Option("--task", "--tasks", help=f"Data sets, separated by commas: {', '.join(TASKS)}.")]
Data = Annotated[Path | None, typer.Option(help=DATA)]
Style = Annotated[str, typer.Option(help="Prompts of tasks: speed asks to explain, score is as published.")]
Table = Annotated[
    str | None,
    typer.Option(help="The survey's table 1 (text) or 2 (vision-language); or drafters: all of them, on the world."),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with the settings of a run of tasks; options go first.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON instead of the table.")]


@app.callback(invoke_without_command=True)
@app.command("speed")
def speed(
    context: typer.Context,
    model: Model = "smolvlm-mini",
    drafters: Drafters = DRAFTERS,
    acceptance: Acceptance = "exact",
    temperature: Temperature = "0,1",
    questions: Questions = 32,
    max_new_tokens: MaxNewTokens = 96,
    min_tokens: MinTokens = 60,
    repeats: Repeats = 2,
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
    table: Table = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Speed of every drafter: tau, S with its interval, time split, equality, memory; of tasks also their score. An
    image or a speech model is measured as `images` or `speech` do.

    Example: mmspec bench --model smolvlm-mini --drafters none,eagle2 --temperature 0 --questions 8 --out bench-eagle2
    """
    if context.invoked_subcommand is not None:
        refuse_misplaced(context)
        return
    if table == "drafters":
        run_drafters(context, out, as_json)
        return
    if task or table or config:
        run_tasks(plan_of(context), out, plot and out is not None, as_json)
        return
    if data is not None:
        raise InputError("--data belongs to a task: add --task, such as --task chartqa")
    from mmspec.benchmarks.memory import peaks
    from mmspec.benchmarks.plot import require_matplotlib
    from mmspec.benchmarks.records import Store
    from mmspec.benchmarks.report import save, speed_report
    from mmspec.benchmarks.speed import SpeedSettings, run_speed
    from mmspec.loading import modality_of

    settings = SpeedSettings(
        model=model,
        drafters=words(drafters),
        acceptance=acceptance,
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
    if plot and out is not None:
        require_matplotlib()  # before the long part
    modality = modality_of(model)
    if modality in OTHERS:
        run_other(context, OTHERS[modality])
        return
    with kept_in(out) as folder:
        store = Store(folder, {"run": "speed", **asdict(settings)})
        pipe = loaded(settings, "none")
        samples = run_speed(pipe, settings, store)
        report = speed_report(pipe, samples, settings, peaks(settings) if memory else {})
        summary, text = report.summary(), report.text()
        save(folder, summary, text)
        if plot and out is not None:
            report.draw(folder / "plot.png")
    show(summary, text, as_json)


@app.command()
def auto(
    model: Model = "smolvlm-mini",
    drafter: Annotated[str, typer.Option(help="Name, folder or hub id of the drafter.")] = "eagle2",
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
    from mmspec.benchmarks.auto import AutoSettings, run_auto
    from mmspec.benchmarks.report import save
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
        summary, text = report.summary(), report.text()
        save(folder, summary, text)
    show(summary, text, as_json)


@app.command()
def accuracy(
    model: Model = "smolvlm-mini",
    drafter: Annotated[str, typer.Option(help="Drafter: changes the time, not the answers.")] = "none",
    acceptance: Acceptance = "exact",
    questions: Questions = 1200,
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

    Example: mmspec bench accuracy --model smolvlm-mini --questions 1200 --out bench-accuracy
    """
    from mmspec.benchmarks.accuracy import AccuracySettings, run_accuracy
    from mmspec.benchmarks.records import Store
    from mmspec.benchmarks.report import accuracy_summary, accuracy_text, save

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
        store = Store(folder, {"run": "accuracy", **asdict(settings)})
        answers = run_accuracy(loaded(settings, drafter), settings, store)
        summary, text = accuracy_summary(answers, settings), accuracy_text(answers, settings)
        save(folder, summary, text)
    show(summary, text, as_json)


@app.command()
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
    from mmspec.benchmarks.records import Store
    from mmspec.benchmarks.report import speed_report
    from mmspec.benchmarks.speed import SpeedSettings, run_speed
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
        samples = run_speed(pipe, settings, Store(folder, {"run": "gauges", **asdict(settings)}))
        found = speed_report(pipe, samples, settings, {}).gauges
    show([asdict(each) for each in found], gauge_table(found), as_json)


@app.command()
def classes(
    model: Model = "smolvlm-mini",
    drafters: Annotated[
        str, typer.Option(help="Separated by commas; the others are compared with the first one.")
    ] = "spd,eagle2",
    questions: Questions = 32,
    shape: Annotated[
        str, typer.Option(help="Of the drafts: own, a length such as 4, or a tree such as 5x4x16.")
    ] = "own",
    plot: Plot = True,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Acceptance by what a token depends on: the picture, the question, or neither, as the synthetic world knows it.

    Example: mmspec bench classes --drafters spd,eagle2 --questions 32 --out bench-classes
    """
    from functools import partial

    from mmspec.benchmarks.plot import draw_classes, require_matplotlib, save_panels
    from mmspec.benchmarks.report import save
    from mmspec.benchmarks.told import ToldSettings, run_told

    settings = ToldSettings(model, words(drafters), questions, threads, dtype, device, shape=shape)
    if plot and out is not None:
        require_matplotlib()
    with kept_in(out) as folder:
        folder.mkdir(parents=True, exist_ok=True)
        report = run_told(loaded(settings, "none"), settings)
        summary, text = report.summary(), report.text()
        save(folder, summary, text)
        if plot and out is not None:
            panel = partial(draw_classes, found=report.panel())
            save_panels([panel], f"{model}, {questions} questions", folder / "plot.png")
    show(summary, text, as_json)


@app.command()
def speech(
    model: Model = "valle-mini",
    methods: Annotated[str, typer.Option(help=METHODS)] = SPEECH,
    temperature: Temperature = "1",
    questions: Annotated[int, typer.Option("--sentences", "--questions", help="How many sentences are said.")] = 24,
    max_new_tokens: MaxNewTokens = 320,
    min_tokens: MinTokens = 20,
    repeats: Repeats = 1,
    seed: Seed = 0,
    texts: Annotated[Path | None, typer.Option(help="File of sentences, one a line. Default: held-out ones.")] = None,
    listener: Annotated[
        Path | None, typer.Option(help="Folder of the listener. Default: the one of the model.")
    ] = None,
    plot: Plot = True,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Speech: tau and S of drafters and rules, the words and the voice that a listener hears, time to first audio.

    Example: mmspec bench speech --methods none,vadusa,vadusa@tolerance=4 --sentences 24 --out bench-speech
    """
    from mmspec.benchmarks.plot import require_matplotlib
    from mmspec.benchmarks.report import save
    from mmspec.benchmarks.speech_report import speech_report
    from mmspec.benchmarks.speech_run import SpeechSettings, judge_of, run_speech, script
    from mmspec.benchmarks.speech_sounds import draw_sounds, sounds, write_sounds
    from mmspec.benchmarks.speed import SpeedSettings

    speed = SpeedSettings(
        model=model,
        drafters=words(methods),
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
    settings = SpeechSettings(speed, texts, listener)
    if plot and out is not None:
        require_matplotlib()
    with kept_in(out) as folder:
        pipe = loaded(speed, "none")
        found = run_speech(pipe, settings, folder)
        report = speech_report(pipe, found, settings)
        summary, text = report.summary(), report.text()
        save(folder, summary, text)
        if out is not None:
            kept = sounds(pipe, script(pipe, settings), found)
            write_sounds(kept, folder)
            judge = judge_of(pipe, settings)
            if plot:
                report.draw(folder / "plot.png")
            if plot and judge is not None:
                draw_sounds(kept, judge, folder / "spectrograms.png")
    show(summary, text, as_json)


@app.command()
def images(
    model: Model = "janus-mini",
    methods: Annotated[str, typer.Option(help=METHODS)] = IMAGES,
    temperature: Temperature = "1",
    guidance: Annotated[float | None, typer.Option(help="Scale of guidance. Default: the model's own.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes at which speed is measured.")] = "1,8",
    questions: Annotated[int, typer.Option(help="Captions with clocks, of each batch size at least two batches.")] = 8,
    captions: Annotated[int, typer.Option(help="Captions whose pictures are judged, of each method.")] = 128,
    curve: Annotated[bool, typer.Option("--curve", help="Add every relaxed rule at several settings.")] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="File of captions, one a line. Default: held-out ones of the bundled world.")
    ] = None,
    reader: Annotated[
        Path | None, typer.Option(help="Folder of the reader of pictures. Default: the one of the model.")
    ] = None,
    clip: Annotated[Path | None, typer.Option(help="Folder of a CLIP model, for the CLIP score.")] = None,
    repeats: Repeats = 1,
    seed: Seed = 0,
    plot: Plot = True,
    out: Out = None,
    threads: Threads = 0,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Pictures: tau, S and forwards of drafters and rules, whether captions are kept, how far codes and pictures drift.

    Example: mmspec bench images --methods none,scd-gs,sjd@gsd=14 --captions 64 --out bench-images
    """
    from mmspec.benchmarks.image_report import run_images
    from mmspec.benchmarks.image_run import ImageSettings, curve_rows
    from mmspec.benchmarks.plot import require_matplotlib
    from mmspec.benchmarks.report import save
    from mmspec.benchmarks.speed import SpeedSettings

    rows = words(methods)
    speed = SpeedSettings(
        model=model,
        drafters=tuple(dict.fromkeys([*rows, *curve_rows()])) if curve else rows,
        temperatures=numbers(temperature),
        questions=questions,
        repeats=repeats,
        seed=seed,
        threads=threads,
        dtype=dtype,
        device=device,
    )
    sizes = tuple(int(size) if size.is_integer() else 0 for size in numbers(batch))
    settings = ImageSettings(speed, captions, sizes, guidance, prompts, reader, clip)
    if plot and out is not None:
        require_matplotlib()
    with kept_in(out) as folder:
        report = run_images(loaded(speed, "none"), settings, folder)
        summary, text = report.summary(), report.text()
        save(folder, summary, text)
        report.save_sheet(folder)
        if plot and out is not None:
            report.draw(folder)
    show(summary, text, as_json)


OTHERS = {"image": images, "speech": speech}
"""Modalities with a benchmark of their own, which `mmspec bench --model` runs."""


def run_other(context: typer.Context, command: Any) -> None:
    """Run the sub-command that measures this kind of model, with the options that were given."""
    takes = inspect.signature(command).parameters
    given = {name: value for name, value in context.params.items() if was_given(context, name)}
    given = {"methods" if name == "drafters" else name: value for name, value in given.items()}
    for name in given:
        if name not in takes:
            option = name.removeprefix("as_").replace("_", "-")
            raise InputError(f"--{option} is not for this model: see mmspec bench {command.__name__} --help")
    command(**given)


def run_tasks(plan: Plan, out: Path | None, page: bool, as_json: bool) -> None:
    """Run a plan and print what it found. What failed is told at the end, and by the exit status."""
    from mmspec.benchmarks.plan_run import run_plan
    from mmspec.benchmarks.plot import require_matplotlib

    if page:
        require_matplotlib()
    with kept_in(out) as folder:
        report = run_plan(plan, folder, f"mmspec {shlex.join(sys.argv[1:])}", page)
    show(report.summary(), report.text(), as_json)
    if report.failures:
        for line in report.failures:
            typer.echo(f"error: {line}", err=True)
        raise typer.Exit(2)


def run_drafters(context: typer.Context, out: Path | None, as_json: bool) -> None:
    """The table of drafters, with the options that were given."""
    from mmspec.benchmarks.drafter_table import FAMILIES, TASKS, TableSettings, run_table, usual
    from mmspec.benchmarks.speed import SpeedSettings

    given = {name: value for name, value in context.params.items() if was_given(context, name)}
    other = [name for name in ("data", "config", "style", "memory", "plot") if name in given]
    if other:
        raise InputError(f"--{other[0]} is not for --table drafters: leave it out")
    same = ("acceptance", "questions", "max_new_tokens", "min_tokens", "repeats", "seed", "threads", "dtype", "device")
    families = words(given["model"]) if "model" in given else FAMILIES
    speed = SpeedSettings(
        model=families[0],
        drafters=usual(words(given.get("drafters", ""))),
        temperatures=numbers(given.get("temperature", "0,1")),
        **{"questions": 6, "repeats": 1, **{name: given[name] for name in same if name in given}},
    )
    tasks = words(given["task"]) if "task" in given else tuple(TASKS)
    with kept_in(out) as folder:
        table = run_table(TableSettings(speed, families, tasks), folder)
    show(table.summary(), table.text(), as_json)


def table_number(text: str) -> int:
    """The number of one of the survey's tables."""
    if not text.isdecimal():
        raise InputError(f"table {text!r} is not valid: 1, 2 or drafters is needed")
    return int(text)


def plan_of(context: typer.Context) -> Plan:
    """The plan of a call: the settings of its file, then the options that were given."""
    from mmspec.benchmarks.plan import Plan, read_plan

    given = {name: value for name, value in context.params.items() if was_given(context, name)}
    settings = read_plan(given["config"]) if "config" in given else {}
    renamed = {"model": "models", "task": "tasks", "temperature": "temperatures"}
    readers = {"model": words, "task": words, "drafters": words, "temperature": numbers, "table": table_number}
    same = (
        "acceptance",
        "questions",
        "max_new_tokens",
        "repeats",
        "seed",
        "style",
        "threads",
        "dtype",
        "device",
    )
    for name in (*readers, *same):
        if name in given:
            settings[renamed.get(name, name)] = readers.get(name, lambda value: value)(given[name])
    plan = Plan(**settings)
    if "data" not in given:
        return plan
    paths = {task: given["data"] / task if len(plan.tasks) > 1 else given["data"] for task in plan.tasks}
    return replace(plan, data={**plan.data, **paths})


def was_given(context: typer.Context, name: str) -> bool:
    """Whether the user wrote an option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def kept_in(out: Path | None) -> Iterator[Path]:
    """The folder of a run: the user's, or one that is gone afterwards."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="mmspec-bench-") as folder:
        yield Path(folder)


def words(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str) -> tuple[float, ...]:
    """Comma-separated numbers."""
    try:
        return tuple(map(float, words(text)))
    except ValueError as error:
        raise InputError(f"temperature {text!r} is not valid: give numbers separated by commas, such as 0,1") from error


def refuse_misplaced(context: typer.Context) -> None:
    """Options before a sub-command would be lost."""
    for name in context.params:
        if was_given(context, name):
            option = name.removeprefix("as_").replace("_", "-")
            raise InputError(f"--{option} stands before {context.invoked_subcommand!r}: put all options behind it")


def show(summary: Any, text: str, as_json: bool) -> None:
    """Print the result."""
    print(json.dumps(summary, indent=1, ensure_ascii=False) if as_json else text)
