"""Notes what noise is asked for, so that a test can see that no number serves twice."""

from collections import Counter

import pytest
from torch import Tensor

from mmspec import noise


def noted_noise(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int, int]]:
    """How often each (stream, seed, position) is asked for from now on."""
    asked: Counter[tuple[int, int, int]] = Counter()
    uniform = noise.uniform

    def noted(seeds: Tensor, stream: int, positions: Tensor, width: int) -> Tensor:
        rows = zip(seeds.tolist(), positions.tolist(), strict=True)
        asked.update((stream, seed, place) for seed, places in rows for place in places)
        return uniform(seeds, stream, positions, width)

    monkeypatch.setattr(noise, "uniform", noted)
    return asked
