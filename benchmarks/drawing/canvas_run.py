"""The run of continuous tokens (MAR): plain decoding in its own steps and in fewer, drafters and rules, on one canvas.

Plain decoding may reveal more tokens per step, and is faster then without any drafter. So what a drafter gains has to
be seen beside that, at equal quality: rows DRAFTER:steps=N[@RULE] draw in N steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from mmspec import Pipeline
from mmspec.benchmarks.drawing.run import TOGETHER, Drawing, ImageSettings, judge_kind, run_batch, told_of
from mmspec.benchmarks.methods import Method
from mmspec.benchmarks.overseen import Overseen
from mmspec.benchmarks.records import Sample, Store
from mmspec.benchmarks.rows import row
from mmspec.errors import InputError
from mmspec.media import save_image
from mmspec.progress import progress

STEPS = re.compile(r":steps=(\d+)(?=[:@]|$)")


def steps_of(text: str) -> tuple[str, int | None]:
    """A row without its steps, and these; None are the model's own."""
    found = STEPS.search(text)
    return STEPS.sub("", text, count=1), int(found[1]) if found else None


def drawing(pipe: Pipeline, text: str, guidance: float | None) -> Drawing:
    """What draws a row."""
    told, steps = steps_of(text)
    return Drawing(row(pipe, told), guidance, steps)


def methods(pipe: Pipeline, settings: ImageSettings) -> dict[str, Method]:
    """The rows as methods."""
    return {text: drawing(pipe, text, settings.guidance) for text in settings.speed.drafters}


def check(pipe: Pipeline, settings: ImageSettings) -> None:
    """Raise InputError for a model of another kind, or a row that is not known, before anything is drawn."""
    if getattr(pipe.target.model.config, "model_type", None) != "mmspec-mar":
        raise InputError(f"{type(pipe.target.model).__name__} does not draw continuous tokens: see mmspec bench images")
    methods(pipe, settings)


def timed(pipe: Pipeline, settings: ImageSettings, size: int, folder: Path) -> list[Sample]:
    """The samples of one batch size, with clocks."""
    return run_batch(pipe, settings, size, folder, methods)


class Counting(Overseen):
    """Counts drafted tokens, and those that were kept; drafts are of continuous tokens."""

    drafted = kept = 0

    def look(self, draft: Any, scores: Tensor, accepted: Any) -> None:
        """See `Overseen`."""
        self.drafted += int(draft.filled.sum())
        self.kept += int(accepted.kept.sum())

    @property
    def rate(self) -> float | None:
        """Share of drafted tokens that were accepted."""
        return self.kept / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Painted:
    """pictures: by row, one per caption. rates: share of drafted tokens that were accepted, by row."""

    asked: list[Any]
    pictures: dict[str, list[Image.Image]]
    rates: dict[str, float | None]


def paint_all(pipe: Pipeline, settings: ImageSettings, folder: Path) -> Painted:
    """The picture of every caption by every row, as a file each; those that are there already are read."""
    asked = judge_kind().captions(settings.captions, settings.prompts)
    captions = [one.prompt for one in asked]
    store = Store(folder, told_of(pipe, settings, captions) | {"run": "canvas", "captions": len(captions)})
    counts = {name: (0, 0) for name in settings.speed.drafters}
    done = {(record["row"], record["batch"]): (record["drafted"], record["kept"]) for record in store.load()}
    starts = range(0, len(captions), TOGETHER)
    with progress(desc="pictures", unit="batch", total=len(counts) * len(starts), initial=len(done)) as bar:
        for place, name in enumerate(counts):
            for start in starts:
                if (name, start) not in done:
                    done[name, start] = _paint(pipe, settings, name, captions, start, folder / f"row-{place}")
                    drafted, kept = done[name, start]
                    store.add({"row": name, "batch": start, "drafted": drafted, "kept": kept})
                    bar.update()
    pictures, rates = {}, {}
    for place, name in enumerate(counts):
        pictures[name] = [_read(folder / f"row-{place}" / f"{index}.png") for index in range(len(captions))]
        drafted, kept = (sum(done[name, start][part] for start in starts) for part in (0, 1))
        rates[name] = kept / drafted if drafted else None
    return Painted(asked, pictures, rates)


def _paint(
    pipe: Pipeline, settings: ImageSettings, name: str, captions: Sequence[str], start: int, folder: Path
) -> tuple[int, int]:
    """Draw a batch into files. Returns how many tokens were drafted and kept."""
    folder.mkdir(exist_ok=True)
    painter = drawing(pipe, name, settings.guidance)
    counting = Counting(painter.pipe.rule)
    judged = painter.pipe  # what is judged is what is timed, but for the counting
    painter.pipe = Pipeline(judged.target, judged.processor, judged.drafter, counting, judged.folder, judged.control)
    length = pipe.target.budget
    batch, seed = list(captions[start : start + TOGETHER]), settings.speed.seed + start
    for index, reply in enumerate(painter.draw(batch, length, settings.temperature, seed), start):
        save_image(reply.image, folder / f"{index}.png")
    return counting.drafted, counting.kept


def _read(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")
