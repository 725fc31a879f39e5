"""No drafting: plain autoregressive decoding on the same loop. Our AR baseline."""

from __future__ import annotations

from typing import Any

from mmspec.contract import Accepted, Draft, Kind, Needs, State, Verified
from mmspec.sampling import Sampler
from mmspec.tree import root


class NoDrafter:
    """Proposes nothing, so every round is one autoregressive step."""

    kinds: frozenset[Kind] = frozenset({"point", "sampled", "coupled"})
    needs = Needs()
    trained = False
    source = "plain autoregressive decoding"

    def bind(self, target: Any) -> None:
        """Fits every target."""

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> NoDrafter:
        """There is nothing to remember, so the drafter serves all requests itself."""
        return self

    def propose(self, state: State) -> Draft:
        """The pending token alone."""
        assert state.pending is not None
        return root(state.pending)

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Nothing to learn."""
