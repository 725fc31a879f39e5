"""Draws facts as a picture of 320 x 320 pixels that stays legible when it is shrunk to 160 x 160."""

import functools
import math
import random
from collections.abc import Mapping

from PIL import Image, ImageDraw

from mmspec.miniworld.canvas import GROUNDS, INKS, RGB, SIDE, Canvas, blend, contrast, fit
from mmspec.miniworld.charts import draw_axis_chart, draw_pie
from mmspec.miniworld.facts import COLUMNS, ORDINALS, ROWS, Chart, Facts, Mark, Shapes, Sign, Table, Thing

CELL = SIDE / 3
DARK: RGB = (24, 24, 28)
SIZE_PIXELS = {"small": (42, 48), "large": (78, 86)}


def render(
    facts: Facts, rng: random.Random, sizes: Mapping[str, tuple[int, int]] = SIZE_PIXELS
) -> tuple[Image.Image, tuple[Mark, ...]]:
    """The picture of `facts`.

    Args: rng: decides only how things look (offsets, tones, sizes), never what is shown. sizes: least and most pixels
        of a shape by the name of its size.
    Returns: a 320 x 320 RGB picture and the marks of what was drawn, in pixels of that picture.
    """
    match facts:
        case Shapes():
            canvas = Canvas(rng, GROUNDS[facts.background])
            for thing in facts.things:
                _draw_thing(canvas, thing, sizes[thing.size])
        case Chart(kind="pie"):
            canvas = Canvas(rng, _paper(rng))
            draw_pie(canvas, facts)
        case Chart():
            canvas = Canvas(rng, _paper(rng))
            draw_axis_chart(canvas, facts)
        case Table():
            canvas = Canvas(rng, _paper(rng))
            _draw_table(canvas, facts)
        case Sign():
            canvas = Canvas(rng, rng.choice(((150, 160, 172), (168, 160, 150), (146, 168, 156), (176, 180, 188))))
            _draw_sign(canvas, facts)
    return canvas.finish()


def _paper(rng: random.Random) -> RGB:
    return blend((250, 250, 250), rng.choice(list(GROUNDS.values())), rng.choice((0.0, 0.25, 0.5)))


def _draw_thing(canvas: Canvas, thing: Thing, size: tuple[int, int]) -> None:
    rng = canvas.rng
    side = rng.randint(*size)
    x = round((thing.column + 0.5) * CELL - side / 2 + rng.uniform(-7, 7))
    y = round((thing.row + 0.5) * CELL - side / 2 + rng.uniform(-7, 7))
    turn = math.radians(rng.uniform(-7, 7))
    outline = [_turned(point, turn, side) for point in _outline(thing.shape)]
    mask = Image.new("L", (side, side))
    ImageDraw.Draw(mask).polygon(outline, fill=255)
    fill = canvas.ink(thing.color)
    canvas.image.paste(_textured(rng, thing, side, fill), (x, y), mask)
    edge = blend(fill, (0, 0, 0), 0.45)
    canvas.draw.line([(x + px, y + py) for px, py in [*outline, outline[0]]], fill=edge, width=2, joint="curve")
    box = (x, y, x + side, y + side)
    for kind in ("color", "shape", "texture", "size"):
        canvas.mark(kind, getattr(thing, kind), box)
    canvas.tell(ROWS[thing.row], COLUMNS[thing.column])


def _turned(point: tuple[float, float], turn: float, side: int) -> tuple[float, float]:
    x, y = point
    half = side / 2 - 1
    return (
        half + 1 + half * (x * math.cos(turn) - y * math.sin(turn)),
        half + 1 + half * (x * math.sin(turn) + y * math.cos(turn)),
    )


@functools.cache
def _outline(shape: str) -> tuple[tuple[float, float], ...]:
    """Corners of a shape within [-1, 1] x [-1, 1], y downwards."""
    circle = [2 * math.pi * step / 48 for step in range(48)]
    match shape:
        case "circle":
            return tuple((0.94 * math.cos(angle), 0.94 * math.sin(angle)) for angle in circle)
        case "square":
            return ((-0.84, -0.84), (0.84, -0.84), (0.84, 0.84), (-0.84, 0.84))
        case "triangle":
            return ((0.0, -0.92), (0.93, 0.78), (-0.93, 0.78))
        case "star":
            tips = [(1.0 if step % 2 == 0 else 0.42, math.pi * step / 5 - math.pi / 2) for step in range(10)]
            return tuple((radius * math.cos(angle), radius * math.sin(angle) + 0.06) for radius, angle in tips)
        case "heart":
            return tuple(
                (
                    0.94 * math.sin(angle) ** 3,
                    -0.058 * (13 * math.cos(angle) - 5 * math.cos(2 * angle) - 2 * math.cos(3 * angle)) - 0.11,
                )
                for angle in circle
            )
        case "cross":
            quarter = ((-0.32, -0.92), (0.32, -0.92), (0.32, -0.32))
            turns = ((1, 0), (0, 1), (-1, 0), (0, -1))
            return tuple((x * cos - y * sin, x * sin + y * cos) for cos, sin in turns for x, y in quarter)
    raise ValueError(f"unknown shape {shape!r}")


