"""EAGLE for guided image models: the drafter reads both rows of guidance, and its law is their guided mix, as the
target's is (LANTERN, arXiv 2410.03355, section 3; EAGLE, 2401.15077).

Slots begin with the first code: slot t holds the code x_{t+1} and the features f_t of both rows, f_0 being those of the
prompts' last tokens. What prompts say is in f_0 and all that follows; their ids are of another vocabulary, and the
second row's prompt may be of another length. From there on both rows read the same codes.

The head's own layer is a Llama's, whose rotary positions are places in reading order. For LlamaGen, too, which has
rows and columns (as LANTERN's head for it does): of these it knows what the target's features say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec.cache import RowCache
from mmspec.contract import Accepted, Draft, Kind, State, Verified
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.growing import Above, Expand, Guess
from mmspec.drafters.on_slots import OnSlots
from mmspec.drafters.slots import Slots
from mmspec.errors import MismatchError
from mmspec.image_ar.target import GuidedState, GuidedVerified, ImageTarget
from mmspec.sampling import Sampler


class GuidedEagle(Eagle):
    """Drafts a dynamic tree for a model that draws."""

    method = "eagle2"
    kin = ("eagle",)
    source = "EAGLE-2 on both rows of guidance, arXiv 2406.16858, 2410.03355"

    def bind(self, target: Any) -> None:
        """Share the target's embeddings and head of the image vocabulary."""
        if not isinstance(target, ImageTarget):
            raise MismatchError(
                f"this {self.noun} drafter was made for models that draw, {type(target).__name__} is none of them"
            )
        super().bind(target)

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> GuidedSlots:
        """Queue the first code, with the features of both prompts."""
        assert isinstance(state, GuidedState)
        return GuidedSlots(self, self.choice(sampler, kind), first_slots(state, self.tap), request=state)

    @property
    def tap(self) -> int:
        """The features that enter the target's head."""
        (tap,) = self.taps(self.target)
        return tap


class GuidedEagle1(GuidedEagle):
    """The same network with a static tree, whose shape was measured."""

    method = "eagle"
    kin = ("eagle2",)
    source = "EAGLE on both rows of guidance, arXiv 2401.15077, 2502.06352"
    static = True


def first_slots(state: GuidedState, tap: int) -> Slots:
    """The slots of a request that was just prefilled: one per row, with the first code."""
    assert state.pending is not None
    features = state.lasts[tap]
    tokens = state.pending[:, None].repeat(state.pairs, 1)
    return Slots(RowCache(len(features), features.device), [(tokens, features, [1] * len(features))])


@dataclass
class GuidedSlots(OnSlots):
    """On one request, with slots of all rows, the told ones first."""

    drafter: GuidedEagle
    request: GuidedState = field(kw_only=True)

    def expansion(self, pending: Tensor) -> Expand:
        """The guided mix of what both rows say."""
        pairs, expand = self.request.pairs, super().expansion(pending)
        assert not isinstance(expand, Guess)

        def mixed(level: int, tokens: Tensor, origin: Tensor, above: Above) -> Tensor:
            both = tokens.repeat(pairs, 1), origin.repeat(pairs, 1)
            logits = expand(level, *both, lambda: above().repeat(pairs, 1, 1))
            assert isinstance(logits, Tensor)
            return self.request.guided(logits, level)

        return mixed

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Queue the accepted nodes with the features of both rows, whoever drafted them."""
        assert isinstance(verified, GuidedVerified)
        self.slots.observe(draft, verified.rows[self.drafter.tap], accepted)
