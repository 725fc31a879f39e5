"""Draws bar, line and pie charts, and finds places for their labels."""

import math

from mmspec.miniworld.canvas import CAP_HEIGHT, RGB, SIDE, Box, Canvas, blend, contrast, fit, overlap, text_width
from mmspec.miniworld.facts import Chart

DARK: RGB = (24, 24, 28)
PAPER: RGB = (252, 252, 252)
FRAMES = ("none", "corner", "box")
TIGHT = 11  # degrees between the turns of a pie that are tried until no two labels meet


def draw_axis_chart(canvas: Canvas, chart: Chart) -> None:
    """A bar or a line chart with title, five gridlines, tick labels and categories."""
    plot = _draw_axes(canvas, chart)
    slot = (plot[2] - plot[0]) / len(chart.values)
    unit = (plot[3] - plot[1]) / chart.axis_max
    points = [(plot[0] + (i + 0.5) * slot, plot[3] - value * unit) for i, value in enumerate(chart.values)]
    size = fit(chart.categories, slot - 4, canvas.rng.randint(22, 26), 18)
    for (x, _), name, value, color in zip(points, chart.categories, chart.values, chart.colors, strict=True):
        canvas.text(x, plot[3] + 18, name, size, DARK)
        canvas.tell(str(value), color)
    if chart.kind == "bar":
        _draw_bars(canvas, chart, points, plot, slot)
    else:
        _draw_line(canvas, chart, points, plot)


def _draw_axes(canvas: Canvas, chart: Chart) -> Box:
    """Title, grid and tick labels; returns the plot's box."""
    rng, draw = canvas.rng, canvas.draw
    canvas.text(SIDE / 2 + rng.randint(-40, 40), 18 + rng.randint(-2, 2), chart.title, rng.randint(25, 28), DARK)
    tick_size = rng.randint(24, 26)
    left = text_width(str(chart.axis_max), tick_size) + rng.randint(11, 14)
    plot = (round(left), rng.randint(62, 68), SIDE - rng.randint(4, 8), SIDE - rng.randint(33, 37))
    if rng.random() < 0.4:
        draw.rectangle(plot, fill=PAPER)
    tone, width, stride = rng.randint(150, 205), rng.choice((1, 2, 2)), rng.choice((1, 1, 2))
    for index in range(6):
        y = plot[3] - (plot[3] - plot[1]) * index / 5
        draw.line((plot[0], y, plot[2], y), fill=(tone, tone, tone + 4), width=width)
        if index % stride == 0:
            draw.line((plot[0] - 5, y, plot[0], y), fill=DARK, width=2)
            canvas.text(plot[0] - 8, y, str(index * chart.step), tick_size, DARK, align="r")
    frame = rng.choice(FRAMES)
    if frame == "box":
        draw.rectangle(plot, outline=(90, 90, 94), width=2)
    if frame == "corner":
        draw.line((plot[0], plot[1], plot[0], plot[3]), fill=DARK, width=2)
    draw.line((plot[0], plot[3], plot[2], plot[3]), fill=DARK, width=2)
    return plot


def _draw_bars(canvas: Canvas, chart: Chart, points: list[tuple[float, float]], plot: Box, slot: float) -> None:
    rng = canvas.rng
    half = slot * rng.uniform(0.26, 0.42)
    size = fit(tuple(map(str, chart.values)), slot + 4, rng.randint(25, 28), 24)
    inks = {color: canvas.ink(color) for color in sorted(set(chart.colors))}
    edged = rng.random() < 0.5
    for (x, y), value, color, name, printed in zip(
        points, chart.values, chart.colors, chart.categories, chart.printed, strict=True
    ):
        outline = blend(inks[color], (0, 0, 0), 0.5) if edged else None
        canvas.region((round(x - half), round(y), round(x + half), plot[3] - 1), color, inks[color], outline, 2)
        canvas.mark("fact", name, (x - 1, y - 1, x + 1, y + 1))
        canvas.tell(str(value))
        if printed:
            canvas.text(x, y - 6 - size * CAP_HEIGHT / 2, str(value), size, DARK, halo=PAPER)
            canvas.tell(name)


