"""A plan at work: models and tasks one after the other, each in a folder of its own, so that a kill loses nothing.

What is wrong with one model or one task is told, and the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmspec.benchmarks.machine import told_conditions
from mmspec.benchmarks.plan import Plan
from mmspec.benchmarks.records import FolderError, plain
from mmspec.benchmarks.report import keep
from mmspec.benchmarks.start import check_sees, loaded, usual_rows
from mmspec.benchmarks.survey import survey_table
from mmspec.benchmarks.tables import SHARED
from mmspec.benchmarks.task_report import TaskReport, task_report
from mmspec.benchmarks.task_run import run_task
from mmspec.benchmarks.tasks.task import WORDED
from mmspec.errors import Error, InputError, one_line
from mmspec.safe_files import write_whole
from mmspec.spread import Where, spread_over


@dataclass
class PlanReport:
    """summaries: of the reports, as they were kept. failures: what could not be run, and why. command: the call."""

    plan: Plan
    reports: list[TaskReport]
    summaries: list[dict[str, Any]]
    failures: list[str]
    command: str

    @property
    def conditions(self) -> str:
        """When and where the samples were begun, a line for each that is unlike the others."""
        found = [one for summary in self.summaries for one in (summary, *summary.get("others", []))]
        return "\n".join(dict.fromkeys(map(told_conditions, found)))

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "command": self.command,
            "reports": self.summaries,
            "failures": self.failures,
        }

    def text(self) -> str:
        """Everything, for people: the survey's table first if there is one."""
        parts = [survey_table(self.plan.table, self.reports)] if self.plan.table else []
        parts += [SHARED] if self.plan.table and any(report.run.shared for report in self.reports) else []
        parts += [report.text() for report in self.reports]
        parts += [f"failed: {line}" for line in self.failures]
        return "\n\n\n".join([*parts, f"{self.command}\n{self.conditions}"])


def run_plan(plan: Plan, folder: Path, command: str, page: bool, where: Where | None = None) -> PlanReport:
    """Run what the folder does not hold yet; writes summary.json, table.txt and, if `page`, report.html there.

    Args: where: the Ray cluster whose workers answer; by default this process does.
    Raises: InputError: nothing at all could be run. FolderError: what the folder holds of a task is of another run;
        then a summary that is there already stays as it is.
    """
    reports, summaries, failures = [], [], []
    for model in plan.models:
        tasks, refused = askable(model, plan.tasks)
        failures += refused
        if not tasks:
            continue
        load = partial(loaded, plan.settings(model, tasks[0]).speed, "none")
        try:
            pipe = load()
        except Error as error:
            failures.append(f"{model}: {one_line(error)}")
            continue
        here = plan if plan.drafters else replace(plan, drafters=usual_rows(pipe, plan.usual_drafters))
        with spread_over(where, pipe, load) as spread:
            for task in tasks:
                place = folder / plain(model) / task
                try:
                    found = task_report(run_task(pipe, here.settings(model, task), place, spread))
                except FolderError:
                    raise
                except Error as error:
                    failures.append(f"{model}, {task}: {one_line(error)}")
                    continue
                reports.append(found)
                summaries.append(keep(place, found)[0])
    if not reports:
        raise InputError("; ".join(failures))
    report = PlanReport(plan, reports, summaries, failures, command)
    keep(folder, report)
    if page:
        from mmspec.benchmarks.page import page as draw

        write_whole(folder / "report.html", draw(report))
    return report


def askable(model: str, tasks: Sequence[str]) -> tuple[list[str], list[str]]:
    """The tasks that a model can be asked, judged before its weights are read, and why the others are refused."""
    refused: dict[str, list[str]] = {}
    for task in tasks:
        try:
            check_sees(model, worded=task in WORDED)
        except Error as error:
            refused.setdefault(one_line(error), []).append(task)
    left = [task for each in refused.values() for task in each]
    told = [f"{model}, {', '.join(each)}: {why}" for why, each in refused.items()]
    return [task for task in tasks if task not in left], told
