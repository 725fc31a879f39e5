"""Sound while it is being spoken: chunks that are played one after the other.

Only emitted codes come here, so nothing that was played is ever taken back. A chunk is decoded with some frames before
and after it, because a codec needs both sides; the frames after it are heard again in the next chunk, into which it
fades. Codebooks that follow from the first one are settled chunk by chunk, with what was emitted by then; the sound at
the end of a request (`Generation.audio`) is made of all codes together, so the two differ a little.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mmspec.speech.audio import Audio

Complete = Callable[[list[int], Tensor | None], Tensor]
"""complete(first, known) -> [K, F]: all codebooks of F frames, of which those in `known` [K, G] stay."""
FIRST, SIZE, BEFORE, AFTER = 8, 24, 8, 3
"""Frames of the first chunk, which is short to be soon; of the others; and around a chunk when it is decoded."""


class Chunks:
    """The chunks of one row.

    Args: codes_of: the codes of the first codebook among emitted ids. complete: see above. decode: [K, F] -> `Audio`.
    """

    def __init__(
        self, codes_of: Callable[[list[int]], list[int]], complete: Complete, decode: Callable[[Tensor], Audio]
    ) -> None:
        self.codes_of, self.complete, self.decode = codes_of, complete, decode
        self.first: list[int] = []
        self.settled: Tensor | None = None
        self.tail: np.ndarray | None = None  # what the next chunk begins with, as this one heard it
        self.played = 0
        self.closed = False

    def add(self, ids: list[int], last: bool = False) -> Audio | None:
        """Take what a round emitted; returns the next chunk, if there are frames enough for one, or at the end."""
        if self.closed:
            return None
        self.first += self.codes_of(ids)
        self.closed = last
        ready = len(self.first) - (0 if last else AFTER)
        wanted = 1 if last else SIZE if self.played else FIRST
        if ready - self.played < wanted:
            return None
        codes = self.complete(self.first, self.settled)
        self.settled = codes[:, :ready]
        return self._cut(codes, ready)

    def _cut(self, codes: Tensor, ready: int) -> Audio:
        begin = max(0, self.played - BEFORE)
        heard = self.decode(codes[:, begin:])
        frame = len(heard.samples) // (codes.shape[1] - begin)
        start, end = (self.played - begin) * frame, (ready - begin) * frame
        samples = heard.samples[start:end].copy()
        if self.tail is not None:
            count = min(len(self.tail), len(samples))
            weight = np.linspace(0, 1, count, dtype=samples.dtype)
            samples[:count] = (1 - weight) * self.tail[:count] + weight * samples[:count]
        self.tail = heard.samples[end : end + frame]
        self.played = ready
        return Audio(samples, heard.rate)


def single_codebook(first: list[int], known: Tensor | None) -> Tensor:
    """`complete` where the first codebook is all there is."""
    return torch.tensor([first])
