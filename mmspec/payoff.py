"""What a draft of some shape pays: how many tokens such rounds emit, and how many seconds they take.

Rates of acceptance are kept by depth for every width of tree, seconds by shape. What was never played is estimated from
what was. Nothing here reads a clock or draws a random number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from statistics import median_low

from mmspec.contract import Shape

STEP = 0.02  # weight of a new observation of a rate or a cost
PRIOR, PRIOR_WEIGHT = 0.7, 2.0  # rate of a chain before anything was seen, and how many observations it counts for
SURPRISE, LEAST_RUN = 1e-4, 4  # a run of equal outcomes less likely than this, and so long, starts a rate anew
SLACK = 0.1  # how far the rates of two widths may contradict each other, about their noise
SLOPE = 0.05  # what a node costs before anything was measured, as a share of a round without a draft
FIRST = 5  # seconds of that many rounds of a shape are known by their median
PACE = 0.2  # weight of a new observation of the computer's pace
PAUSE = 1.5  # times its usual seconds is what a round counts for at most


@dataclass
class Rate:
    """How often something happens: exponentially weighted, and started anew after a run that cannot be chance.

    count: how many observations it stands for. run: length of the present run of hits, or minus that of misses.
    """

    value: float
    count: float = 0.0
    run: int = 0

    def learn(self, hits: int, tries: int) -> None:
        """Take note of `hits` in `tries`."""
        share = hits / tries
        self.count += 1
        self.value += max(STEP, 1 / self.count) * (share - self.value)
        same = tries if share == 1 else -tries if share == 0 else 0
        self.run = self.run + same if self.run * same > 0 else same
        length, chance = abs(self.run), self.value if self.run > 0 else 1 - self.value
        if length >= LEAST_RUN and chance**length < SURPRISE:
            self.value, self.count = share, min(length, self.count)


class Rates:
    """How often a path that got to depth d - 1 goes on to depth d, for every width.

    Shapes of equal width share their rates; menus keep the number of nodes per level alike. A level about which little
    is known is taken to be like the one above it.
    """

    def __init__(self) -> None:
        self.known: dict[int, list[Rate]] = {}

    def of(self, width: int, depth: int) -> list[float]:
        """The first `depth` rates. Of a width that was never played, by the nearest one that was."""
        if not self.known:
            return [_widened(PRIOR, width)] * depth
        nearest = min(self.known, key=lambda known: abs(known - width))
        rates = self.known[nearest][:depth]
        values, above = [], rates[0].value
        for rate in rates:
            above = (rate.count * rate.value + PRIOR_WEIGHT * above) / (rate.count + PRIOR_WEIGHT)
            values.append(above)
        values += values[-1:] * (depth - len(values))
        return values if nearest == width else [_widened(value, width / nearest) for value in values]

    def tokens(self, shapes: Sequence[Shape], room: int) -> list[float]:
        """Expected tokens of a round with each of the shapes, at most `room` deep, the target's own one included."""
        deepest = max(shape.depth for shape in shapes)
        sums = {
            width: list(accumulate(accumulate(self.of(width, deepest), mul), initial=1.0))
            for width in {shape.width for shape in shapes}
        }
        return [sums[shape.width][min(shape.depth, room)] for shape in shapes]

    def learn(self, width: int, depth: int, kept: list[int]) -> None:
        """Take note of how many drafted tokens each row kept."""
        guesses, rates = self.of(width, depth), self.known.get(width, [])
        fresh = [Rate(guess, PRIOR_WEIGHT if self.known else 0) for guess in guesses[len(rates) :]]
        rates = self.known[width] = rates + fresh
        rates[0].count = max(rates[0].count, PRIOR_WEIGHT)
        for level, rate in enumerate(rates[:depth]):
            tries, hits = (sum(length >= least for length in kept) for least in (level, level + 1))
            if not tries:
                break
            rate.learn(hits, tries)
        for rate in rates[depth:]:  # what was not tried is forgotten by and by
            rate.count *= 1 - STEP
        self._reconcile(width, depth)

    def _reconcile(self, width: int, depth: int) -> None:
        """A wider tree accepts no less, and at most as many times more as it is wider: so all widths learn from one."""
        for other, rates in self.known.items():
            if other != width:
                for known, rate in zip(self.known[width][:depth], rates, strict=False):
                    low, high = (known.value * bound(1.0, other / width) for bound in (min, max))
                    rate.value = min(max(rate.value, low - SLACK), high + SLACK)


def _widened(rate: float, factor: float) -> float:
    """The rate of a tree `factor` times as wide: a guess, until such trees are played."""
    return 1 - (1 - rate) ** factor ** (1 / 3)


class Costs:
    """Seconds of a round by shape: exponentially weighted, in which a pause of the computer counts little.

    They are kept at one pace: where another process, or a longer text, slows all rounds down, `pace` grows, and what
    was measured before stays comparable.
    """

    def __init__(self) -> None:
        self.pace = 1.0
        self.means: dict[Shape, float] = {}
        self._first: dict[Shape, list[float]] = {}
        self._plays: dict[Shape, int] = {}

    def plays(self, shape: Shape) -> int:
        """How often a shape was measured."""
        return self._plays.get(shape, 0)

    def learn(self, shape: Shape, seconds: float) -> None:
        """Take note of a round."""
        plays = self._plays[shape] = self.plays(shape) + 1
        if plays <= FIRST:  # of which the very first may be slow for reasons of its own, like a prompt to be read
            first = self._first.setdefault(shape, [])
            first.append(seconds / self.pace)
            guess = self.predict([shape])[0] if self.means else first[0]
            self.means[shape] = min(first[0], PAUSE * guess) if plays == 1 else median_low(first)
            return
        surplus = min(seconds / (self.pace * self.means[shape]), PAUSE)
        change = 1 + PACE * (surplus - 1)
        self.pace *= change
        self.means[shape] *= 1 + max(STEP, 1 / plays) * (surplus / change - 1)

    def predict(self, shapes: Sequence[Shape]) -> list[float]:
        """Seconds of every shape: measured, or by the number of nodes from the shapes that were."""
        points = sorted((known.total, mean) for known, mean in self.means.items())  # the first is NO_DRAFT
        sizes = [nodes for nodes, _ in points]
        return [
            self.means[shape]
            if shape in self.means
            else _between(points, bisect_right(sizes, shape.total), shape.total)
            for shape in shapes
        ]


def _between(points: list[tuple[int, float]], place: int, nodes: int) -> float:
    """Seconds of that many nodes, on a line through the points before and at `place`, or beyond the last of them.

    Beyond them the cheaper guess is taken, because a shape that looks dear would never be measured.
    """
    before, seconds = points[place - 1]
    if place < len(points):
        slope = (points[place][1] - seconds) / (points[place][0] - before)
    elif place > 1:
        earlier, less = points[place - 2]
        slope = max(0.0, (seconds - points[0][1]) / (before - 1) / 2)
        if 1 < earlier < before:
            slope = min(slope, max(0.0, (seconds - less) / (before - earlier)))
    else:
        slope = SLOPE * seconds
    return seconds + slope * (nodes - before)
