"""A model of continuous tokens behind a demo: a canvas revealed step by step and with drafts of several steps.

There are no codes: drafted tokens are vectors, a round reveals many of them in random order, and even the exact rule
draws another picture than plain decoding at the same seed. So pictures are compared, and not what was emitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from mmspec.demos import cells, markup
from mmspec.demos.easel import Caption, Easel, PictureRace
from mmspec.demos.knobs import Knob
from mmspec.demos.race import read
from mmspec.demos.studio import SHAPES, Wish
from mmspec.demos.trace import BONUS, CORRECTED, DRAFTED, PLAIN, Node, Step, Trace, follow
from mmspec.registry import name_of

if TYPE_CHECKING:
    from mmspec.api import Pipeline
    from mmspec.demos.recorder import Recorded
    from mmspec.results import Piece, Stream

RULES = ("exact", "continuous", "continuous-released")
CHAINS = [shape for shape in SHAPES if "x" not in shape]
"""Sizes of drafts: groups follow one another, and make no trees."""


class CanvasWish(Caption):
    """What a visitor wants drawn. See `Wish`; no rule has a knob."""

    rules = RULES
    sizes = CHAINS
    coldest = 0.1  # densities have no greedy choice


@dataclass
class CanvasRace(PictureRace):
    """Both drawings. length: tokens of a picture. rule: the name of the one that judges drafts."""

    length: int = 1
    rule: str = ""

    @property
    def agree(self) -> bool:
        """Whether both pictures are the same; what is emitted are places, which say nothing of what stands there."""
        slow, fast = (sketches.shots[-1][1] for sketches in (self.slow_sketches, self.fast_sketches))
        return slow == fast

    @property
    def law(self) -> str:
        """See `PictureRace`."""
        return ", lossless" if self.fast.lossless else ", lossy"


class CanvasEasel(Easel):
    """A model of continuous tokens with its drafters, one request at a time. See `Easel`."""

    title = "Canvas"
    shows = ("values",)
    knobs: ClassVar[dict[str, Knob]] = {}
    wish = CanvasWish

    @cached_property
    def captions(self) -> list[str]:
        """Examples of `noun`."""
        return self.offered(self.plain.target)

    @property
    def noun(self) -> str:
        """What is asked for; only a model that is loaded says whether it takes captions or classes."""
        return "class" if self.plain.target.examples else "caption"

    def begun(self, wish: Wish, fast: Pipeline) -> CanvasRace:
        """See `Easel`."""
        length, rule = self.plain.target.budget, name_of("rules", fast.rule)
        return CanvasRace(Trace("none"), Trace(wish.drafter), caption=wish.prompt, length=length, rule=rule)

    def pieces(self, stream: Stream, trace: Trace, recorded: Sequence[Recorded] | None) -> Iterator[Piece]:
        """See `Easel`; a vector has no text."""
        return follow(stream, trace, None, recorded, lambda token: "", kinds_of)

    def warm_prompt(self, pipe: Pipeline) -> str:
        """See `Studio`. Not of `captions`, which may wait for this very model."""
        return self.offered(pipe.target)[0]


def kinds_of(count: int, drafted: int, nodes: Sequence[Node]) -> tuple[str, ...]:
    """How each of a round's tokens came about, in the order in which a canvas emits them. See `trace.kinds_of`.

    Args: nodes: the groups of a draft, by depth; the last one is the target's to fill. Those that are kept were
        revealed, with a drafted value or another.
    """
    last = last_group(nodes)
    own = sum(node.kept and node.depth == last for node in nodes) if last else count
    return (DRAFTED,) * drafted + (CORRECTED,) * (count - drafted - own) + (BONUS if last else PLAIN,) * own


def last_group(nodes: Sequence[Node]) -> int:
    """The number of a draft's last group; 0 if nothing was drafted."""
    return max((node.depth for node in nodes), default=0)


def proposed(steps: Sequence[Step]) -> int:
    """Tokens that were drafted, the discarded ones included."""
    return sum(node.depth < last_group(step.nodes) for step in steps for node in step.nodes)


def counters(race: CanvasRace, until: float) -> str:
    """The cards of both sides at a time of the race; S and the verdict when it is over, for early steps reveal less
    than late ones."""
    slow, fast = read(race.slow, until), read(race.fast, until)
    steps, over = race.fast.rounds(until), race.over(until)
    elapsed = (min(until, trace.seconds) for trace in (race.slow, race.fast))
    return markup.cards(
        {
            f"speed-up S{race.law}": markup.told(race.speedup if over else None, "x"),
            "seconds, both": " / ".join(markup.told(each) for each in elapsed),
            "target calls, both": f"{slow.verifications} / {fast.verifications}",
            "tokens per call, both": f"{markup.told(slow.tau)} / {markup.told(fast.tau)}",
            "drafted tokens accepted": f"{sum(step.accepted for step in steps)} of {proposed(steps)}",
            f"rule{race.law}": race.rule,
            "same picture": markup.verdict(race) if over else "...",
        }
    )


def account(steps: Sequence[Step], length: int) -> str:
    """How the tokens of steps came about, as HTML. length: tokens of a picture."""
    kinds = cells.kinds_of(steps)
    parts = (f'<span class="mm-{kind}">{count} {kind}</span>' for kind, count in cells.counts(kinds).items())
    done = f"{len(kinds)} of {length} tokens in {max(len(steps) - 1, 0)} target calls"
    return f"<p>{done}{': ' if kinds else ''}{', '.join(parts)}</p>"
