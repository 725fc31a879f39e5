"""`mmspec bench gpu`: the stages, one after the other."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from mmspec.benchmarks.commands.reading import whole_numbers, words
from mmspec.errors import InputError, unknown_name

STAGES = ("ceilings", "attention", "baselines", "sweep", "equality", "rounds", "real")
SMALL_REPEATS, SMALL_TOKENS = 2, 8


def gpu(
    stage: Annotated[str, typer.Option(help=f"Stages, separated by commas: {', '.join(STAGES)}; or all.")] = "all",
    small: Annotated[
        bool, typer.Option("--small", help="Shrunken models: checks the machinery, measures nothing.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for JSON and Markdown; the same call goes on there.")] = Path(
        "gpu-results"
    ),
    models: Annotated[str, typer.Option(help="Names of configs/, separated by commas (without it: all).")] = "",
    minutes: Annotated[float | None, typer.Option(help="Stop, with everything kept, after so many minutes.")] = None,
    device: Annotated[str | None, typer.Option(help="Device (without it: cuda, with --small cpu).")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the weights (without it: bfloat16, with --small float32).")
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Measure the static engine, too (without it: not with --small)."),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain/--no-plain", help="Measure forwards without it, too, in sweep, rounds and real."),
    ] = True,
    repeats: Annotated[int, typer.Option(help="Measurements of a figure.")] = 5,
    tokens: Annotated[int, typer.Option(help="New tokens of an answer.")] = 256,
    rows: Annotated[int, typer.Option(help="Rows of a batch, in baselines, sweep, equality and rounds.")] = 1,
    depths: Annotated[
        str, typer.Option(help="Depths of the drafts of rounds, separated by commas (without it: 3,5,7).")
    ] = "",
    gate: Annotated[
        Path | None,
        typer.Option(
            help="In rounds and baselines: compile, make GATE.ready, and measure when GATE is there. So several runs "
            "compile side by side and are timed one after the other."
        ),
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(help="Numbers of nodes of the sweep, separated by commas; each is compiled (without it: seven)."),
    ] = "",
) -> None:
    """What the card gives, what decoding takes of it, and what drafting gains.

    Example: mmspec bench gpu --stage ceilings,attention --minutes 9 --out results
    """
    from mmspec.benchmarks.gpu.bench import Bench, Settings
    from mmspec.benchmarks.gpu.clock import Deadline, OutOfTime
    from mmspec.loading import DTYPES

    chosen = STAGES if stage == "all" else words(stage)
    for name in chosen or ("",):
        if name not in STAGES:
            raise unknown_name("stage", name, (*STAGES, "all"))
    dtype = dtype or ("float32" if small else "bfloat16")
    if dtype not in DTYPES[:-1]:
        raise InputError(f"dtype={dtype} is not valid: {', '.join(DTYPES[:-1])}")
    if repeats < 1 or tokens < 2 or rows < 1:
        raise InputError(f"repeats={repeats}, tokens={tokens}, rows={rows} are not valid: at least 1, 2, 1 are needed")
    compiles = not small if compile is None else compile
    if not (plain or compiles):
        raise InputError("--no-plain and no compiled forwards leave nothing to measure: add --compile")
    settings = Settings(
        small=small,
        device=device or ("cpu" if small else "cuda"),
        dtype=dtype,
        compile=compiles,
        plain=plain,
        repeats=min(repeats, SMALL_REPEATS) if small else repeats,
        tokens=min(tokens, SMALL_TOKENS) if small else tokens,
        rows=rows,
        depths=tuple(sorted(set(whole_numbers(depths, "depths")))),
        nodes=tuple(sorted(set(whole_numbers(nodes, "nodes")))),
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    logging.getLogger("mmspec.benchmarks.gpu").setLevel(logging.INFO)
    deadline = Deadline(minutes)
    wanted = words(models)
    for name in chosen:
        module = import_module(f"mmspec.benchmarks.gpu.{name}")
        bench = Bench(name, settings, out, wanted, deadline, module.INTRO, module.tables, gate)
        try:
            module.run(bench)
        except OutOfTime:
            print(f"{name}: the {minutes:g} minutes are over; the same command goes on", file=sys.stderr)
            break
        finally:
            print(bench.book.text())