def _textured(rng: random.Random, thing: Thing, side: int, fill: RGB) -> Image.Image:
    patch = Image.new("RGB", (side, side), fill)
    draw = ImageDraw.Draw(patch)
    second = blend(fill, (90, 60, 0), 0.75) if thing.color == "yellow" else blend(fill, (255, 255, 255), 0.72)
    pitch = rng.randint(10, 12) if thing.size == "small" else rng.randint(13, 17)
    if thing.texture == "striped":
        lean = rng.choice((0, 0, side, -side))
        # Stripes that lean by 45 degrees lie closer by sqrt(2) than their starts.
        for start in range(-side, 2 * side, round(pitch * 1.4) if lean else pitch):
            draw.line((start, 0, start + lean, side), fill=second, width=pitch // 2)
    elif thing.texture == "dotted":
        radius = pitch * 0.3
        for row, y in enumerate(range(pitch // 2, side + pitch, pitch)):
            for x in range(0 if row % 2 else pitch // 2, side + pitch, pitch):
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=second)
    elif thing.texture == "checked":
        cell = pitch * 3 // 4
        for row in range(side // cell + 1):
            for column in range(row % 2, side // cell + 1, 2):
                x, y = column * cell, row * cell
                draw.rectangle((x, y, x + cell - 1, y + cell - 1), fill=second)
    return patch


def _draw_table(canvas: Canvas, table: Table) -> None:
    rng = canvas.rng
    hue = INKS[rng.choice(("blue", "green", "purple", "black", "orange"))]
    accent = blend(hue, (255, 255, 255), rng.uniform(0.6, 0.85))
    canvas.text(SIDE / 2 + rng.randint(-20, 20), 21 + rng.randint(-2, 2), table.title, rng.randint(25, 29), DARK)
    left, right, top = rng.randint(5, 10), SIDE - rng.randint(5, 10), rng.randint(40, 46)
    row_height = min(64, (SIDE - 6 - top) // (len(table.rows) + 1)) - rng.randint(0, 4)
    bottom = top + row_height * (len(table.rows) + 1)
    first = left + rng.randint(76, 82)
    pitch = (right - first) / len(table.columns)
    ruled, line = rng.choice(("grid", "rows", "zebra")), rng.choice(((120, 120, 124), (60, 60, 64), (160, 160, 166)))

    canvas.draw.rectangle((left, top, right, top + row_height), fill=accent)
    for row in range(len(table.rows) + 2):
        y = top + row * row_height
        if ruled == "zebra" and row and row % 2 == 0 and row <= len(table.rows):
            canvas.draw.rectangle((left, y, right, y + row_height), fill=blend(accent, (255, 255, 255), 0.6))
        if ruled != "zebra" or row in (1, len(table.rows) + 1):
            canvas.draw.line((left, y, right, y), fill=line, width=2)
    if ruled == "grid":
        for x in (left, right, *(first + column * pitch for column in range(len(table.columns)))):
            canvas.draw.line((x, top, x, bottom), fill=line, width=2)

    head_size = fit(table.columns, pitch - 8, rng.randint(23, 26), 20)
    name_size = fit(table.rows, first - left - 12, rng.randint(23, 27), 20)
    digit_size = rng.randint(26, 32)
    for column, head in enumerate(table.columns):
        canvas.text(first + (column + 0.5) * pitch, top + row_height / 2, head, head_size, DARK)
    for row, name in enumerate(table.rows):
        middle = top + (row + 1.5) * row_height
        canvas.text(left + 7, middle, name, name_size, DARK, align="l")
        for column, value in enumerate(table.cells[row]):
            canvas.text(first + (column + 0.5) * pitch, middle, str(value), digit_size, DARK)
            canvas.tell(name, table.columns[column])


def _draw_sign(canvas: Canvas, sign: Sign) -> None:
    rng = canvas.rng
    border = rng.randint(11, 17)
    half_width = rng.randint(148, 155)
    half_height = min(150, 34 + len(sign.lines) * rng.randint(34, 42))
    x, y = SIDE / 2 + rng.randint(-3, 3), SIDE / 2 + rng.randint(-1, 1) * (150 - half_height) // 3
    outer = (x - half_width, y - half_height, x + half_width, y + half_height)
    inner = (outer[0] + border, outer[1] + border, outer[2] - border, outer[3] - border)
    board, frame = canvas.ink(sign.board), canvas.ink(sign.frame)
    radius = rng.choice((0, 12, 26))
    canvas.draw.rounded_rectangle(outer, radius, fill=frame, outline=blend(frame, (0, 0, 0), 0.4), width=2)
    canvas.draw.rounded_rectangle(inner, max(0, radius - border), fill=board)
    canvas.mark("color", sign.board, inner)
    for box in (
        (outer[0], outer[1], outer[2], inner[1]),
        (outer[0], inner[3], outer[2], outer[3]),
        (outer[0], inner[1], inner[0], inner[3]),
        (inner[2], inner[1], outer[2], inner[3]),
    ):
        canvas.mark("color", sign.frame, box)

    pitch = (inner[3] - inner[1] - 8) / len(sign.lines)
    tallest = int(pitch * rng.uniform(0.75, 0.95))
    shared = fit(sign.lines, inner[2] - inner[0] - 16, tallest, 24)
    for index, text in enumerate(sign.lines):
        size = shared if rng.random() < 0.5 else fit((text,), inner[2] - inner[0] - 16, tallest, 24)
        canvas.text(x, inner[1] + 4 + (index + 0.5) * pitch, text, min(size, 76), contrast(board))
        canvas.tell(ORDINALS[index])
