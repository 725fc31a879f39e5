"""A drafter that works like another one and keeps its drafts, so that a page can show them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.contract import Accepted, Draft, Drafter, Kind, State
from mmspec.drafters.watched import Watched, WatchedDrafting
from mmspec.sampling import Sampler


@dataclass(frozen=True)
class Recorded:
    """The draft of one round, row 0: tokens, parents, depth, valid [N] on their device; path: accepted nodes."""

    tokens: Tensor
    parents: Tensor
    depth: Tensor
    valid: Tensor | None
    path: list[int]

    def on_host(self) -> tuple[list[int], list[int], list[int], set[int]]:
        """Tokens, parents and depths of its real nodes, and which were accepted."""
        count = len(self.tokens) if self.valid is None else int(self.valid.sum())  # padding stands last
        tokens, parents, depth = (part[:count].tolist() for part in (self.tokens, self.parents, self.depth))
        return tokens, parents, depth, set(self.path)


class Recorder(Watched):
    """Wraps a drafter. rounds: the drafts of the last request, which grow while it runs."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.rounds: list[Recorded] = []

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> WatchedDrafting:
        """See `Drafter`."""
        self.rounds.clear()
        return super().begin(state, sampler, kind)

    def look(self, draft: Draft, accepted: Accepted) -> None:
        """See `Watched`; copies without waiting for the device."""
        tokens, parents, depth = (part[0].clone() for part in (draft.tokens, draft.parents, draft.depth))
        valid = None if draft.valid is None else draft.valid[0].clone()
        self.rounds.append(Recorded(tokens, parents, depth, valid, accepted.paths[0]))
