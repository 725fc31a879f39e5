"""Pictures of an image run: quality against speed, and a contact sheet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mmspec.benchmarks.drawing.quality import Drawn, Quality, measure_by
from mmspec.benchmarks.figures import HF, OURS, Figures
from mmspec.benchmarks.plot import color, legend_below, require_matplotlib, save_figure
from mmspec.benchmarks.rows import split

CELL, GAP, LINE = 128, 4, 16
CAPTIONS, COLUMNS = 6, 8


def draw_curve(found: Sequence[Quality], speeds: Sequence[Figures], title: str, path: Path) -> None:
    """Quality over speed, a line per relaxed rule through its settings; exact methods stand alone.

    Speed is S where it is known, else tau. No file is written where no method has a quality.
    """
    pyplot = require_matplotlib()
    name, of = measure_by(found)
    known = [each for each in speeds if each.method != HF]
    timed = all(each.speedup is not None for each in known)
    at = {each.method: each.speedup if timed else each.tau for each in known}
    lines: dict[str, list[tuple[float | None, float, float, Quality]]] = defaultdict(list)
    for each in found:
        quality, speed = of(each), at.get(each.row)
        if quality is not None and speed is not None:
            drafter, rule, knob = split(each.row)
            series = f"{drafter}@{rule}" if each.lossless is False and rule != "exact" else each.row
            lines[series].append((knob, speed, quality, each))
    if not lines:
        return
    figure, panel = pyplot.subplots(figsize=(9, 7), layout="constrained")
    panel.set(xlabel="S (decode)" if timed else "tau (tokens per verification)", ylabel=name, title=title)
    for index, (series, points) in enumerate(lines.items()):
        points.sort(key=lambda point: point[0] or 0.0)
        xs, ys = [point[1] for point in points], [point[2] for point in points]
        lossy = points[0][3].lossless is False
        look: dict[str, Any] = {"color": color(index), "marker": "o" if lossy else "s"}
        panel.errorbar(xs, ys, yerr=_bars(points), capsize=3, linestyle="-" if lossy else "", label=series, **look)
        for knob, x, y, _ in points:
            if lossy and knob is not None:
                panel.annotate(f"{knob:g}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    legend_below(panel)
    save_figure(figure, path)


def _bars(points: Sequence[tuple[float | None, float, float, Quality]]) -> Any:
    """95 % intervals of fidelity; None where quality is something else."""
    scores = [point[3].fidelity for point in points]
    if None in scores:
        return None
    return list(zip(*((s.accuracy - s.low, s.high - s.accuracy) for s in scores if s is not None), strict=True))


def sheet_rows(found: Sequence[Quality]) -> list[str]:
    """The columns of a contact sheet: our AR loop, then exact and relaxed methods in turn, as many as fit."""
    exact = [each.row for each in found if each.lossless and each.row != OURS]
    lossy = [each.row for each in found if each.lossless is False]
    first = [each.row for each in found if each.row == OURS]
    room = COLUMNS - len(first)
    few = min(len(lossy), max(room // 2, room - len(exact)))
    return [*first, *exact[: room - few], *lossy[:few]]


def contact_sheet(drawn: Drawn, rows: Sequence[str]) -> Image.Image:
    """The first captions, each with the pictures of the rows side by side."""
    count, font = min(CAPTIONS, len(drawn.asked)), ImageFont.load_default(11)
    step, head = CELL + GAP, 2 * LINE
    sheet = Image.new("RGB", (GAP + step * len(rows), head + (step + LINE) * count), "white")
    pen = ImageDraw.Draw(sheet)
    for column, name in enumerate(rows):
        drafter, _, rule = name.partition("@")
        for place, part in enumerate((drafter, rule)):
            pen.text((GAP + column * step, 2 + place * (LINE - 2)), part[:22], fill="black", font=font)
    for line in range(count):
        top = head + line * (step + LINE)
        pen.text((GAP, top), drawn.captions[line], fill="black", font=font)
        for column, name in enumerate(rows):
            picture = drawn.pictures[name][line].resize((CELL, CELL), Image.Resampling.NEAREST)
            sheet.paste(picture, (GAP + column * step, top + LINE))
    return sheet
