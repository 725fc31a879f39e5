"""Runs of tasks and tables: their settings from a file and from options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mmspec.benchmarks.commands.reading import kept_in, numbers, show, was_given, words
from mmspec.errors import InputError

if TYPE_CHECKING:
    from mmspec.benchmarks.plan import Plan
    from mmspec.spread import Where


def run_tasks(plan: Plan, out: Path | None, page: bool, as_json: bool, where: Where | None) -> None:
    """Run a plan and print what it found. What failed is told at the end, and by the exit status."""
    from mmspec.benchmarks.plan_run import run_plan
    from mmspec.benchmarks.plot import require_matplotlib

    if page:
        require_matplotlib()
    with kept_in(out) as folder:
        report = run_plan(plan, folder, f"mmspec {shlex.join(sys.argv[1:])}", page, where)
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
    refused = ("data", "config", "style", "judge", "memory", "plot", "shape", "ray", "workers")
    refuse(refused, given, "--table drafters")
    numbers_of = ("questions", "max_new_tokens", "min_tokens", "repeats", "seed")
    same = ("acceptance", *numbers_of, "threads", "dtype", "device", "compile")
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


def plan_of(context: typer.Context) -> Plan:
    """The plan of a call: the settings of its file, then the options that were given."""
    from mmspec.benchmarks.plan import Plan, read_plan

    given = {name: value for name, value in context.params.items() if was_given(context, name)}
    if not given.get("memory"):
        given.pop("memory", None)  # tasks do what --no-memory asks for
    refuse(("min_tokens", "memory"), given, "tasks")
    settings = read_plan(given["config"]) if "config" in given else {}
    renamed = {"model": "models", "task": "tasks", "temperature": "temperatures"}
    readers: dict[str, Callable[[str], Any]] = {
        "model": words,
        "task": words,
        "drafters": words,
        "temperature": numbers,
        "table": table_number,
    }
    same = (
        "acceptance",
        "questions",
        "max_new_tokens",
        "repeats",
        "seed",
        "style",
        "judge",
        "threads",
        "dtype",
        "device",
        "shape",
        "compile",
    )
    for name in (*readers, *same):
        if name in given:
            settings[renamed.get(name, name)] = readers.get(name, lambda value: value)(given[name])
    plan = Plan(**settings)
    if "data" not in given:
        return plan
    paths = {task: given["data"] / task if len(plan.tasks) > 1 else given["data"] for task in plan.tasks}
    return replace(plan, data={**plan.data, **paths})


def refuse(names: Iterable[str], given: Container[str], run: str) -> None:
    """Raise InputError for the first option that was given and that this run does not take."""
    for name in names:
        if name in given:
            raise InputError(f"--{name.replace('_', '-')} is not for {run}: leave it out")


def table_number(text: str) -> int:
    """The number of one of the survey's tables."""
    if text not in ("1", "2"):
        raise InputError(f"table {text!r} is not valid: 1, 2 or drafters is needed")
    return int(text)
