"""A Jacobi window whose new places a trained drafter fills, Gumbel sharing for the rest.

Plain windows begin with guesses that know nothing of what will be drawn, and need rounds until they settle. Here an
EAGLE head (`mmspec.image_ar.eagle`) runs through the window and drafts what is new at its end; what the target has
looked at is drawn again from its own laws with the noise of its place (scd-gs, arXiv 2510.24211). As everywhere in
windows, a guess is drawn from a law that depends on earlier places only, with noise of its own place: both rules that
take windows stay exact.

What the target said behind a rejected token holds for that token. So the head drafts the first `fresh` places behind a
rejection anew, in the light of what came instead; the further away a place is, the less that token matters there.

The head reads a place of the window with the features that the target computed there when it verified the window last.
They are those of the guesses that stood there, as a Jacobi iteration has it; where the target has not looked yet, the
head's own estimates stand in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.contract import Accepted, Draft, Kind, State, TrainedDrafter, Verified
from mmspec.drafters.heads import HeadNet
from mmspec.drafters.slots import Slots
from mmspec.errors import InputError
from mmspec.image_ar.eagle import GuidedEagle, first_slots
from mmspec.image_ar.jacobi import GumbelSharing
from mmspec.image_ar.layout import UNKNOWN
from mmspec.image_ar.target import GuidedState, GuidedVerified
from mmspec.image_ar.window import Guesses, Redraw, Window
from mmspec.sampling import Sampler


class EagleSharing(GumbelSharing, TrainedDrafter):
    """Args: net: an EAGLE head, trained for the target. window: as for `JacobiDrafter`. fresh: how many places behind a
    rejection the head drafts anew.

    Raises: InputError: a window or a number of places that is not possible.
    """

    method = "sjd-eagle"
    source = "EAGLE in a Jacobi window with Gumbel sharing, arXiv 2401.15077, 2510.24211"
    packs = True
    fits = GuidedEagle.fits
    kin = ("eagle", "eagle2")
    """Methods whose weights will do."""
    net_class: ClassVar[type[HeadNet]] = GuidedEagle.net_class

    def __init__(self, net: Any, window: int | None = None, fresh: int = 3) -> None:
        super().__init__(window)
        if not isinstance(fresh, int) or fresh < 0:
            raise InputError(f"fresh={fresh!r} is not valid: a number of places, 0 or more, is needed")
        self.eagle, self.fresh, self.net = GuidedEagle(net), fresh, net

    def bind(self, target: Any) -> None:
        """Share the target's embeddings and head, learn the layout."""
        super().bind(target)
        self.eagle.bind(target)
        self.needs = self.eagle.needs

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Window:
        """Fill the window with what the head drafts."""
        return EagleWindow(self, state, sampler, kind)

    def save(self, folder: Path) -> dict[str, Any]:
        """See `HeadDrafter.save`."""
        return {**self.eagle.save(folder), "options": {"window": self.window, "fresh": self.fresh}}

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Self:
        """The counterpart of `save`; it also takes what its kin saved."""
        own = description["options"] if description["method"] == cls.method else {}
        return cls(GuidedEagle.load(folder, {**description, "options": {}}, target).net, **own)


