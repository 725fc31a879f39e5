"""From the samples of a run of continuous tokens to what is read: tables, summary, contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmspec import Pipeline
from mmspec.benchmarks.drawing.canvas_run import check, paint_all, timed
from mmspec.benchmarks.drawing.quality import Drawn, eyes, qualities
from mmspec.benchmarks.drawing.report import JUDGED_HEAD, JUDGED_NOTE, PictureReport, judged_cells, judged_table
from mmspec.benchmarks.drawing.run import ImageSettings, judge_of
from mmspec.benchmarks.figures import method_figures
from mmspec.benchmarks.records import Sample
from mmspec.benchmarks.tables import FEW, aligned, number, percent, span

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


class CanvasReport(PictureReport):
    """What a run of continuous tokens says; its speeds are `CanvasSpeed`."""

    def speed_block(self, size: int, found: Sequence[CanvasSpeed]) -> str:
        """See `PictureReport`."""
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

    def quality_block(self) -> str:
        """See `PictureReport`."""
        return f"{judged_table(self.quality, [JUDGED_HEAD, *map(judged_cells, self.quality)])}\n\n{NOTE}"


def canvas_speed(samples: Sequence[Sample], method: str, length: int, alpha: float | None) -> CanvasSpeed:
    """The figures of one row; samples are of one batch size."""
    found = method_figures(samples, method)
    return CanvasSpeed(
        method,
        found.lossless,
        (found.ms_per_token or 0.0) * length,
        found.verifications / sum(sample.runs[method].more["pictures"] for sample in samples),
        found.tau,
        alpha,
        found.speedup,
        found.speedup_low,
        found.speedup_high,
        found.draft,
        found.verify,
        found.other,
    )


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
    drawn = Drawn(painted.asked, {}, painted.pictures)
    quality = qualities(pipe, settings, drawn, lossless, judge, see)
    reader = None if judge is None else judge.own_figures
    return CanvasReport(settings, length, speeds, quality, reader, drawn)
