"""A drafter that waits for the device after each of its parts, so that what drafting takes is told apart.

A GPU works behind the host: without waiting, the time of a draft would be counted where the host next looks at a
result, in verification.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmspec.benchmarks.gpu.clock import wait
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.sampling import Sampler


class Waiting(Drafter):
    """Drafts what `inner` drafts, which is bound to the target already: another `bind` would make its steps anew."""

    def __init__(self, inner: Drafter, device: torch.device) -> None:
        self.inner, self.device = inner, device
        self.kinds, self.needs = inner.kinds, inner.needs

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> WaitingDrafting:
        """Start on a request."""
        begun = self.inner.begin(state, sampler, kind)
        wait(self.device)
        return WaitingDrafting(begun, self.device)


@dataclass
class WaitingDrafting(Drafting):
    """The same on one request. What the commit still had to do is counted as drafting."""

    inner: Drafting
    device: torch.device

    def propose(self, state: State) -> Draft:
        """The inner one's draft, finished."""
        draft = self.inner.propose(state)
        wait(self.device)
        return draft

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Let the inner one learn, and wait for it."""
        self.inner.observe(state, draft, verified, accepted)
        wait(self.device)