@dataclass
class EagleWindow(Window):
    """On one request.

    slots: what was emitted, as the head reads it. fed: [P * B, W, H] the features with which it reads the window.
    estimate: [P * B, 1, H] what it makes of the pending token.
    """

    drafter: EagleSharing
    slots: Slots = field(init=False)
    fed: Tensor = field(init=False)
    estimate: Tensor = field(init=False)

    def __post_init__(self) -> None:
        assert isinstance(self.state, GuidedState)
        first = self.state.lasts[self.drafter.eagle.tap]
        self.slots = first_slots(self.state, self.drafter.eagle.tap)
        self.fed = first.new_zeros(len(first), self.drafter.window, first.shape[-1])
        self.estimate = self.slots.read(self._forward)[:, None]
        super().__post_init__()

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Take over the features of both rows, then as every window."""
        if all(state.done):
            return
        assert isinstance(state, GuidedState)
        assert isinstance(verified, GuidedVerified)
        features = verified.rows[self.drafter.eagle.tap]
        self.slots.observe(draft, features, accepted)
        self.estimate = self.slots.read(self._forward)[:, None]
        if draft is self.drafted or draft.size == 1:  # else the window begins anew
            known = torch.cat([features, self.fed[:, draft.size :]], 1)  # by the old place, that of node 0 first
            every = torch.arange(len(known), device=known.device)[:, None]
            shift = accepted.count.repeat(state.pairs)[:, None]
            moved = shift + torch.arange(self.drafter.window, device=known.device)
            self.fed = known[every, moved.clamp(max=known.shape[1] - 1)]
        super().observe(state, draft, verified, accepted)

    def _again(self, state: State, before: Tensor, logits: Tensor) -> Guesses:
        """Draw again from the target's laws, and where a token was rejected, draft the first places behind it anew."""
        again = super()._again(state, before, logits)
        count, top, looked = (state.emitted - before)[:, None], again.tokens.shape[1], logits.shape[1]
        estimate, places = self.estimate, self._places(state)
        end = min(self.drafter.fresh, top, self._useful(state))
        for place in range(end):
            index = count + place - 1  # of this place among those drawn again
            anew, index = (count <= looked) & (index < top), index.clamp(max=top - 1)
            if not anew.any():
                break
            guess = self._guess(estimate, state, places, place)
            token = torch.where(anew, guess.tokens, again.tokens.gather(1, index))
            again.tokens.scatter_(1, index, token)
            if again.q is not None and guess.q is not None:
                slots = index[..., None].expand_as(guess.q)
                again.q.scatter_(1, slots, torch.where(anew[..., None], guess.q, again.q.gather(1, slots)))
            self._feed(place, estimate, ~anew)
            if place + 1 < end:
                estimate = self._further(token, place)
        self.slots.forget()
        return again

    def _first(self, places: Tensor, state: State, column: int = 0, window: Tensor | None = None) -> Guesses:
        """What the head drafts from `column` on, one place after the other, after reading what the window holds.

        Places behind the end of every row hold anything: none of them is ever drafted.
        """
        width, vocabulary, end = self.drafter.window, self.drafter.vocab_size, self._useful(state)
        held = places.new_full((len(places), width), UNKNOWN) if window is None else window
        tokens, laws = [places[:, :0]], [self.fed.new_zeros(len(places), 0, vocabulary, dtype=torch.float32)]
        estimate, places = self.estimate, self._places(state)
        if 0 < column < end:
            estimate = self._further(held[:, :column].clamp(min=0), 0)
        for place in range(column, end):
            guess = self._guess(estimate, state, places, place)
            tokens.append(guess.tokens)
            laws += [] if guess.q is None else [guess.q]
            known = held[:, place, None] != UNKNOWN
            self._feed(place, estimate, known)
            if place + 1 < end:
                estimate = self._further(torch.where(known, held[:, place, None], guess.tokens), place)
        self.slots.forget()
        behind = width - max(column, end)
        q = pad(torch.cat(laws, 1), (0, 0, 0, behind), value=1 / vocabulary) if self.sampled else None
        return Guesses(pad(torch.cat(tokens, 1), (0, behind)), q)

    def _useful(self, state: State) -> int:
        """How many columns of the window stand for places that some row can still emit."""
        return min(self.drafter.window, state.room + 1)

    def _guess(self, estimate: Tensor, state: State, places: Tensor, place: int) -> Guesses:
        """[B, 1] tokens for one column of the window's places [B, W]; estimate: [P * B, 1, H] of the place before."""
        assert isinstance(state, GuidedState)
        logits = self.drafter.eagle.net.logits(estimate, self.drafter.eagle.target.head)
        scores = self.sampler.shape(state.guided(logits, place))
        at = places[:, place, None]
        return self._draw(Redraw(self.sampler, self.kind, scores, at, state.emitted, column=place))

    def _feed(self, place: int, estimate: Tensor, kept: Tensor) -> None:
        """Let a column be read with an estimate, but for rows [B, 1] that keep what they have."""
        rows = kept.repeat(len(estimate) // len(kept), 1)[..., None]
        self.fed[:, place, None] = torch.where(rows, self.fed[:, place, None], estimate)

    def _further(self, tokens: Tensor, place: int) -> Tensor:
        """Estimates [P * B, 1, H] behind window tokens [B, K] from column `place` on; those before it were read."""
        count, rows = tokens.shape[1], len(self.fed)
        behind = torch.arange(place, place + count, device=tokens.device)
        seen = torch.arange(place + count, device=tokens.device) <= behind[:, None]
        positions = self.slots.cache.positions() + behind
        mask = self.slots.cache.mask(seen.expand(rows, -1, -1), positions, self.fed.dtype)
        fed = self.fed[:, place : place + count]
        tokens = tokens.repeat(rows // len(tokens), 1)
        return self._forward(tokens, fed, positions, mask, self.slots.cache.hf)[:, -1:]

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        eagle = self.drafter.eagle
        return eagle.net(eagle.target.embed(tokens), features, positions, mask, cache)
