"""`mmspec bench`: speed (also without a sub-command), auto, accuracy, gauges."""

from __future__ import annotations

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
Table = Annotated[int | None, typer.Option(help="The survey's table 1 (text) or 2 (vision-language).")]
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
    """Speed of every drafter: tau, S with its interval, time split, equality, memory; of tasks also their score.

    Example: mmspec bench --model smolvlm-mini --drafters none,eagle2 --temperature 0 --questions 8 --out bench-eagle2
    """
    if context.invoked_subcommand is not None:
        refuse_misplaced(context)
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


def plan_of(context: typer.Context) -> Plan:
    """The plan of a call: the settings of its file, then the options that were given."""
    from mmspec.benchmarks.plan import Plan, read_plan

    given = {name: value for name, value in context.params.items() if was_given(context, name)}
    settings = read_plan(given["config"]) if "config" in given else {}
    renamed = {"model": "models", "task": "tasks", "temperature": "temperatures"}
    readers = {"model": words, "task": words, "drafters": words, "temperature": numbers}
    same = (
        "acceptance",
        "questions",
        "max_new_tokens",
        "repeats",
        "seed",
        "style",
        "table",
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
