"""A drafter that waits for the device after each of its parts, so that what drafting takes is told apart.

A GPU works behind the host: without waiting, the time of a draft would be counted where the host next looks at a
result, in verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mmspec.benchmarks.gpu.clock import wait
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Needs, State, Verified
from mmspec.sampling import Sampler


@dataclass
class Waiting:
    """Drafts what `inner` drafts. See `mmspec.contract.Drafter`."""

    inner: Drafter
    device: torch.device

    @property
    def kinds(self) -> frozenset[Kind]:
        """Those of the inner one."""
        return self.inner.kinds

    @property
    def needs(self) -> Needs:
        """Those of the inner one."""
        return self.inner.needs

    def bind(self, target: Any) -> None:
        """Bind the inner one."""
        self.inner.bind(target)

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> WaitingDrafting:
        """Start on a request."""
        begun = self.inner.begin(state, sampler, kind)
        wait(self.device)
        return WaitingDrafting(begun, self.device)


@dataclass
class WaitingDrafting:
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
