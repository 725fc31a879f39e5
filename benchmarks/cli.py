"""`mmspec bench`: speed (also without a sub-command), auto, accuracy, gauges."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.errors import InputError

if TYPE_CHECKING:
    from mmspec import Pipeline
    from mmspec.benchmarks.accuracy import AccuracySettings
    from mmspec.benchmarks.speed import SpeedSettings

app = typer.Typer(
    help="Measure speed and accuracy of a model with several drafters, beside what transformers does on its own.",
    rich_markup_mode=None,
)

OUT = "Folder for samples, summary, table and plot; the same call goes on where it stopped. Default: nothing is kept."
DRAFTERS = "none,prompt-lookup,spd,eagle2"

Model = Annotated[str, typer.Option(help="Bundled name, folder or hub id of the model.")]
Drafters = Annotated[str, typer.Option(help="Names, folders or hub ids, separated by commas; none is our AR loop.")]
Acceptance = Annotated[str, typer.Option(help="Acceptance rule.")]
Temperature = Annotated[str, typer.Option(help="Temperatures, separated by commas; 0 is greedy.")]
Questions = Annotated[int, typer.Option(help="Held-out questions.")]
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
    as_json: Json = False,
) -> None:
    """Speed of every drafter: tau, S with its interval, time split, equality, memory.

    Example: mmspec bench --model smolvlm-mini --drafters none,eagle2 --temperature 0 --questions 8 --out bench-eagle2
    """
    if context.invoked_subcommand is not None:
        refuse_misplaced(context)
        return
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


def loaded(settings: SpeedSettings | AccuracySettings, drafter: str) -> Pipeline:
    """The pipeline that the settings ask for, on their number of threads."""
    import torch
    import transformers

    import mmspec

    transformers.logging.set_verbosity_error()  # its assisted generation warns about its own calls
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return mmspec.load(settings.model, drafter, settings.acceptance, dtype=settings.dtype, device=settings.device)


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
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        option = name.removeprefix("as_").replace("_", "-")
        raise InputError(f"--{option} stands before {context.invoked_subcommand!r}: put all options behind it")


def show(summary: Any, text: str, as_json: bool) -> None:
    """Print the result."""
    print(json.dumps(summary, indent=1, ensure_ascii=False) if as_json else text)
