"""What a speech synthesiser leaves out of a recording: nobody speaks as evenly, and nobody waits so long at the end.

Without it the codes of a recording are too easy to foresee: those of the silence behind every sentence all the more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mmspec.speech.audio import Audio

SILENT = 0.005
"""Of full scale. Samples below it, at the end, are silence."""
REST_S = 0.05
"""What is left of it."""
LOUDER_DB, LOUDNESS_HZ = 2.5, 8.0
FASTER, SPEED_HZ = 0.03, 4.0
"""How far loudness and speed depart from even speech (standard deviations, where they take another course), and how
often they take one."""

MANNER = {
    "rest_s": REST_S, "louder_db": LOUDER_DB, "loudness_hz": LOUDNESS_HZ, "faster": FASTER, "speed_hz": SPEED_HZ
}  # fmt: skip
"""What recordings have in common that may stand side by side."""


def without_rest(audio: Audio) -> Audio:
    """The same, with at most `REST_S` of silence at its end."""
    heard = np.flatnonzero(np.abs(audio.samples) > SILENT)
    end = int(heard[-1]) + 1 + int(REST_S * audio.rate) if len(heard) else len(audio.samples)
    return replace(audio, samples=audio.samples[:end])


def drifting(audio: Audio, rng: np.random.Generator) -> Audio:
    """The same, now louder and now softer, now faster (and so higher) and now slower, within the words."""
    count = len(audio.samples)
    speed = np.cumsum(1 + FASTER * _course(count, SPEED_HZ / audio.rate, rng))
    when = (speed - speed[0]) * (count - 1) / max(speed[-1] - speed[0], 1e-9)
    samples = np.interp(when, np.arange(count), audio.samples)
    louder = 10 ** (LOUDER_DB / 20 * _course(count, LOUDNESS_HZ / audio.rate, rng))
    return replace(audio, samples=np.clip(samples * louder, -1, 1).astype(np.float32))


def _course(count: int, knots: float, rng: np.random.Generator) -> np.ndarray:
    """[count] straight lines between random points, `knots` per sample, of mean 0 and standard deviation 1."""
    points = rng.standard_normal(int(count * knots) + 2)
    return np.interp(np.arange(count) * knots, np.arange(len(points)), points)
