"""The whole run of a model that draws: speed at every batch size, pictures, and what is said of both."""

from __future__ import annotations

from pathlib import Path

from mmspec import Pipeline
from mmspec.benchmarks.certainty import mean_top
from mmspec.benchmarks.clip import Clip
from mmspec.benchmarks.drawing.canvas_report import CanvasReport
from mmspec.benchmarks.drawing.canvas_run import paint_all
from mmspec.benchmarks.drawing.quality import Drawn, decoded, eyes, qualities
from mmspec.benchmarks.drawing.report import ImageReport, PictureReport
from mmspec.benchmarks.drawing.run import ImageSettings, draw_all, fitted, judge_kind, judge_of, places, run_batch
from mmspec.benchmarks.figures import figures

GAUGED = 4
"""Captions over which the gauge is taken."""


def run_images(pipe: Pipeline, settings: ImageSettings, folder: Path) -> PictureReport:
    """Everything, of codes or of continuous tokens. It goes on where an earlier run in `folder` stopped.

    Args: pipe: a pipeline on the target, without a drafter.
    """
    settings = fitted(pipe, settings)
    judge = judge_of(pipe, settings)
    see, clip = eyes(settings, judge), Clip(settings.clip) if settings.clip else None
    asked = judge_kind().captions(settings.captions, settings.prompts)
    *timed, painted = places(settings, folder)
    sizes = zip(settings.batches, timed, strict=True)
    speeds = {size: figures(run_batch(pipe, settings, size, place)) for size, place in sizes}
    lossless = {each.method: each.lossless for each in next(iter(speeds.values()))}
    continuous = pipe.target.emits == "values"
    if continuous:
        pictures, rates = paint_all(pipe, settings, asked, painted)
        drawn = Drawn(asked, {}, pictures)
    else:
        drawn = decoded(pipe, asked, draw_all(pipe, settings, asked, painted))
    quality = qualities(pipe, settings, drawn, lossless, judge, see, clip)
    reader = None if judge is None else judge.own_figures
    told = settings, settings.speed.max_new_tokens, speeds, quality, reader, drawn
    if continuous:
        return CanvasReport(*told, rates, stores=[*timed, painted])
    asking = {"temperature": settings.temperature, "guidance": settings.guidance}
    top = mean_top(pipe, [{"prompt": one.prompt, **asking} for one in asked[:GAUGED]])
    return ImageReport(*told, top, stores=[*timed, painted])
