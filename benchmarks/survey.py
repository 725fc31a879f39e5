"""The two tables of the survey "Speculative Decoding for Multimodal Models", with our figures in them.

Table 2: S and tau of every task and their average, a block per temperature. Table 1: S of every kind of text, tau over
all, and the geometric mean of S. A dash stands where nothing could be measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mmspec.benchmarks.figures import BASELINES, figures
from mmspec.benchmarks.tables import aligned, number
from mmspec.benchmarks.task_report import LEAST, TaskReport
from mmspec.benchmarks.tasks.spec_bench import KINDS, SpecBench
from mmspec.benchmarks.tasks.task import find_task

NAMES = {"spd": "SPD", "kangaroo": "Kangaroo", "medusa": "Medusa", "hydra": "Hydra", "eagle": "EAGLE",
         "eagle2": "EAGLE-2", "hass": "HASS", "retrieval": "REST", "prompt-lookup": "PLD", "suffix": "Suffix",
         "recycling": "Recycling", "lookahead": "Lookahead", "hf-assisted": "HF assisted",
         "hf-prompt-lookup": "HF prompt lookup"}  # fmt: skip
OVERALL = "Overall S: the geometric mean over the kinds; below, S is a ratio of all seconds. #Acc. Tok.: tau."


def survey_table(table: int, reports: Sequence[TaskReport]) -> str:
    """Table 1 or 2 over the reports of a run."""
    return table_1(reports) if table == 1 else table_2(reports)


def table_2(reports: Sequence[TaskReport]) -> str:
    """S and tau per task, averaged arithmetically over the tasks."""
    tasks = list(dict.fromkeys(report.run.settings.task for report in reports))
    head = ["model", "method"]
    for task in tasks:
        head += [f"{find_task(task).short} S", "tau"]
    blocks = []
    for temperature in temperatures(reports):
        rows = [[*head, "Average S", "tau"]]
        for model in dict.fromkeys(report.run.settings.speed.model for report in reports):
            found = {r.run.settings.task: r for r in reports if r.run.settings.speed.model == model}
            for method in drafting(found.values(), temperature):
                told = [found[task].figure(method, temperature) if task in found else None for task in tasks]
                speeds = [each.speedup if each else None for each in told]
                taus = [each.tau if each else None for each in told]
                pairs = zip([*speeds, mean(speeds)], [*taus, mean(taus)], strict=True)
                cells = [number(value) for pair in pairs for value in pair]
                rows.append([model, NAMES.get(method, method), *cells])
        blocks.append(f"Temperature = {temperature:g}\n{aligned(rows)}")
    return "\n\n".join([*blocks, "Average: the arithmetic mean over the tasks.", stand_ins(reports)])


def table_1(reports: Sequence[TaskReport]) -> str:
    """S per kind of text, the best method first."""
    head = ["model", "method", *KINDS.values(), "#Acc. Tok.", "Overall S"]
    blocks = []
    for temperature in temperatures(reports):
        rows = [head]
        for report in reports:
            lines = []
            kinds = [kind_speeds(report, kind, temperature) for kind in KINDS.values()]
            for method in drafting([report], temperature):
                speeds = [kind.get(method) for kind in kinds]
                whole = report.figure(method, temperature)
                overall = geometric(speeds)
                cells = [*map(number, speeds), number(whole.tau if whole else None), number(overall)]
                lines.append((overall or 0.0, [report.run.settings.speed.model, NAMES.get(method, method), *cells]))
            rows += [line for _, line in sorted(lines, key=lambda each: -each[0])]
        blocks.append(f"Temperature = {temperature:g}\n{aligned(rows)}")
    return "\n\n".join([*blocks, f"{OVERALL}\n{SpecBench.note}.", stand_ins(reports)])


def kind_speeds(report: TaskReport, kind: str, temperature: float) -> dict[str, float | None]:
    """S of every method on one kind of text."""
    samples = [
        each.sample
        for each in report.run.answered
        if each.groups.get("category") == kind
        and each.sample.temperature == temperature
        and all(len(run.tokens) >= LEAST for run in each.sample.runs.values())
    ]
    return {each.method: each.speedup for each in figures(samples)}


def temperatures(reports: Sequence[TaskReport]) -> list[float]:
    """All temperatures, in order."""
    return sorted({each.temperature for report in reports for each in report.figures})


def drafting(reports: Iterable[TaskReport], temperature: float) -> list[str]:
    """The methods that draft, in the order in which they ran."""
    names = (f.method for report in reports for f in report.figures if f.temperature == temperature)
    return [name for name in dict.fromkeys(names) if name not in BASELINES]


def mean(values: Sequence[float | None]) -> float | None:
    """The arithmetic mean; None where a value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def geometric(values: Sequence[float | None]) -> float | None:
    """The geometric mean; None where a value is missing."""
    logs = mean([math.log(value) if value else None for value in values])
    return None if logs is None else math.exp(logs)


def stand_ins(reports: Sequence[TaskReport]) -> str:
    """What the columns really are."""
    told = list(dict.fromkeys(r.run.settings.name for r in reports if r.run.settings.data is None))
    return f"Stand-in data, no results of the data sets: {', '.join(told)}" if told else "Official data."
