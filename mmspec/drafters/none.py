"""No drafting: plain autoregressive decoding on the same loop. Our AR baseline."""

from __future__ import annotations

from typing import get_args

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.sampling import Sampler


class NoDrafter(Drafter, Drafting):
    """Proposes nothing, so every round is one autoregressive step."""

    kinds: frozenset[Kind] = frozenset(get_args(Kind))
    drafts = None
    drafts_chains = True  # none of them
    source = "plain autoregressive decoding"
    early = True

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> NoDrafter:
        """There is nothing to remember, so the drafter serves all requests itself."""
        return self

    def propose(self, state: State) -> Draft:
        """The pending token alone."""
        return state.undrafted()

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Nothing to learn."""