def _draw_line(canvas: Canvas, chart: Chart, points: list[tuple[float, float]], plot: Box) -> None:
    rng = canvas.rng
    ink, radius, marker = canvas.ink(chart.colors[0]), rng.randint(6, 8), rng.choice(("circle", "square", "diamond"))
    canvas.draw.line(points, fill=ink, width=rng.randint(3, 6), joint="curve")
    for (x, y), color, name, value in zip(points, chart.colors, chart.categories, chart.values, strict=True):
        box = (x - radius, y - radius, x + radius, y + radius)
        if marker == "circle":
            canvas.draw.ellipse(box, fill=ink)
        elif marker == "square":
            canvas.draw.rectangle(box, fill=ink)
        else:
            reach = radius + 2
            canvas.draw.polygon([(x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)], fill=ink)
        canvas.mark("color", color, box)
        canvas.tell(name, str(value))
    size = rng.randint(24, 26)
    occupied = [(x - radius, y - radius, x + radius, y + radius) for x, y in points]
    trail = _trail(points)
    for (x, y), value, name, printed in zip(points, chart.values, chart.categories, chart.printed, strict=True):
        if printed:
            box = _free_place(x, y, text_width(str(value), size), size * CAP_HEIGHT, plot, occupied, trail)
            occupied.append(box)
            canvas.text((box[0] + box[2]) / 2, (box[1] + box[3]) / 2, str(value), size, DARK, halo=PAPER)
            canvas.tell(name)


