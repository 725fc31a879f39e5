"""The figures as one picture: S against tau, accept lengths, and where the time of a round goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from mmspec.benchmarks.figures import Figures
from mmspec.errors import require
from mmspec.safe_files import whole

PARTS = ("draft", "verify", "other")
MARKERS = "os^D"


def require_matplotlib() -> Any:
    """matplotlib without a display. Raises: MissingExtraError if it is not installed."""
    require("matplotlib", "bench").use("Agg")
    return require("matplotlib.pyplot", "bench")


def plot(found: Sequence[Figures], title: str, path: Path) -> None:
    """Draw the figures of a speed run to a PNG file."""
    lengths = [figures for figures in found if len(figures.histogram) > 1]
    split = [figures for figures in found if figures.verify is not None]
    panels = (partial(draw_speed, found=found), partial(draw_lengths, found=lengths), partial(draw_split, found=split))
    save_panels(panels, title, path)


def save_panels(panels: Sequence[Callable[[Any], None]], title: str, path: Path) -> None:
    """Draw panels side by side into a PNG file."""
    pyplot = require_matplotlib()
    size = (5.4 * len(panels), 6)
    figure, places = pyplot.subplots(1, len(panels), squeeze=False, figsize=size, layout="constrained")
    figure.suptitle(title)
    for draw, place in zip(panels, places[0], strict=True):
        draw(place)
    save_figure(figure, path)


def save_figure(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure into a PNG file, whole or not at all, and close it."""
    try:
        with whole(path) as draft:
            figure.savefig(draft, format="png", dpi=dpi)
    finally:
        require_matplotlib().close(figure)


def drawing(draw: Callable[[Any], None]) -> str:
    """One panel as the text of an SVG element, to stand in a page."""
    pyplot = require_matplotlib()
    figure, panel = pyplot.subplots(figsize=(6, 5), layout="constrained")
    draw(panel)
    text = StringIO()
    figure.savefig(text, format="svg")
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def label(figures: Figures) -> str:
    """How a method is called in the picture."""
    return f"{figures.method}, T={figures.temperature:g}"


def color(number: int) -> Any:
    """Of the method of that number: ten dark ones, then ten light ones."""
    pairs = require_matplotlib().get_cmap("tab20").colors
    return (*pairs[::2], *pairs[1::2])[number % len(pairs)]


def legend_below(panel: Any) -> None:
    """Names under the panel, where they cover nothing."""
    panel.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)


def draw_speed(panel: Any, found: Sequence[Figures]) -> None:
    """S with its interval over tau, a colour per method, a marker per temperature; on the diagonal drafting is free."""
    panel.set(xlabel="tau (tokens per verification)", ylabel="S (decode)", title="speed-up")
    names = list(dict.fromkeys(figures.method for figures in found))
    warmths = list(dict.fromkeys(figures.temperature for figures in found))
    known = [figures for figures in found if figures.speedup and figures.tau]
    for figures in known:
        speedup = figures.speedup or 0.0
        low, high = figures.speedup_low or speedup, figures.speedup_high or speedup
        bars = [[max(speedup - low, 0.0)], [max(high - speedup, 0.0)]]
        look = {
            "color": color(names.index(figures.method)),
            "marker": MARKERS[warmths.index(figures.temperature) % len(MARKERS)],
        }
        panel.errorbar([figures.tau], [speedup], yerr=bars, capsize=3, linestyle="", label=label(figures), **look)
    if known:
        top = max(max(figures.tau or 0, figures.speedup or 0) for figures in known) + 0.3
        panel.plot([0, top], [0, top], color="grey", linewidth=0.8, linestyle="dashed")
        panel.axhline(1.0, color="grey", linewidth=0.8)
        legend_below(panel)


def draw_lengths(panel: Any, found: Sequence[Figures]) -> None:
    """Share of rounds by accepted length."""
    panel.set(xlabel="drafted tokens accepted in a round", ylabel="share of rounds", title="accept lengths")
    width = 0.8 / max(len(found), 1)
    for i, figures in enumerate(found):
        places = [length + (i - (len(found) - 1) / 2) * width for length in range(len(figures.histogram))]
        panel.bar(places, figures.histogram, width, label=label(figures))
    if found:
        legend_below(panel)


def draw_positions(panel: Any, found: Sequence[Figures]) -> None:
    """Share of rounds that kept the draft's first, second, ... token."""
    panel.set(xlabel="position in the draft", ylabel="share of rounds that accept it", title="acceptance by position")
    for figures in found:
        shares = [sum(figures.histogram[length:]) for length in range(1, len(figures.histogram))]
        panel.plot(range(1, len(shares) + 1), shares, marker="o", label=label(figures))
    if found:
        panel.set_ylim(0, 1)
        legend_below(panel)


def draw_shares(panel: Any, found: dict[str, dict[str, list[int]]], share: str, title: str) -> None:
    """Shares by kind of token; method -> kind -> how many, and of how many of these what `share` names is true."""
    panel.set(ylabel=share, title=title)
    width = 0.8 / max(len(found), 1)
    for i, (method, kinds) in enumerate(found.items()):
        places = [place + (i - (len(found) - 1) / 2) * width for place in range(len(kinds))]
        panel.bar(places, [part / whole if whole else 0.0 for whole, part in kinds.values()], width, label=method)
        panel.set_xticks(range(len(kinds)), list(kinds))
    if found:
        panel.set_ylim(0, 1)
        legend_below(panel)


def draw_split(panel: Any, found: Sequence[Figures]) -> None:
    """Draft, verification and the rest of a round."""
    panel.set(xlabel="share of a round's time", title="time split")
    names = [label(figures) for figures in found]
    left = [0.0] * len(found)
    for part in PARTS:
        shares = [getattr(figures, part) for figures in found]
        panel.barh(names, shares, left=left, label=part)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    if found:
        panel.invert_yaxis()
        legend_below(panel)
