"""Drafters that hear the target's features of the text, keep all of them or the last, and make their trees by plain
calls. What is the same for all stands here: a new one says how it makes a tree (`propose`), and names what it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mmspec.contract import Accepted, Draft, Drafting, Kind, State, Verified
from mmspec.drafters.children import Choice
from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.slots import Last, Slots
from mmspec.sampling import Sampler


@dataclass
class OnFeatures(Drafting):
    """Base of their work on one request. text: what is kept of the text's features."""

    drafter: FeatureDrafter
    choice: Choice
    text: Last | Slots

    @property
    def early(self) -> bool:
        """Slots are told what was accepted, a last feature is chosen on the device."""
        return isinstance(self.text, Last)

    def read(self) -> Tensor:
        """[B, H] at each row's last slot: what the network makes of the text up to there, or the feature itself."""
        return self.text.read(self._forward)

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """See `mmspec.drafters.slots.Forward`: networks that read features alone."""
        out: Tensor = self.drafter.net(features, positions, mask, cache)
        return out

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Take over the features of the accepted nodes, which verification gave."""
        self.text.observe(draft, self.drafter.heard(verified.taps), accepted)


class FeatureDrafter(HeadDrafter):
    """Base of such drafters."""

    text: ClassVar[type[Last | Slots]] = Last
    """What is kept of the text's features."""
    drafting: ClassVar[type[OnFeatures]]
    """What it does on one request."""

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> OnFeatures:
        """Take over the prompt's features; slots are read with the first proposal."""
        text = self.text.of_prompt(state, self.heard(state.prompt_taps))
        return self.drafting(self, self.choice(sampler, kind), text)
