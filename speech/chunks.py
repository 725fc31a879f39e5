"""Sound while it is being spoken: chunks that are played one after the other.

Only emitted codes come here, so nothing that was played is ever taken back. A chunk is decoded with some frames before
and after it, because a codec needs both sides; the frames after it are heard again in the next chunk, into which it
fades. Codebooks that follow from the first one are settled chunk by chunk, with the frames that a chunk is decoded
with; the sound at the end of a request (`Generation.audio`) is made of all codes together, so the two differ a little.
Chunks end at fixed frames, wherever rounds do: the same codes sound the same, whatever drafts and clocks did.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
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
        """Take what a round emitted; returns the chunks for which there are frames enough now, one after the other, at
        the end with what is left."""
        if self.closed:
            return None
        self.first += self.codes_of(ids)
        self.closed = last
        found = []
        while len(self.first) >= (end := self.played + (SIZE if self.played else FIRST)) + AFTER:
            found.append(self._chunk(end, end + AFTER))
        if last and self.played < len(self.first):
            found.append(self._chunk(len(self.first), len(self.first)))
        return Audio(np.concatenate([each.samples for each in found]), found[0].rate) if found else None

    def _chunk(self, end: int, seen: int) -> Audio:
        """The chunk up to frame `end`, from the first `seen` frames."""
        codes = self.complete(self.first[:seen], self.settled)
        self.settled = codes[:, :end]
        begin = max(0, self.played - BEFORE)
        heard = self.decode(codes[:, begin:])
        frame = len(heard.samples) // (seen - begin)
        start, stop = (self.played - begin) * frame, (end - begin) * frame
        samples = heard.samples[start:stop].copy()
        if self.tail is not None:
            count = min(len(self.tail), len(samples))
            weight = np.linspace(0, 1, count, dtype=samples.dtype)
            samples[:count] = (1 - weight) * self.tail[:count] + weight * samples[:count]
        self.tail = heard.samples[stop : stop + frame]
        self.played = end
        return Audio(samples, heard.rate)
