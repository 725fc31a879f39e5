"""Length and tree control: how large a draft should be, or whether there should be one at all.

`Auto` maximises tokens per second. A round with a draft of some shape emits, on average,

    1 + sum over depths d of r_1 r_2 ... r_d      (r_d: how often a path that got to depth d - 1 goes on to depth d)

tokens and takes the seconds that such rounds took on this computer; both are learnt from rounds that were decoded
anyway (`mmspec.payoff`). If no shape beats a round without a draft, there is none; now and then a probe looks whether
that has changed. Once in a while a rival of the best shape is played, so that it stays known. The memory serves all
requests of a pipeline.

What is learnt depends on clocks, so `Auto` is at work only where the output does not depend on drafts: with a rule that
is `invariant`, or at temperature 0. Elsewhere, and for drafters whose guesses settle over rounds (`reuses`), the
drafter's own settings hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from mmspec.contract import Shape, bound
from mmspec.errors import InputError, MismatchError, shorten
from mmspec.payoff import Costs, Rates
from mmspec.registry import name_of

if TYPE_CHECKING:
    from mmspec.contract import Accepted, Draft, Drafter, Round, Rule
    from mmspec.sampling import Sampler

NO_DRAFT = Shape(0)
CHAINS = tuple(map(Shape, (1, 2, 3, 4, 5, 6, 8)))
COPIES = tuple(map(Shape, (1, 2, 3, 4, 6, 8, 12, 16)))
TREES = (
    *map(Shape, (1, 2, 3, 4)),
    *(Shape(depth, 4, total) for depth, total in ((2, 6), (3, 9), (4, 12), (5, 16), (6, 20), (7, 26), (8, 32))),
    Shape(8, 8, 60),
)
PRUNED = (*map(Shape, (1, 2, 4)), Shape(5, 4, 16), Shape(8, 4, 32))
"""Menus of drafters, from the smallest shape to the largest. `PRUNED` is for trees that leave out what is hardly taken:
they fit themselves to every round, so that a few sizes do, and fewer rounds are spent on others than the best."""

BASELINE = 3  # rounds without a draft that are played first
MARGIN = 0.02  # what drafting must gain before it starts, and lose before it ends
PROBE, MOST_QUIET = 16, 128  # rounds without a draft before the first probe, and between probes that failed
EARLY, SETTLED, LATE = 4, 64, 16  # every 4th of the first 64 rounds, then every 16th, plays a rival of the best
CLOSE = 0.85  # share of the best gain that makes a rival


class Plan(Protocol):
    """The control of one request."""

    def choose(self, room: int) -> Shape | None:
        """The shape of the next draft, of which at most `room` levels are of use; None leaves it to the drafter."""

    def learn(self, draft: Draft, accepted: Accepted, done: Round) -> None:
        """Take note of a round, the first of those chosen and not yet learnt from: the next may be chosen already."""


class Control(Protocol):
    """What the requests of a pipeline share."""

    def begin(self, rows: int, sampler: Sampler, rule: Rule) -> Plan:
        """Start on a request."""


@dataclass(frozen=True)
class Fixed:
    """Always the same shape: a chosen one, or with None the drafter's own. Its own plan."""

    shape: Shape | None = None

    def begin(self, rows: int, sampler: Sampler, rule: Rule) -> Fixed:
        """Nothing depends on the request."""
        return self

    def choose(self, room: int) -> Shape | None:
        """See `Plan`."""
        return self.shape

    def learn(self, draft: Draft, accepted: Accepted, done: Round) -> None:
        """Nothing to learn."""


OWN = Fixed()