def _trail(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points along the line, close enough to tell whether a label covers it."""
    steps = [step / 12 for step in range(13)]
    pairs = zip(points, points[1:], strict=False)
    return [(x0 + (x1 - x0) * s, y0 + (y1 - y0) * s) for (x0, y0), (x1, y1) in pairs for s in steps]


def _free_place(
    x: float, y: float, width: float, height: float, plot: Box, occupied: list[Box], trail: list[tuple[float, float]]
) -> Box:
    """The box beside (x, y) that covers least of the labels, markers and line drawn so far."""
    reach = 12 + height / 2
    shifts = [share * width for share in (0.0, -0.35, 0.35, -0.7, 0.7)]
    offsets = [(shift, dy) for dy in (-reach, reach) for shift in shifts]
    offsets += [(side * (width / 2 + 13), dy) for dy in (0, -height / 2) for side in (-1, 1)]

    def cost(box: Box) -> float:
        wide = (box[0] - 3, box[1] - 3, box[2] + 3, box[3] + 3)
        covered = sum(wide[0] < tx < wide[2] and wide[1] < ty < wide[3] for tx, ty in trail)
        return 2 * sum(overlap(wide, other) for other in occupied) + 25 * covered + 1000 * (box[3] > plot[3] - 2)

    boxes = []
    for dx, dy in offsets:
        cx = min(max(x + dx, plot[0] + width / 2 + 9), SIDE - 3 - width / 2)
        boxes.append((cx - width / 2, y + dy - height / 2, cx + width / 2, y + dy + height / 2))
    return min(boxes, key=cost)  # the first of the best: above the point rather than below or beside


def draw_pie(canvas: Canvas, chart: Chart) -> None:
    """A pie with a legend, or with names beside the slices where they find room."""
    rng = canvas.rng
    canvas.text(SIDE / 2 + rng.randint(-40, 40), 18 + rng.randint(-2, 2), chart.title, rng.randint(25, 28), DARK)
    size = rng.randint(24, 26)
    beside = rng.random() < 0.5
    turn = rng.uniform(0, 360)
    radius = rng.randint(73, 77)
    center = (160 + rng.randint(-3, 3), 180 + rng.randint(-2, 2))
    if beside:
        turns = [turn + TIGHT * step for step in range(33)]
        fitting = [t for t in turns if _labels_fit(_outer_labels(chart, center, radius, t, size, True))]
        beside = bool(fitting)
        turn = fitting[0] if beside else turn
    if not beside:
        turn, center = rng.uniform(0, 360), (114, 178 + rng.randint(-6, 6))
        _draw_legend(canvas, chart)
    _draw_slices(canvas, chart, center, radius, turn, size)
    for text, box in _outer_labels(chart, center, radius, turn, size, beside):
        canvas.text((box[0] + box[2]) / 2, (box[1] + box[3]) / 2, text, size, DARK)


def _middles(chart: Chart, turn: float) -> list[float]:
    """The direction of each slice's middle, in degrees clockwise from the right."""
    starts = [sum(chart.values[:index]) for index in range(len(chart.values))]
    return [turn + 3.6 * (start + value / 2) for start, value in zip(starts, chart.values, strict=True)]


def _inside(value: int) -> bool:
    """Whether the number fits into its slice."""
    return value >= 15


def _draw_slices(
    canvas: Canvas, chart: Chart, center: tuple[float, float], radius: float, turn: float, size: int
) -> None:
    edge, width = canvas.rng.choice((PAPER, (60, 60, 64))), canvas.rng.randint(1, 3)
    circle = (center[0] - radius, center[1] - radius, center[0] + radius, center[1] + radius)
    for middle, value, color, name, printed in zip(
        _middles(chart, turn), chart.values, chart.colors, chart.categories, chart.printed, strict=True
    ):
        ink, angle = canvas.ink(color), math.radians(middle)
        canvas.draw.pieslice(circle, middle - 1.8 * value, middle + 1.8 * value, fill=ink, outline=edge, width=width)
        # The mark is a square inside the slice: the box around a big slice would cover its neighbours as well.
        half = min(24.0, 0.62 * radius * math.sin(math.radians(min(90, 1.8 * value))) * 0.7)
        x, y = center[0] + 0.62 * radius * math.cos(angle), center[1] + 0.62 * radius * math.sin(angle)
        canvas.mark("color", color, (x - half, y - half, x + half, y + half))
        canvas.tell(name, str(value))
        if printed and _inside(value):
            canvas.text(x, y, str(value), size, contrast(ink))


def _outer_labels(
    chart: Chart, center: tuple[float, float], radius: float, turn: float, size: int, names: bool
) -> list[tuple[str, Box]]:
    """Texts outside the pie and their boxes: names if wanted, and numbers too wide for their slice."""
    labels = []
    line = size + 2
    for middle, name, value, printed in zip(
        _middles(chart, turn), chart.categories, chart.values, chart.printed, strict=True
    ):
        texts = ([name] if names else []) + ([str(value)] if printed and not _inside(value) else [])
        if not texts:
            continue
        width, height = max(text_width(text, size) for text in texts), line * len(texts)
        dx, dy = math.cos(math.radians(middle)), math.sin(math.radians(middle))
        x = center[0] + (radius + 7) * dx + dx * width / 2
        y = center[1] + (radius + 5) * dy + dy * height / 2
        for index, text in enumerate(texts):
            top = y - height / 2 + index * line
            half = text_width(text, size) / 2
            labels.append((text, (x - half, top, x + half, top + line)))
    return labels


def _labels_fit(labels: list[tuple[str, Box]]) -> bool:
    boxes = [box for _, box in labels]
    within = all(box[0] >= 3 and box[1] >= 36 and box[2] <= SIDE - 3 and box[3] <= SIDE - 2 for box in boxes)
    return within and not any(overlap(a, b) for index, a in enumerate(boxes) for b in boxes[:index])


def _draw_legend(canvas: Canvas, chart: Chart) -> None:
    pitch = canvas.rng.randint(32, 38)
    top = 178 - pitch * len(chart.values) / 2
    size = fit(chart.categories, 64, canvas.rng.randint(23, 25), 20)
    for index, (name, color, value) in enumerate(zip(chart.categories, chart.colors, chart.values, strict=True)):
        y = top + (index + 0.5) * pitch
        canvas.region((230, y - 9, 247, y + 9), color)
        canvas.text(252, y, name, size, DARK, align="l")
        canvas.tell(color, str(value))
