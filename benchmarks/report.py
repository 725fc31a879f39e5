"""From samples to what is read: summary, table and plot of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from mmspec import Pipeline
from mmspec.benchmarks.accuracy import AccuracySettings, Judged
from mmspec.benchmarks.figures import OURS, Figures, figures, long_enough, scores
from mmspec.benchmarks.gauges import Gauges, gauges
from mmspec.benchmarks.plot import plot
from mmspec.benchmarks.questions import told_of_own
from mmspec.benchmarks.records import Sample, conditions_of
from mmspec.benchmarks.speed import Prompt, SpeedSettings
from mmspec.benchmarks.tables import SHARED, accuracy_table, gauge_table, speed_table
from mmspec.safe_files import write_whole


@dataclass
class SpeedReport:
    """What a speed run says. samples: how many were taken, kept: how many had a reply that is long enough.

    peaks: method -> peak bytes, see `mmspec.benchmarks.memory`. weights: method -> bytes of its drafter's own network.
    shared: whether workers shared a machine, so that timings are no speeds. own: how many questions one's own data has.
    refused: why some of those that were chosen could not be asked.
    """

    settings: SpeedSettings
    samples: int
    kept: int
    figures: list[Figures]
    gauges: list[Gauges]
    peaks: dict[str, int]
    shared: bool = False
    weights: dict[str, int] = field(default_factory=dict)
    own: int = 0
    refused: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "settings": asdict(self.settings),
            "shared": self.shared,
            "samples": self.samples,
            "counted": self.kept,
            "figures": [asdict(figures) for figures in self.figures],
            "gauges": [asdict(gauges) for gauges in self.gauges],
            "peak_bytes": self.peaks,
            "draft_bytes": self.weights,
            "refused": self.refused,
        }

    def text(self) -> str:
        """Everything, for people."""
        title = f"{self.settings.model}, acceptance {self.settings.acceptance}"
        title += ", our loop compiled" if self.settings.compile else ""
        length = f"{self.kept} of {self.samples} replies have at least {self.settings.min_tokens} tokens and count"
        table = speed_table(self.figures, self.peaks, self.peaks.get(OURS))
        sizes = ", ".join(f"{name} {size / 2**20:.2f} MB" for name, size in self.weights.items())
        notes = [f"own weights of the drafters: {sizes}"] if sizes else []
        notes += [SHARED] if self.shared else []
        notes += [told_of_own(self.settings.questions, self.own)] if self.settings.data is not None else []
        if self.refused:
            notes.append(f"{len(self.refused)} of them cannot be asked; the first: {self.refused[0]}")
        tables = [table, gauge_table(self.gauges)] if self.gauges else [table]
        return "\n\n".join([f"{title}: {length}", *tables, *notes])

    def draw(self, path: Path) -> None:
        """The plot."""
        plot(self.figures, f"{self.settings.model}, {self.kept} replies per method", path)


def speed_report(
    pipe: Pipeline,
    samples: Sequence[Sample],
    settings: SpeedSettings,
    questions: Sequence[Prompt],
    peaks: dict[str, int],
    shared: bool = False,
    weights: dict[str, int] | None = None,
    own: int = 0,
    refused: list[str] | None = None,
) -> SpeedReport:
    """The report of a run. questions: those of `asked`. own, refused: see `SpeedReport`.

    Raises: InputError if no reply is long enough to count.
    """
    kept = long_enough(samples, settings.min_tokens)
    found = figures(kept)
    lookup = {each.temperature: each.speedup for each in found if each.method == "prompt-lookup"}
    return SpeedReport(
        replace(settings, compile=pipe.target.compiled),  # where nobody said it
        len(samples),
        len(kept),
        found,
        gauges(pipe, kept, lookup, questions),
        peaks,
        shared,
        weights or {},
        own,
        refused or [],
    )


@dataclass
class AccuracyReport:
    """What an accuracy run says."""

    settings: AccuracySettings
    answers: Sequence[Judged]

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        (whole,) = scores(("all", each.right, each.picture) for each in self.answers)
        return {
            "settings": asdict(self.settings),
            "accuracy": asdict(whole),
            "same_as_stock": self.same if self.settings.stock else None,
            "classes": self.scored("kind"),
            "forms": self.scored("form"),
            "families": self.scored("family"),
        }

    def scored(self, field: str) -> list[dict[str, Any]]:
        """The scores by a field of `Judged`."""
        found = scores((getattr(each, field), each.right, each.picture) for each in self.answers)
        return [asdict(each) for each in found]

    def text(self) -> str:
        """Everything, for people."""
        pictures = "shuffled pictures (control)" if self.settings.shuffle_images else "the right pictures"
        text = f"{self.settings.model}, relaxed accuracy with {pictures}\n\n{accuracy_table(self.answers)}"
        if self.settings.stock:
            text += f"\n\nthe same reply from transformers alone (float32): {self.same} of {len(self.answers)}"
        return text

    @property
    def same(self) -> int:
        """How many answers transformers alone gave as well."""
        return sum(answer.same is True for answer in self.answers)


class Reporting(Protocol):
    """What a run says."""

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""

    def text(self) -> str:
        """Everything, for people."""


def keep(folder: Path, report: Reporting) -> tuple[dict[str, Any], str]:
    """Write summary.json and table.txt of a report into the run's folder; returns its summary and its text.

    Where the samples lie in that folder, the summary says when and where they were begun."""
    summary, text = report.summary() | conditions_of([folder]), report.text()
    write_whole(folder / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    write_whole(folder / "table.txt", text + "\n")
    return summary, text
