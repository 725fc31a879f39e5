"""What a task run says: speed as always, and the task's score with autoregressive decoding and with every method."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mmspec.benchmarks.figures import Figures, Score, figures, scores
from mmspec.benchmarks.tables import SHARED, aligned, percent, span, speed_table
from mmspec.benchmarks.task_run import Answered, TaskRun
from mmspec.benchmarks.token_classes import Counts, summed

LEAST = 2
"""Tokens of a reply that is timed: with one, nothing is decoded after the prefill."""


@dataclass(frozen=True)
class TaskScore:
    """How one method did at one temperature. silent: share of replies in which no answer was found; they are wrong.
    cut: how many of these replies ended by length; what they were about to say is missing.

    groups: breakdown -> value -> score.
    """

    method: str
    temperature: float
    whole: Score
    silent: float
    cut: int
    groups: dict[str, list[Score]]


@dataclass
class TaskReport:
    """The figures of a task run. timed: samples long enough to be timed."""

    run: TaskRun
    figures: list[Figures]
    scores: list[TaskScore]
    timed: int

    def classes(self, temperature: float) -> dict[str, Counts]:
        """Per method that drafts, tokens by class and how many of them were drafted."""
        chosen = [each for each in self.run.answered if each.sample.temperature == temperature]
        found = {
            method: summed(each.replies[method].classes for each in chosen if method in each.replies)
            for method in dict.fromkeys(method for each in chosen for method in each.replies)
        }
        return {method: each for method, each in found.items() if any(drafted for _, drafted in each.values())}

    @property
    def name(self) -> str:
        """Model and task."""
        return f"{self.run.settings.speed.model}, {self.run.settings.name}"

    @property
    def note(self) -> str:
        """What the task says of its figures, "" for nothing."""
        return self.run.task.note

    def figure(self, method: str, temperature: float) -> Figures | None:
        """The figures of one method, if it ran."""
        return next((f for f in self.figures if (f.method, f.temperature) == (method, temperature)), None)

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        settings = self.run.settings
        return {
            "task": settings.name,
            "style": settings.style,
            "metric": self.run.task.metric,
            "settings": asdict(settings.speed),
            "data": str(settings.data) if settings.data else None,
            "note": self.note,
            "shared": self.run.shared,
            "samples": len(self.run.answered),
            "timed": self.timed,
            "judged": len(self.run.judged),
            "figures": [asdict(figures) for figures in self.figures],
            "classes": {f"{t:g}": self.classes(t) for t in settings.speed.temperatures},
            "scores": [asdict(score) for score in self.scores],
            "refused": self.run.refused,
        }

    def text(self) -> str:
        """Everything, for people."""
        settings, parts = self.run.settings, [self.heading()]
        if self.figures:
            parts.append(speed_table(self.figures, {}, None))
        if self.scores:
            parts.append(f"{self.metric()}\n{score_table(self.scores)}")
        if any(score.cut for score in self.scores):
            parts.append(
                f"cut: judged replies that ended by length, after {settings.speed.max_new_tokens} tokens at most"
            )
        parts += [f"refused: {line}" for line in self.run.refused]
        if self.run.shared:
            parts.append(SHARED)
        if settings.style == "score":
            parts.append("Short answers measure the prefill: for tau and S take --style speed.")
        parts += [f"{self.note}."] if self.note else []
        return "\n\n".join(parts)

    def heading(self) -> str:
        """What was measured on what."""
        settings = self.run.settings
        data = str(settings.data) if settings.data else f"stand-in data: no score of {self.run.task.title}"
        timed = f"{self.timed} of {len(self.run.answered)} replies are timed"
        unjudged = len(self.run.answered) - len(self.run.judged)
        if self.run.judged and unjudged:
            timed += f", {unjudged} have no answer in the data and are in no score"
        length = f"replies of at most {settings.speed.max_new_tokens} tokens"
        return f"{self.name} ({data}), {settings.style} prompts, {length}: {timed}"

    def metric(self) -> str:
        """What the score is."""
        if getattr(self.run.task, "judge", None):
            return self.run.task.metric
        by_rules = "answers found in explanations by rules"
        how = self.run.task.scored if self.run.settings.style == "score" else by_rules
        return f"{self.run.task.metric}, {how}"


def task_report(run: TaskRun) -> TaskReport:
    """The report of a run. The score counts every reply that can be judged, the figures those that are long enough."""
    timed = [s for s in run.samples if all(len(each.tokens) >= LEAST for each in s.runs.values())]
    return TaskReport(run, figures(timed), task_scores(run.judged), len(timed))


def task_scores(answered: list[Answered]) -> list[TaskScore]:
    """The scores of every method at every temperature; repetitions of a question belong together."""
    found = []
    for temperature in dict.fromkeys(each.sample.temperature for each in answered):
        chosen = [each for each in answered if each.sample.temperature == temperature]
        for method in dict.fromkeys(method for each in chosen for method in each.replies):
            told = [(each.groups, each.replies[method].right, each.sample.question) for each in chosen]
            (whole,) = scores(("all", right, question) for _, right, question in told)
            groups = {
                group: scores((own[group], right, question) for own, right, question in told if group in own)
                for group in dict.fromkeys(name for own, _, _ in told for name in own)
            }
            silent = sum(not each.replies[method].value for each in chosen) / len(chosen)
            cut = sum(method in each.cut for each in chosen)
            found.append(TaskScore(method, temperature, whole, silent, cut, groups))
    return found


def score_table(scores: list[TaskScore]) -> str:
    """Scores of all methods, a row each; how many replies were cut is told where there are any."""
    cut = any(each.cut for each in scores)
    rows = [["method", "T", "replies", "score", "95 %", "no answer", *(["cut"] if cut else [])]]
    for each in scores:
        whole = each.whole
        told = [str(whole.questions), f"{whole.accuracy:.3f}", span(whole.low, whole.high, 3), percent(each.silent)]
        rows.append([each.method, f"{each.temperature:g}", *told, *([str(each.cut)] if cut else [])])
    return aligned(rows)
