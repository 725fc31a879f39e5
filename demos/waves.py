"""Speech: the waveform of what was said, and below it, on the same time axis, how each code came about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmspec.demos.cells import CELL, counted, kinds_of, layers, picture
from mmspec.demos.trace import Step

BARS = 160
"""Strokes of a waveform."""
WIDTH, HEIGHT, GAP = 480, 64, 4


def peaks_of(samples: Any) -> tuple[float, ...]:
    """How loud a sound is in each of BARS equal parts, 0 to 1; fewer if it is shorter. samples: array [N]."""
    loud = abs(samples)
    parts = min(BARS, len(loud))
    return tuple(float(loud[len(loud) * i // parts : len(loud) * (i + 1) // parts].max()) for i in range(parts))


def timeline(steps: Sequence[Step], codes: int, peaks: Sequence[float]) -> str:
    """The waveform, dark as far as the steps have said it, above a cell for each of their codes.

    Args: codes: how many the whole sound has; all last equally long. peaks: as `peaks_of` finds them.
    """
    kinds = kinds_of(steps)
    said = round(len(peaks) * len(kinds) / codes) if codes else 0
    wave = strokes(peaks, range(said), 0.8) + strokes(peaks, range(said, len(peaks)), 0.25)
    narrow = WIDTH / (max(codes, 1) * CELL)
    strip = f'<g transform="translate(0 {HEIGHT + GAP}) scale({narrow:.4f} 1)">{layers(kinds, max(codes, 1))}</g>'
    drawn = picture(WIDTH, HEIGHT + GAP + CELL, f"Waveform of {counted(kinds)}", wave + strip)
    return f'<div class="mm-cells mm-wave">{drawn}</div>'


def strokes(peaks: Sequence[float], places: range, opacity: float) -> str:
    """Some of the waveform's strokes, the loudest of all as high as there is room."""
    if not places:
        return ""
    pitch, loudest = WIDTH / len(peaks), max(peaks) or 1.0
    halves = [max(0.5, peaks[place] / loudest * (HEIGHT / 2 - 1)) for place in places]
    path = "".join(
        f"M{(place + 0.5) * pitch:.1f} {HEIGHT / 2 - half:.1f}v{2 * half:.1f}"
        for place, half in zip(places, halves, strict=True)
    )
    return f'<path class="mm-strokes" d="{path}" stroke="currentColor" stroke-width="2" opacity="{opacity}"/>'
