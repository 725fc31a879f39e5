"""What a request did, round by round, in a form that pages can show: the view model of all demos, without gradio."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mmspec.demos.recorder import Recorded
from mmspec.text import TextStream

if TYPE_CHECKING:
    from mmspec.results import Piece, Stream

DRAFTED, CORRECTED, BONUS, PLAIN = "drafted", "corrected", "bonus", "plain"
"""How a token came about: an accepted draft; the target's own where the draft was wrong; the target's own after a draft
that was right to its end; the target's own where nothing was drafted."""


@dataclass(frozen=True)
class Node:
    """A drafted token. parent: its node, 0 is the pending token. kept: it was accepted."""

    text: str
    parent: int
    depth: int
    kept: bool


@dataclass(frozen=True)
class Step:
    """A round. pieces: text of each emitted token; kinds: how each came about; seconds: since the start of the request,
    at its end; nodes: the draft, the pending token first, empty where there was none."""

    pieces: tuple[str, ...]
    kinds: tuple[str, ...]
    seconds: float
    nodes: tuple[Node, ...] = ()

    @property
    def accepted(self) -> int:
        """Drafted tokens accepted."""
        return self.kinds.count(DRAFTED)


@dataclass
class Trace:
    """A request so far; the first step is the prefill. token_ids: what was emitted. verifies: whether drafts are
    judged. begun: how many seconds of the first step the drafter took to begin, which belong to decoding. thought: how
    many tokens the model thought before its answer, those around the thought included."""

    method: str
    lossless: bool = True
    verifies: bool = True
    steps: list[Step] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    begun: float = 0.0
    thought: int = 0

    def rounds(self, until: float = math.inf) -> list[Step]:
        """The steps that were done by a time, in seconds."""
        return [step for step in self.steps if step.seconds <= until]

    def per_token(self, until: float = math.inf) -> float | None:
        """Seconds of decoding per token after those of the prefill, by a time."""
        steps = self.rounds(until)
        count = emitted(steps[1:])
        return (steps[-1].seconds - steps[0].seconds + self.begun) / count if count > 0 else None

    @property
    def seconds(self) -> float:
        """From the start to the last token."""
        return self.steps[-1].seconds if self.steps else 0.0

    @property
    def accept_lengths(self) -> list[int]:
        """Drafted tokens accepted, per verification."""
        return [step.accepted for step in self.steps[1:]]


def emitted(steps: Sequence[Step]) -> int:
    """How many tokens steps emitted."""
    return sum(len(step.pieces) for step in steps)


def tau(steps: Sequence[Step]) -> float | None:
    """Tokens per verification, of steps that begin with the prefill; None where nothing was verified."""
    return emitted(steps[1:]) / (len(steps) - 1) if len(steps) > 1 else None


def follow(
    stream: Stream,
    trace: Trace,
    tokenizer: object,
    recorded: Sequence[Recorded] | None,
    text_of: Callable[[int], str],
    kinds: Callable[[int, int, Sequence[Node]], tuple[str, ...]] | None = None,
) -> Iterator[Piece]:
    """Run a request and fill its trace; yields the piece of every round once the trace has it.

    Args: recorded: the drafts of the request's rounds, which grow with it; None where nothing is drafted.
        text_of: the text of one token. kinds: how a round's tokens came about, by default `kinds_of`.
    """
    kinds = kinds or kinds_of
    text, stats = TextStream(tokenizer), stream.stats[0]
    trace.lossless, trace.verifies = stats.lossless, stats.verifies
    answered = False
    for number, piece in enumerate(stream):
        if not number:
            trace.begun = stats.draft_seconds
        draft = recorded[number - 1] if recorded is not None and number else None
        pieces = tuple(text.add([token]) for token in piece.tokens)
        nodes = nodes_of(draft, text_of) if draft else ()
        trace.steps.append(Step(pieces, kinds(len(pieces), piece.drafted, nodes), stats.seconds, nodes))
        for token in piece.tokens:
            trace.token_ids.append(token)
            if answered:  # what was thought stays
                continue
            parts = stream.apart(count=len(trace.token_ids))
            answered = bool(parts.answer)
            if parts.thought and not answered:
                trace.thought = len(trace.token_ids)
        yield piece
    if rest := text.add([], last=True):
        step = trace.steps[-1]
        trace.steps[-1] = replace(step, pieces=(*step.pieces[:-1], step.pieces[-1] + rest))


def nodes_of(draft: Recorded, text_of: Callable[[int], str]) -> tuple[Node, ...]:
    """The draft of a round as nodes; empty if nothing was drafted."""
    tokens, parents, depth, kept = draft.on_host()
    if len(tokens) < 2:
        return ()
    return tuple(
        Node(text_of(token), parent, level, place in kept)
        for place, (token, parent, level) in enumerate(zip(tokens, parents, depth, strict=True))
    )


def kinds_of(count: int, drafted: int, nodes: Sequence[Node]) -> tuple[str, ...]:
    """How each of a round's tokens came about."""
    if count == drafted:
        return (DRAFTED,) * count  # the answer ended inside the draft
    if not nodes:
        own = PLAIN
    else:
        last = max((place for place, node in enumerate(nodes) if node.kept), key=lambda place: nodes[place].depth)
        own = CORRECTED if any(node.parent == last for node in nodes) else BONUS
    return (DRAFTED,) * drafted + (own,)
