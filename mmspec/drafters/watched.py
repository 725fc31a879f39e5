"""A drafter that drafts what another one drafts, and looks at every round. What the other says of itself, it says, too:
targets, rules and `auto` see no difference."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, Self

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.sampling import Sampler


def hand_on(declared: type, inner: Any, outer: Any) -> None:
    """Let `outer` say of itself whatever `inner` says: all that the class `declared`, a base of both, annotates."""
    for name in get_annotations(declared):
        setattr(outer, name, getattr(inner, name))


class Watched(Drafter):
    """Base of such drafters; `drafter` is the other one."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        hand_on(Drafter, drafter, self)

    def bind(self, target: Any) -> None:
        """See `Drafter`."""
        self.drafter.bind(target)
        hand_on(Drafter, self.drafter, self)  # some of it is known only now

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> WatchedDrafting:
        """See `Drafter`."""
        return WatchedDrafting(self, self.drafter.begin(state, sampler, kind))

    def forget(self) -> None:
        """See `Drafter`."""
        self.drafter.forget()

    def aside(self) -> Self:
        """See `Drafter`."""
        other = copy(self)
        other.drafter = self.drafter.aside()
        return other

    @abstractmethod
    def look(self, draft: Draft, accepted: Accepted) -> None:
        """Take note of a round, before the other drafter learns from it."""


@dataclass
class WatchedDrafting(Drafting):
    """The other drafter's work on a request. Looks are on the host, so it is never `early`."""

    watched: Watched
    drafting: Drafting

    def propose(self, state: State) -> Draft:
        """See `Drafting`."""
        return self.drafting.propose(state)

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """See `Drafting`."""
        self.watched.look(draft, accepted)
        self.drafting.observe(state, draft, verified, accepted)
