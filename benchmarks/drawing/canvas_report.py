"""From the samples of a run of continuous tokens to what is read: tables, summary, contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmspec import Pipeline
from mmspec.benchmarks.drawing.canvas_run import fitted, paint_all
from mmspec.benchmarks.drawing.quality import Drawn, eyes, qualities
from mmspec.benchmarks.drawing.report import JUDGED_HEAD, JUDGED_NOTE, PictureReport, judged_cells, judged_table
from mmspec.benchmarks.drawing.run import ImageSettings, judge_kind, judge_of, places, run_batch
from mmspec.benchmarks.figures import Figures, figures
from mmspec.benchmarks.tables import FEW, aligned, named, number, percent, span

SPEED_HEAD = ["method", "ms/picture", "NFE", "tokens/NFE", "alpha", "S", "95 %", "draft", "verify", "other"]
NOTE = f"""\
NFE: target forwards per picture; one that judges drafted groups reads as many canvases as there are groups and one
more, except under the rules that judge all of them from one canvas. alpha: drafted tokens that were accepted. S:
against our plain decoding in the model's own steps, the only one there is; other steps draw from another law (lossy).
{JUDGED_NOTE}"""


@dataclass
class CanvasReport(PictureReport):
    """What a run of continuous tokens says. rates: share of drafted tokens that were accepted, by row."""

    rates: dict[str, float | None]

    def speed_more(self, each: Figures) -> dict[str, float | None]:
        """See `PictureReport`."""
        return {
            "alpha": self.rates[each.method],
            "ms_per_picture": each.ms_per_token and each.ms_per_token * self.length,
            "forwards": each.verifications / (each.new_tokens / self.length),  # a canvas begins empty: no prefill
        }

    def speed_block(self, size: int, found: Sequence[Figures]) -> str:
        """See `PictureReport`."""
        rows = [SPEED_HEAD]
        for each in found:
            more = self.speed_more(each)
            rows.append([
                named(each),
                number(more["ms_per_picture"], 0),
                number(more["forwards"], 1),
                number(each.tau),
                number(more["alpha"]),
                number(each.speedup),
                span(each.speedup_low, each.speedup_high),
                percent(each.draft),
                percent(each.verify),
                percent(each.other),
            ])  # fmt: skip
        few = [FEW] if any(each.speedup is not None and each.speedup_low is None for each in found) else []
        return "\n".join([f"batch {size}", aligned(rows), *few])

    def quality_block(self) -> str:
        """See `PictureReport`."""
        return f"{judged_table(self.quality, [JUDGED_HEAD, *map(judged_cells, self.quality)])}\n\n{NOTE}"


def run_canvas(pipe: Pipeline, settings: ImageSettings, folder: Path) -> CanvasReport:
    """Everything: speed at every batch size, pictures, figures. It goes on where an earlier run in `folder` stopped.

    Args: pipe: a pipeline on the target, without a drafter.
    """
    settings = fitted(pipe, settings)
    judge = judge_of(pipe, settings)
    see = eyes(settings, judge)
    asked = judge_kind().captions(settings.captions, settings.prompts)
    *timed, painted = places(settings, folder)
    sizes = zip(settings.batches, timed, strict=True)
    speeds = {size: figures(run_batch(pipe, settings, size, place)) for size, place in sizes}
    pictures, rates = paint_all(pipe, settings, asked, painted)
    lossless = {each.method: each.lossless for each in next(iter(speeds.values()))}
    drawn = Drawn(asked, {}, pictures)
    return CanvasReport(
        settings,
        settings.speed.max_new_tokens,
        speeds,
        qualities(pipe, settings, drawn, lossless, judge, see),
        None if judge is None else judge.own_figures,
        drawn,
        rates,
        stores=[*timed, painted],
    )
