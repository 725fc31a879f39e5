"""Autoregressive and speculative decoding of one request, run one after the other and replayed on one clock.

Run at once they would share the computer, and both timings would be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mmspec.demos.trace import Trace, emitted, tau

LONGEST = 8.0
"""Seconds of a replay; what took longer is shown faster, and the page says so."""
FRAMES = 8
"""Frames per second of a replay."""


@dataclass
class Race:
    """Both requests. finished: both have run to their end. invariant: their tokens are bound to be equal."""

    slow: Trace
    fast: Trace
    finished: bool = False
    invariant: bool = True

    @property
    def speedup(self) -> float | None:
        """S: decode-only seconds per token, autoregressive over speculative."""
        return self.speedup_by(math.inf)

    def speedup_by(self, until: float) -> float | None:
        """S of what each side had said by a time, in seconds since its start."""
        slow, fast = (trace.per_token(until) for trace in (self.slow, self.fast))
        return slow / fast if slow and fast else None

    @property
    def agree(self) -> bool:
        """Whether both said the same."""
        return self.slow.token_ids == self.fast.token_ids

    @property
    def pace(self) -> float:
        """How many times faster than life the replay is, 1 or more."""
        return max(1.0, max(self.slow.seconds, self.fast.seconds) / LONGEST)

    def over(self, until: float) -> bool:
        """Whether a time of the race is its end."""
        return self.finished and until >= max(self.slow.seconds, self.fast.seconds)

    def clock(self) -> Iterator[float]:
        """The times, in seconds of the race, at which a replay shows a frame; the last is the end."""
        end = max(self.slow.seconds, self.fast.seconds)
        count = int(end / self.pace * FRAMES)
        yield from (frame * self.pace / FRAMES for frame in range(1, count + 1))
        yield end


@dataclass(frozen=True)
class Reading:
    """The counters of one side at a time. None stands for what cannot be said yet, or at all: tau without a verdict."""

    tokens: int
    verifications: int
    tau: float | None
    tokens_per_second: float | None


def read(trace: Trace, until: float) -> Reading:
    """The counters of a request at a time, in seconds since its start."""
    steps = trace.rounds(until)
    each = trace.per_token(until)
    mean = tau(steps) if trace.verifies else None
    return Reading(emitted(steps), max(len(steps) - 1, 0), mean, 1 / each if each else None)
