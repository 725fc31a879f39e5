"""Runs of tasks and tables: their settings from a file and from options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mmspec.benchmarks.commands.reading import given, kept_in, numbers, option, show, taken, words
from mmspec.errors import InputError

if TYPE_CHECKING:
    from mmspec.benchmarks.plan import Plan
    from mmspec.spread import Where


TABLE_QUESTIONS, TASK_REPEATS = 6, 1
"""Of every kind in the table of drafters; of the same question in all tables, and in tasks (`Plan`)."""


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

    told = given(context)
    refused = ("data", "config", "style", "judge", "memory", "plot", "shape", "ray", "workers")
    refuse(refused, told, "--table drafters")
    families = words(told["model"]) if "model" in told else FAMILIES
    speed = taken(
        SpeedSettings,
        {"questions": TABLE_QUESTIONS, "repeats": TASK_REPEATS} | told,
        model=families[0],
        drafters=usual(words(told.get("drafters", ""))),
        temperatures=numbers(told.get("temperature", "0,1")),
    )
    tasks = words(told["task"]) if "task" in told else tuple(TASKS)
    with kept_in(out) as folder:
        table = run_table(TableSettings(speed, families, tasks), folder)
    show(table.summary(), table.text(), as_json)


def plan_of(context: typer.Context) -> Plan:
    """The plan of a call: the settings of its file, then the options that were given."""
    from mmspec.benchmarks.plan import Plan, read_plan

    told = given(context)
    if not told.get("memory"):
        told.pop("memory", None)  # tasks do what --no-memory asks for
    refuse(("min_tokens", "memory"), told, "tasks")
    settings = read_plan(told["config"]) if "config" in told else {}
    renamed = {"model": "models", "task": "tasks", "temperature": "temperatures"}
    readers: dict[str, Callable[[str], Any]] = {
        "model": words,
        "task": words,
        "drafters": words,
        "temperature": numbers,
        "table": table_number,
    }
    known = {each.name for each in fields(Plan)} - {"data"}
    for name, value in told.items():
        setting = renamed.get(name, name)
        if setting in known:
            settings[setting] = readers[name](value) if name in readers else value
    plan = Plan(**settings)
    if "data" not in told:
        return plan
    paths = {task: told["data"] / task if len(plan.tasks) > 1 else told["data"] for task in plan.tasks}
    return replace(plan, data={**plan.data, **paths})


def refuse(names: Iterable[str], told: Container[str], run: str) -> None:
    """Raise InputError for the first option that was given and that this run does not take."""
    for name in names:
        if name in told:
            raise InputError(f"{option(name)} is not for {run}: leave it out")


def table_number(text: str) -> int:
    """The number of one of the survey's tables."""
    if text not in ("1", "2"):
        raise InputError(f"table {text!r} is not valid: 1, 2 or drafters is needed")
    return int(text)
