"""From the samples of a run of continuous tokens to what is read: tables and summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmspec.benchmarks.drawing.report import JUDGED_HEAD, JUDGED_NOTE, PictureReport, judged_cells, judged_table
from mmspec.benchmarks.figures import Figures
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
