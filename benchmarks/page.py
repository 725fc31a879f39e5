"""A run of tasks as one HTML page that needs nothing beside it: tables, plots, examples, and what they depend on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from mmspec.benchmarks import plot
from mmspec.benchmarks.survey import survey_table
from mmspec.benchmarks.task_report import TaskReport

if TYPE_CHECKING:
    from mmspec.benchmarks.plan_run import PlanReport

EXAMPLES = 3
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: auto; padding: 1rem; color: #222; }
pre { overflow-x: auto; background: #f5f5f5; padding: 0.75rem; font-size: 13px; line-height: 1.35; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.plots svg { width: 100%; height: auto; }
.failed { color: #a00; }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid #ddd; }
"""


def page(report: PlanReport) -> str:
    """The whole page."""
    parts = [f"<h1>Speculative decoding: {escape(', '.join(report.plan.models))}</h1>"]
    parts.append(f"<p><code>{escape(report.command)}</code></p>")
    parts.append(f"<pre>{escape(report.conditions)}</pre>")
    parts += [f'<p class="failed">failed: {escape(line)}</p>' for line in report.failures]
    if report.plan.table:
        parts.append(
            f"<h2>Table {report.plan.table}</h2><pre>{escape(survey_table(report.plan.table, report.reports))}</pre>"
        )
    parts += [section(each) for each in report.reports]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    body = f"<head>{head}<title>mmspec bench</title></head>\n<body>{''.join(parts)}</body>"
    return f'<!doctype html>\n<html lang="en">{body}</html>\n'


def section(report: TaskReport) -> str:
    """One task: what its text report says, plots, examples."""
    plots = "".join(f"<div>{plot.drawing(draw)}</div>" for draw in panels(report))
    text = f"<pre>{escape(report.text())}</pre>"
    return f'<h2>{escape(report.name)}</h2>{text}<div class="plots">{plots}</div>{examples(report)}'


def panels(report: TaskReport) -> list[Callable[[Any], None]]:
    """The plots of a task."""
    drafting = [figures for figures in report.figures if len(figures.histogram) > 1]
    timed = [figures for figures in report.figures if figures.verify is not None]
    classes = {
        f"{method}, T={temperature:g}": found
        for temperature in report.run.settings.speed.temperatures
        for method, found in report.classes(temperature).items()
    }
    return [
        partial(plot.draw_speed, found=report.figures),
        partial(plot.draw_positions, found=drafting),
        partial(plot.draw_shares, found=classes, share="share of tokens that were drafted", title="by class of token"),
        partial(plot.draw_split, found=timed),
    ]


def examples(report: TaskReport) -> str:
    """The first questions, with the replies of the method that ran first."""
    rows = []
    for each in report.run.answered[:EXAMPLES]:
        method, reply = next(iter(each.replies.items()))
        mark = "right" if reply.right else "wrong" if each in report.run.judged else "not judged"
        cells = (each.id, method, reply.text, reply.value, mark)
        rows.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("question", "method", "reply", "answer found", "mark"))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
