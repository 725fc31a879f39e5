"""Drafters that read the target's features of the text and then make a tree, on every device: EAGLE, DFlash, those that
see pictures, and heads that look at the last feature alone.

A `SlotDrafter` is such a method: its steps, and what follows the nodes of a tree, which it says level by level or for
all levels at once. `OnSlots` is one on a request: it reads the slots that wait (`mmspec.drafters.slots`), makes the
tree, and drops the draft's own slots. Where steps are compiled, a draft is made in one launch if that can be
(`mmspec.drafters.whole`), and is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from mmspec.cache import Past
from mmspec.contract import Accepted, Draft, Drafting, Kind, State, Verified
from mmspec.drafters.children import Choice
from mmspec.drafters.growing import Expand, Guess
from mmspec.drafters.heads import HeadDrafter, Sizes
from mmspec.drafters.slots import Forward, Last, Slots
from mmspec.drafters.whole import MOST_READ, Whole
from mmspec.sampling import Sampler

if TYPE_CHECKING:
    from mmspec.engine.steps import Steps


@dataclass
class OnSlots(Drafting):
    """A drafter on features, on one request. whole: drafts in one launch, where it can."""

    drafter: SlotDrafter
    choice: Choice
    slots: Last | Slots
    whole: Whole | None = field(default=None, kw_only=True)

    @property
    def early(self) -> bool:
        """Plain calls ask what was accepted, but for static trees on a last feature, chosen on the device."""
        return self.whole is not None or (isinstance(self.slots, Last) and self.drafter.static)

    def ahead(self, state: State) -> bool:
        """See `Drafting`."""
        return self.whole is None or self.whole.serves(state)

    @property
    def forwards(self) -> tuple[Forward, ...]:
        """The drafter's steps, as this request calls them."""
        return self.drafter.forwards

    def expansion(self, pending: Tensor) -> Expand | Guess:
        """What follows the nodes of a tree, by plain calls. pending: [B]."""
        forwards = self.forwards
        return self.drafter.expansion(forwards, self.slots.cache, lambda: self.slots.read(forwards[0]), pending)

    def propose(self, state: State) -> Draft:
        """In one launch, or by plain calls, after which the slots of the draft are dropped."""
        draft = None if self.whole is None else self.whole.propose(state)
        if draft is None:
            assert state.pending is not None
            draft = self.drafter.tree(state, self.choice, self.expansion(state.pending))
            self.slots.forget()
        return draft

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Queue what was heard at the accepted nodes, whoever drafted them."""
        heard = self.drafter.heard(verified.taps)
        if self.whole is None:
            self.slots.observe(draft, heard, accepted)
        else:
            self.whole.observe(draft, heard, accepted)


class SlotDrafter(HeadDrafter):
    """A drafter on features: it reads the text, and then makes a tree, by steps that may be compiled."""

    text: ClassVar[type[Last | Slots]] = Slots
    """What is kept of the text: a slot for every token, or the last feature."""
    drafting: ClassVar[type[OnSlots]] = OnSlots
    """What it does on one request."""
    forwards: tuple[Forward, ...]
    """Its steps, which `bind` gives; the first one reads the slots."""
    steps: tuple[Steps, ...] | None = None
    """The same, where they are compiled as the target is."""
    masked: ClassVar[bool] = True
    """Whether the first one looks at the slots before those that it reads (`mmspec.drafters.slots.causal`)."""

    @property
    def most_read(self) -> int:
        """Most tokens that a round may have emitted, but for rounds of deeper drafts than usual."""
        return MOST_READ

    def bind(self, target: Any) -> None:
        """See `HeadDrafter`. The one step here is that of a network that reads features and no tokens."""
        super().bind(target)
        self.forwards = (lambda tokens, *given: self.net(*given),)

    def forwarded(self, sizes: Sizes) -> int:
        """How many slots in front of a static cache drafting takes at most; asked where steps are compiled."""
        raise NotImplementedError

    def expansion(
        self, forwards: Sequence[Forward], past: Past, read: Callable[[], Tensor], pending: Tensor
    ) -> Expand | Guess:
        """What follows the nodes of a tree.

        Args: forwards: its steps. past: the cache of the slots. read: reads those that wait, and returns the first
            step's output at each row's last one, [B, H]; asked once, before anything else is forwarded. pending: [B].
        """
        raise NotImplementedError

    def prompt_slots(self, state: State) -> Last | Slots:
        """What is kept of a request that was just prefilled; its slots wait to be read."""
        return self.text.of_prompt(state, self.heard(state.prompt_taps), self.net.fuse, self.masked)

    def settle(self, slots: Slots, budget: int) -> None:
        """Read the prompt at once, and go on with the cache that compiled steps take. budget: tokens that follow, at
        most."""
        assert self.steps is not None
        slots.settle(self.steps[0], budget)

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> OnSlots:
        """Queue the prompt's features; they are read with the first proposal, or, for compiled steps, at once."""
        slots = self.prompt_slots(state)
        choice = self.choice(sampler, kind)
        if self.steps is None:
            return self.drafting(self, choice, slots)
        assert isinstance(slots, Slots)
        self.settle(slots, max(state.limits))
        whole = Whole(self, self.steps, choice, slots)
        whole.take_over(state)
        return self.drafting(self, choice, slots, whole=whole)
