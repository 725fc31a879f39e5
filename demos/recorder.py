"""A drafter that works like another one and keeps its drafts, so that a page can show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
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


class Recorder(Drafter):
    """Wraps a drafter. rounds: the drafts of the last request, which grow while it runs."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.kinds, self.needs = drafter.kinds, drafter.needs
        self.shapes, self.reuses = drafter.shapes, drafter.reuses
        self.drafts_columns = drafter.drafts_columns
        self.drafts_chains = drafter.drafts_chains
        self.rounds: list[Recorded] = []

    def bind(self, target: Any) -> None:
        """See `Drafter`."""
        self.drafter.bind(target)

    def forget(self) -> None:
        """See `Drafter`."""
        self.drafter.forget()

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Recording:
        """See `Drafter`."""
        self.rounds.clear()
        return Recording(self.drafter.begin(state, sampler, kind), self.rounds)


class Recording(Drafting):
    """The other drafter's work on a request, watched."""

    def __init__(self, drafting: Drafting, rounds: list[Recorded]) -> None:
        self.drafting, self.rounds = drafting, rounds

    def propose(self, state: State) -> Draft:
        """See `Drafting`."""
        return self.drafting.propose(state)

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """See `Drafting`; copies without waiting for the device."""
        tokens, parents, depth = (part[0].clone() for part in (draft.tokens, draft.parents, draft.depth))
        valid = None if draft.valid is None else draft.valid[0].clone()
        self.rounds.append(Recorded(tokens, parents, depth, valid, accepted.paths[0]))
        self.drafting.observe(state, draft, verified, accepted)
