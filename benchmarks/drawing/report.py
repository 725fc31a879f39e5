"""From the samples of an image run to what is read: tables, summary, plots, contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmspec.benchmarks.drawing.plots import contact_sheet, draw_curve, sheet_rows
from mmspec.benchmarks.drawing.quality import Drawn, Quality
from mmspec.benchmarks.drawing.run import FOLDERS, ImageSettings
from mmspec.benchmarks.figures import Figures
from mmspec.benchmarks.plot import plot
from mmspec.benchmarks.records import conditions_of
from mmspec.benchmarks.tables import MISSING, SPEED, aligned, change, named, number, span, speed_cells, speed_notes
from mmspec.media import save_image

HONEST = 0.4
"""The most that the mean top-1 probability of an honest world is."""
SPEED_HEAD = ["method", "ms/picture", "NFE", "NFE x", *SPEED]
"""NFE: target forwards per picture, prefill included. NFE x: codes per forward."""
MANNERS = ("placed", "related", "counted")
JUDGED_HEAD = ["pictures of", "kept", "95 %", "minus AR", "95 %", *MANNERS, "facts", "shuffled", "Frechet", "CLIP"]
JUDGED_NOTE = """\
kept: captions of which everything holds; of these placed: those that say where everything is, related: how two groups
lie, counted: only how many there are; facts: mean share of what is stated that holds; shuffled: kept under other
captions. Frechet: distance to real pictures."""
POOLED = "TV: codes against those of our AR loop, pooled"
BY_PLACE = "TV, KL: codes against those of our AR loop, pooled and place by place"
NOTE = """\
nats: per code under the target's law. What the other seeds of our AR loop show is chance."""


@dataclass
class PictureReport:
    """What a run of pictures says, of whatever tokens. speeds: batch size -> the speed of every row. reader: how good
    the judge's reader is. stores: folders of the samples."""

    settings: ImageSettings
    length: int
    speeds: dict[int, list[Figures]]
    quality: list[Quality]
    reader: dict[str, float] | None
    drawn: Drawn
    stores: Sequence[Path] = field(default=(), kw_only=True)

    def speed_more(self, each: Figures) -> dict[str, float | None]:
        """What is told of the speed of a row beside its figures."""
        raise NotImplementedError

    def speed_block(self, size: int, found: Sequence[Figures]) -> str:
        """The speed of every row at one batch size."""
        raise NotImplementedError

    def quality_block(self) -> str:
        """The quality of every row."""
        raise NotImplementedError

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        settings = asdict(self.settings)
        settings |= {name: value and str(value) for name, value in settings.items() if name in FOLDERS}
        speeds = [(size, each) for size, found in self.speeds.items() for each in found]
        return {
            "settings": settings,
            **conditions_of(self.stores),
            "speed": [{"batch": size} | self.speed_more(each) | asdict(each) for size, each in speeds],
            "quality": [asdict(each) for each in self.quality],
            "reader": self.reader,
        }

    def text(self) -> str:
        """Everything, for people."""
        blocks = [self.speed_block(size, found) for size, found in self.speeds.items()]
        return "\n\n".join(
            [heading(self.settings, self.length), *blocks, self.quality_block(), about_reader(self.reader)]
        )

    def save_sheet(self, folder: Path) -> None:
        """The contact sheet: our AR loop, exact and relaxed methods."""
        save_image(contact_sheet(self.drawn, sheet_rows(self.quality)), folder / "sheet.png")

    def draw(self, folder: Path) -> None:
        """plot.png of the smallest batch, and curve.png where there is quality to show."""
        size = min(self.speeds)
        found = self.speeds[size]
        title = f"{self.settings.speed.model}, batch {size}"
        plot(found, title, folder / "plot.png")
        draw_curve(self.quality, found, title, folder / "curve.png")


@dataclass
class ImageReport(PictureReport):
    """What an image run says. top: the gauge."""

    top: float | None

    def speed_more(self, each: Figures) -> dict[str, float | None]:
        """See `PictureReport`."""
        return {"nfe": nfe(each, self.length), "compression": compression(each, self.length)}

    def speed_block(self, size: int, found: Sequence[Figures]) -> str:
        """See `PictureReport`."""
        rows = [SPEED_HEAD]
        for each in found:
            rows.append([
                named(each),
                number(each.ms_per_token and each.ms_per_token * self.length, 0),
                number(nfe(each, self.length), 1),
                number(compression(each, self.length)),
                *speed_cells(each),
            ])  # fmt: skip
        title = f"batch {size}: {found[0].new_tokens // self.length} pictures per method"
        return "\n".join([title, aligned(rows), *speed_notes(found)])

    def quality_block(self) -> str:
        """See `PictureReport`."""
        by_place = any(each.divergence is not None for each in self.quality)  # which takes many captions
        rows = [[*JUDGED_HEAD, "TV", *(["KL"] if by_place else []), "nats"]]
        for each in self.quality:
            rows.append([
                *judged_cells(each),
                number(each.marginal, 3),
                *([number(each.divergence, 4)] if by_place else []),
                number(each.surprise, 3),
            ])  # fmt: skip
        told = f"{JUDGED_NOTE} {BY_PLACE if by_place else POOLED};\n{NOTE}"
        return f"{judged_table(self.quality, rows)}\n{told}"

    def summary(self) -> dict[str, Any]:
        """See `PictureReport`."""
        return super().summary() | {"mean_top_probability": self.top}

    def text(self) -> str:
        """See `PictureReport`."""
        limit = f"an honest world's is at most {HONEST:g}"
        return (
            f"{super().text()}\n\nMean top-1 probability of a token under the guided law: {number(self.top)} ({limit})."
        )


def nfe(found: Figures, length: int) -> float:
    """Target forwards per picture, prefill included; a row of a batch counts until it is done."""
    return found.verifications / (found.new_tokens / length) + 1


def compression(found: Figures, length: int) -> float:
    """Tokens per target forward."""
    return length / nfe(found, length)


def heading(settings: ImageSettings, length: int) -> str:
    """What was drawn, and how."""
    scale = settings.guidance
    title = f"{settings.speed.model}: pictures of {length} tokens, temperature {settings.temperature:g}, "
    return title + ("its own guidance" if scale is None else f"guidance {scale:g}")


def about_reader(reader: dict[str, float] | None) -> str:
    """How good the judge's reader is."""
    if reader is None:
        return "No reader of pictures: captions are not judged (--reader, or `reader` beside the model)."
    own = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in reader.items())
    return f"The reader itself, on real pictures that it has not seen: {own}."


def judged_cells(each: Quality) -> list[str]:
    """What the judge says of one method, under JUDGED_HEAD."""
    kept, changed = each.fidelity, each.change
    return [
        each.row + (" (lossy)" if each.lossless is False else ""),
        number(kept.accuracy if kept else None, 3),
        MISSING if kept is None else span(kept.low, kept.high, 3),
        MISSING if changed is None else f"{changed[0]:+.3f}",
        MISSING if changed is None else change(*changed[1:], digits=3),
        *(number(each.manners.get(manner), 2) for manner in MANNERS),
        number(each.facts, 3),
        number(each.shuffled, 3),
        number(each.frechet, 3),
        number(each.clip),
    ]


def judged_table(found: Sequence[Quality], rows: Sequence[Sequence[str]]) -> str:
    """Rows of quality under their title."""
    return f"quality: {found[-1].pictures} captions\n{aligned(rows)}"
