"""From the samples of a run of continuous tokens to what is read: tables, summary, contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmspec import Pipeline
from mmspec.benchmarks.drawing.canvas_run import Painted, check, paint_all, timed
from mmspec.benchmarks.drawing.measures import frechet
from mmspec.benchmarks.drawing.plots import contact_sheet, sheet_rows
from mmspec.benchmarks.drawing.quality import Drawn, Quality, eyes, facts_of, marks, of_real, real_pictures
from mmspec.benchmarks.drawing.report import JUDGED_HEAD, JUDGED_NOTE, about_reader, heading, judged_cells
from mmspec.benchmarks.drawing.run import FOLDERS, ImageSettings, judge_of
from mmspec.benchmarks.figures import OURS, decode_cost, interval, mean_emitted, ratio, seconds_per_token, time_split
from mmspec.benchmarks.machine import conditions
from mmspec.benchmarks.records import Sample
from mmspec.benchmarks.tables import FEW, aligned, number, percent, span
from mmspec.media import save_image

SPEED_HEAD = ["method", "ms/picture", "NFE", "tokens/NFE", "alpha", "S", "95 %", "draft", "verify", "other"]
NOTE = f"""\
NFE: target forwards per picture; one that judges drafted groups reads as many canvases as there are groups and one
more, except under the rules that judge all of them from one canvas. alpha: drafted tokens that were accepted. S:
against our plain decoding in the model's own steps, the only one there is; other steps draw from another law (lossy).
{JUDGED_NOTE}"""


@dataclass(frozen=True)
class CanvasSpeed:
    """One row at one batch size. None stands for what cannot be said."""

    method: str
    lossless: bool
    ms_per_picture: float
    forwards: float
    tokens_per_forward: float | None
    alpha: float | None
    speedup: float | None
    low: float | None
    high: float | None
    draft: float | None
    verify: float | None
    other: float | None


@dataclass
class CanvasReport:
    """What a run says. speeds: by batch size. reader: how good the judge's reader is."""

    settings: ImageSettings
    length: int
    speeds: dict[int, list[CanvasSpeed]]
    quality: list[Quality]
    reader: dict[str, float] | None
    drawn: Drawn

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        settings = asdict(self.settings)
        settings |= {name: value and str(value) for name, value in settings.items() if name in FOLDERS}
        return {
            "settings": settings,
            **conditions(),
            "speed": [{"batch": size} | asdict(each) for size, found in self.speeds.items() for each in found],
            "quality": [asdict(each) for each in self.quality],
            "reader": self.reader,
        }

    def text(self) -> str:
        """Everything, for people."""
        parts = [
            heading(self.settings, self.length),
            *(speed_block(size, found) for size, found in self.speeds.items()),
        ]
        parts += [quality_block(self.quality), NOTE, about_reader(self.reader)]
        return "\n\n".join(parts)

    def save_sheet(self, folder: Path) -> None:
        """The contact sheet."""
        save_image(contact_sheet(self.drawn, sheet_rows(self.quality)), folder / "sheet.png")


def canvas_speed(samples: Sequence[Sample], method: str, length: int, alpha: float | None) -> CanvasSpeed:
    """The figures of one row; samples are of one batch size."""
    runs = [sample.runs[method] for sample in samples]
    pictures = sum(run.more["pictures"] for run in runs)
    known = all(OURS in sample.runs for sample in samples)
    low, high = interval(samples, OURS, method) if known else (None, None)
    draft, verify, other = time_split(runs)
    return CanvasSpeed(
        method,
        all(run.lossless for run in runs),
        1000 * (seconds_per_token(runs) or 0.0) * length,
        sum(run.verifications for run in runs) / pictures,
        mean_emitted(runs),
        alpha,
        ratio(samples, OURS, method, decode_cost) if known else None,
        low,
        high,
        draft,
        verify,
        other,
    )


def speed_block(size: int, found: Sequence[CanvasSpeed]) -> str:
    """The speed of every row at one batch size."""
    rows = [SPEED_HEAD]
    for each in found:
        rows.append([
            each.method + ("" if each.lossless else " (lossy)"),
            number(each.ms_per_picture, 0),
            number(each.forwards, 1),
            number(each.tokens_per_forward),
            number(each.alpha),
            number(each.speedup),
            span(each.low, each.high),
            percent(each.draft),
            percent(each.verify),
            percent(each.other),
        ])  # fmt: skip
    few = [FEW] if any(each.speedup is not None and each.low is None for each in found) else []
    return "\n".join([f"batch {size}", aligned(rows), *few])


def quality_block(found: Sequence[Quality]) -> str:
    """The quality of every row."""
    rows = [JUDGED_HEAD, *map(judged_cells, found)]
    return f"quality: {found[-1].pictures} captions\n{aligned(rows)}"


def qualities(pipe: Pipeline, painted: Painted, lossless: dict[str, bool], judge: Any, see: Any) -> Any:
    """The figures of every row, above them, with `eyes` that see, those of the real pictures; and what is shown."""
    drawn = Drawn(painted.asked, {}, painted.pictures)
    real, found = real_pictures(drawn, see), []
    kept = facts_of(judge, drawn.asked, drawn.pictures.get(OURS))
    for name, pictures in drawn.pictures.items():
        told: dict[str, Any] = marks(judge, drawn.asked, pictures, kept)
        if real is not None:
            told["frechet"] = frechet(see(pictures), real)
        found.append(Quality(row=name, lossless=lossless[name], pictures=len(pictures), **told))
    return ([] if real is None else of_real(pipe, drawn, judge, see, real)) + found, drawn


def run_canvas(pipe: Pipeline, settings: ImageSettings, folder: Path) -> CanvasReport:
    """Everything: speed at every batch size, pictures, figures. It goes on where an earlier run in `folder` stopped.

    Args: pipe: a pipeline on the target, without a drafter.
    """
    check(pipe, settings)
    length = pipe.target.budget
    judge = judge_of(pipe, settings)
    see = eyes(settings, judge)
    samples = {size: timed(pipe, settings, size, folder / f"batch-{size}") for size in settings.batches}
    painted = paint_all(pipe, settings, folder / "pictures")
    speeds = {
        size: [canvas_speed(found, name, length, painted.rates[name]) for name in settings.speed.drafters]
        for size, found in samples.items()
    }
    lossless = {each.method: each.lossless for each in next(iter(speeds.values()))}
    quality, drawn = qualities(pipe, painted, lossless, judge, see)
    reader = None if judge is None else judge.own_figures
    return CanvasReport(settings, length, speeds, quality, reader, drawn)