class Auto:
    """The shape that gives the most tokens per second.

    Args: shapes: those to choose from, see `mmspec.contract.Drafter`.
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = tuple(shapes)
        self.memories: dict[tuple[int, bool], Memory] = {}

    def begin(self, rows: int, sampler: Sampler, rule: Rule) -> Plan:
        """Go on with what earlier requests of as many rows, greedy or sampled like this one, have taught."""
        if not bound(rule, sampler.greedy):
            return OWN
        return Choosing(self.shapes, self.memories.setdefault((rows, sampler.greedy), Memory()))


class Choosing:
    """`Auto` on one request.

    resting: drafting does not pay. quiet: rounds without a draft since the last probe; patience: how many there are to
    be before the next one. played: of rounds that taught nothing yet the shape, how much room there was, and whether
    drafting did not pay, so that it was a probe.
    """

    def __init__(self, shapes: Sequence[Shape], memory: Memory) -> None:
        self.shapes, self.memory = shapes, memory
        self.resting = False
        self.quiet, self.patience = 0, PROBE
        self.played: deque[tuple[Shape, int, bool]] = deque()

    def choose(self, room: int) -> Shape:
        """See `Plan`."""
        with self.memory.lock:
            shape = self._pick(room)
        self.played.append((shape, room, self.resting))
        return shape

    def _pick(self, room: int) -> Shape:
        memory = self.memory
        if memory.costs.plays(NO_DRAFT) < BASELINE:
            return NO_DRAFT
        if self.resting and (self.quiet < self.patience or self._unlearnt()):
            self.quiet += 1
            return NO_DRAFT
        if room < 1:
            return NO_DRAFT
        fitting = within(self.shapes, room)
        known = [place for place, shape in enumerate(fitting) if memory.costs.plays(shape)]
        if known:  # one step beyond what was measured
            fitting = fitting[: known[-1] + 2]
        gains = self._gains(fitting, room)
        place = max(range(len(fitting)), key=gains.__getitem__)
        if gains[place] > 1 + (MARGIN if self.resting else -MARGIN):
            self.resting, self.patience = False, PROBE
            memory.best = fitting[place]
            memory.rounds += 1
            return self._rival(fitting, gains, place) if self._curious() else fitting[place]
        if self.resting:  # a probe is due
            return memory.best if memory.best in fitting else fitting[place]
        self.resting, self.quiet = True, 0
        return NO_DRAFT

    def _unlearnt(self) -> bool:
        """Whether a draft is under way that may say more."""
        return any(shape != NO_DRAFT for shape, *_ in self.played)

    def _gains(self, shapes: list[Shape], room: int) -> list[float]:
        """Tokens per second of every shape, in units of decoding without drafts; deeper ones than `room` are cut short,
        and taken to cost as much as whole ones."""
        tokens, seconds = self.memory.rates.tokens(shapes, room), self.memory.costs.predict([NO_DRAFT, *shapes])
        return [emitted * seconds[0] / each for emitted, each in zip(tokens, seconds[1:], strict=True)]

    def _curious(self) -> bool:
        rounds = self.memory.rounds
        return rounds % (EARLY if rounds < SETTLED else LATE) == 0

    def _rival(self, fitting: list[Shape], gains: list[float], place: int) -> Shape:
        """The least played of the shapes that are next to the best one, or nearly as good as far as is known."""
        rivals = [
            shape
            for i, (shape, gain) in enumerate(zip(fitting, gains, strict=True))
            if i != place and (abs(i - place) == 1 or gain > CLOSE * gains[place])
        ]
        if CLOSE * gains[place] < 1:
            rivals.append(NO_DRAFT)
        return min(rivals, key=self.memory.costs.plays, default=fitting[place])

    def learn(self, draft: Draft, accepted: Accepted, done: Round) -> None:
        """See `Plan`. A drafter that found nothing to propose took next to no time, and taught nothing about drafts.

        Nor does a round in which no draft could be of use tell what one without a draft costs: it may be of another
        kind (CSM's backbone begins a frame in such a round), and what drafting gains is judged by that cost.
        """
        with self.memory.lock:
            self._learn(draft, accepted, done)

    def _learn(self, draft: Draft, accepted: Accepted, done: Round) -> None:
        memory, (played, room, probe) = self.memory, self.played.popleft()
        if played == NO_DRAFT or draft.size == 1:
            if room >= 1:
                memory.costs.learn(NO_DRAFT, done.verify_s + done.other_s)
            return
        kept = [len(path) - 1 for path, run in zip(accepted.paths, accepted.emitted, strict=True) if run]
        if played.depth <= room or draft.size == played.total:  # else the budget cut it short
            memory.costs.learn(played, done.seconds)
        memory.rates.learn(played.width, min(played.depth, room), kept)
        if probe and any(kept):  # after a probe that succeeds comes another at once
            self.patience = PROBE // 2
        elif probe:
            self.quiet, self.patience = 0, min(2 * self.patience, MOST_QUIET)


def within(shapes: Sequence[Shape], room: int) -> list[Shape]:
    """Those that may differ if drafts are at most `room` deep: of those as wide and as deep as that, or deeper, the
    first."""
    kept: list[Shape] = []
    for shape in shapes:
        if not any(other.width == shape.width and other.depth >= room for other in kept):
            kept.append(shape)
    return kept


@dataclass
class Memory:
    """What is known: seconds, rates, the shape that was best when drafting last paid, how many rounds had a draft.

    lock: held by whoever reads or learns; requests of several threads may share a memory.
    """

    costs: Costs = field(default_factory=Costs)
    rates: Rates = field(default_factory=Rates)
    best: Shape | None = None
    rounds: int = 0
    lock: Lock = field(default_factory=Lock, repr=False, compare=False)


def control_for(shape: str | Shape, drafter: Drafter) -> Control:
    """The control that a user asks for.

    Args: shape: "auto", "own" (the drafter's own settings), or a `Shape`. drafter: bound to its target.
    Raises: MismatchError for a `Shape` and a drafter that does not follow one, or whose smallest is larger.
    """
    shapes = drafter.shapes
    if isinstance(shape, Shape):
        if not shapes:
            raise MismatchError(
                f"the drafter {name_of('drafters', drafter)!r} makes drafts of its own size only: use shape='auto' or "
                "'own'"
            )
        least = shapes[0]
        if shape.depth and (shape.depth < least.depth or shape.total < least.total):
            raise MismatchError(
                f"the drafter {name_of('drafters', drafter)!r} makes drafts of shape {least} or none: use shape='auto' "
                "or 'own'"
            )
        return Fixed(shape)
    settles = drafter.reuses  # guesses that get better round by round: no round can be judged alone
    return Auto(shapes) if shape == "auto" and shapes and not settles else OWN


def asked_shape(shape: Any) -> str | Shape | None:
    """What a user gave for a shape: a `Shape`, or a text as `read_shape` takes it; nothing stays nothing.

    Raises: InputError for anything else.
    """
    if isinstance(shape, str):
        return read_shape(shape) if shape else None
    if shape is None or isinstance(shape, Shape):
        return shape
    raise InputError(f"shape={shorten(shape)} is not valid: 'auto', 'own', a mmspec.Shape or a text such as '5x4x16'")


def read_shape(text: str) -> str | Shape:
    """A shape as the command line takes it: auto, own, a depth, or depth, width and number of nodes as in 5x4x16, or
    with `least` as in 5x4x16x0.1."""
    if text in ("auto", "own"):
        return text
    try:
        *sizes, last = text.split("x", 3)
        if len(sizes) < 3:
            return Shape(*map(int, (*sizes, last)))
        return replace(Shape(*map(int, sizes)), least=float(last))
    except ValueError as error:  # InputError is one, too
        raise InputError(
            f"shape {shorten(text)} is not valid: auto, own, a depth such as 4, depth x width x nodes such as 5x4x16, "
            "or with the least confidence of a path such as 5x4x16x0.1"
        ) from error
