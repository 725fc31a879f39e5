"""The run of continuous tokens (MAR): plain decoding in its own steps and in fewer, drafters and rules, on one canvas.

Plain decoding may reveal more tokens per step, and is faster then without any drafter. So what a drafter gains has to
be seen beside that, at equal quality: rows DRAFTER:steps=N[@RULE] draw in N steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec import Pipeline
from mmspec.benchmarks.drawing.run import TOGETHER, ImageSettings, drawing, told_of
from mmspec.benchmarks.records import Store
from mmspec.media import save_image
from mmspec.progress import progress


def paint_all(
    pipe: Pipeline, settings: ImageSettings, asked: list[Any], folder: Path
) -> tuple[dict[str, list[Image.Image]], dict[str, float | None]]:
    """The picture of every caption by every row, as a file each; those that are there already are read.

    Returns: pictures, and the share of drafted tokens that were accepted; both by row.
    """
    captions, rows = [one.prompt for one in asked], settings.speed.drafters
    store = Store(folder, told_of(pipe, settings, captions) | {"run": "canvas", "captions": len(captions)})
    done = {(record["row"], record["batch"]): (record["drafted"], record["kept"]) for record in store.load()}
    starts = range(0, len(captions), TOGETHER)
    if len(done) < len(rows) * len(starts):
        store.go_on()
    with progress(desc="pictures", unit="batch", total=len(rows) * len(starts), initial=len(done)) as bar:
        for place, name in enumerate(rows):
            for start in starts:
                if (name, start) not in done:
                    done[name, start] = _paint(pipe, settings, name, captions, start, folder / f"row-{place}")
                    drafted, kept = done[name, start]
                    store.add({"row": name, "batch": start, "drafted": drafted, "kept": kept})
                    bar.update()
    pictures, rates = {}, {}
    for place, name in enumerate(rows):
        pictures[name] = [_read(folder / f"row-{place}" / f"{index}.png") for index in range(len(captions))]
        drafted, kept = (sum(done[name, start][part] for start in starts) for part in (0, 1))
        rates[name] = kept / drafted if drafted else None
    return pictures, rates


def _paint(
    pipe: Pipeline, settings: ImageSettings, name: str, captions: Sequence[str], start: int, folder: Path
) -> tuple[int, int]:
    """Draw a batch into files. Returns how many tokens were drafted and kept."""
    folder.mkdir(exist_ok=True)
    painter = drawing(pipe, name, settings.guidance)
    length = settings.speed.max_new_tokens
    batch, seed = list(captions[start : start + TOGETHER]), settings.speed.seed + start
    replies = painter.draw(batch, length, settings.temperature, seed)
    for index, reply in enumerate(replies, start):
        save_image(reply.image, folder / f"{index}.png")
    rows = [reply.stats for reply in replies]
    return sum(stats.drafted_tokens for stats in rows), sum(sum(stats.accept_lengths) for stats in rows)


def _read(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")
