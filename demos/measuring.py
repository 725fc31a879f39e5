"""The drafters of a model measured on the same few requests: what runs behind the benchmark tab, without gradio.

Requests are answered in turn by plain decoding and by every drafter, so that a computer that slows down slows all of
them. The first request is answered once more before, which does not count: everything is warm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmspec.compare import EXACT
from mmspec.contract import bound
from mmspec.demos.studio import Studio, Wish
from mmspec.errors import InputError

if TYPE_CHECKING:
    from mmspec.results import Generation
    from mmspec.stats import Stats

PLAIN = "none"
MOST_REQUESTS = 6
MOST_DRAFTERS = 6
LONGEST = 300
"""Seconds after which no further reply is begun: others wait for the model."""


@dataclass(frozen=True)
class Reply:
    """A reply to request number `request`. equal: it is that of plain decoding."""

    request: int
    drafter: str
    stats: Stats
    token_ids: list[int]
    equal: bool = True


@dataclass
class Measured:
    """A benchmark so far. drafters: plain decoding is the first. names: theirs for visitors. done: replies of `total`,
    the warm-up's included. invariant: replies are bound to be equal; exact: sums round alike, too. ended: all were
    given, or time was up."""

    drafters: Sequence[str]
    wishes: Sequence[Wish]
    names: Mapping[str, str]
    invariant: bool = True
    exact: bool = True
    done: int = 0
    ended: bool = False
    replies: list[Reply] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Replies that are to be given."""
        return len(self.drafters) * (1 + len(self.wishes))


def wishes(studio: Studio, samples: Sequence[dict[str, Any]], drafters: Sequence[str], **how: Any) -> list[Wish]:
    """What is asked for. samples: of the studio. how: they are decoded. Raises: InputError for what is beyond the
    limits."""
    if not 1 <= len(samples) <= MOST_REQUESTS:
        raise InputError(f"{len(samples)} {studio.wish.noun}s are not valid: 1 to {MOST_REQUESTS} are taken")
    if not 1 <= len(drafters) <= MOST_DRAFTERS:
        raise InputError(f"{len(drafters)} drafters are chosen: 1 to {MOST_DRAFTERS} are taken")
    return [studio.wish(drafter=drafters[0], **sample, **how) for sample in samples]


def measure(studio: Studio, asked: Sequence[Wish], drafters: Sequence[str]) -> Iterator[Measured]:
    """Answer every wish with every drafter; yields what is known after each round."""
    measured, first = Measured(list(dict.fromkeys([PLAIN, *drafters])), asked, studio.names), asked[0]
    options, pipes = [wish.options() for wish in asked], {PLAIN: studio.plain}
    for drafter in drafters:
        pipes[drafter] = studio.drafting(drafter, first.shape, first.rule, first.looseness)
        yield measured
    dtype, rule = str(studio.plain.target.model.dtype).removeprefix("torch."), pipes[drafters[0]].rule
    measured.invariant = bound(rule, first.temperature == 0)
    measured.exact = measured.invariant and dtype in EXACT
    begun = time.monotonic()
    for request in (None, *range(len(asked))):  # None: the warm-up
        plain = None
        for drafter, pipe in pipes.items():
            if time.monotonic() - begun > LONGEST:
                break
            pipe.forget()  # or it would know the reply that it drafts
            with pipe.stream(**options[request or 0]) as stream:
                for _ in stream:
                    yield measured
                answer = stream.finish()
            plain = plain or answer
            measured.done += 1
            if request is not None:
                same = alike(studio, plain, answer)
                measured.replies.append(Reply(request, drafter, answer.stats, answer.token_ids, same))
            yield measured
    measured.ended = True
    yield measured


def alike(studio: Studio, one: Generation, other: Generation) -> bool:
    """Whether two replies are the same; the tokens of continuous pictures only say in what order."""
    return one.token_ids == other.token_ids and ("values" not in studio.shows or one.image == other.image)
