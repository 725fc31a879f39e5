"""Drafters that read slots and then make a tree, on every device: EAGLE, DFlash, and those that see pictures.

A `SlotDrafter` is such a method: its steps, and what follows the nodes of a tree, which it says level by level or for
all levels at once. `OnSlots` is one on a request: it reads the slots that wait (`mmspec.drafters.slots`), makes the
tree, and drops the draft's own slots. Where steps are compiled, a draft is made in one launch if that can be
(`mmspec.drafters.whole`), and is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from mmspec.cache import Past
from mmspec.contract import Accepted, Draft, Drafting, Kind, State, Verified
from mmspec.drafters.children import Choice
from mmspec.drafters.growing import Expand, Guess
from mmspec.drafters.heads import HeadDrafter, Sizes
from mmspec.drafters.slots import Forward, Slots
from mmspec.drafters.whole import MOST_READ, Whole
from mmspec.sampling import Sampler

if TYPE_CHECKING:
    from mmspec.engine.steps import Steps


class SlotDrafter(HeadDrafter):
    """A drafter that reads slots and then makes a tree, by steps that may be compiled. `bind` gives the steps."""

    forwards: tuple[Forward, ...]
    """Its steps; the first one reads the slots."""
    steps: tuple[Steps, ...] | None = None
    """The same, where they are compiled as the target is."""
    masked: ClassVar[bool] = True
    """Whether the first one looks at the slots before those that it reads (`mmspec.drafters.slots.causal`)."""

    @property
    def most_read(self) -> int:
        """Most tokens that a round may have emitted, but for rounds of deeper drafts than usual."""
        return MOST_READ

    @abstractmethod
    def forwarded(self, sizes: Sizes) -> int:
        """How many slots in front of a static cache drafting takes at most."""

    @abstractmethod
    def expansion(
        self, forwards: Sequence[Forward], past: Past, read: Callable[[], Tensor], pending: Tensor
    ) -> Expand | Guess:
        """What follows the nodes of a tree.

        Args: forwards: its steps. past: the cache of the slots. read: reads those that wait, and returns the first
            step's output at each row's last one, [B, H]; asked once, before anything else is forwarded. pending: [B].
        """

    def settle(self, slots: Slots, budget: int) -> None:
        """Read the prompt at once, and go on with the cache that compiled steps take. budget: tokens that follow, at
        most."""
        assert self.steps is not None
        slots.settle(self.steps[0], budget)

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> OnSlots:
        """Queue the prompt's features; they are read with the first proposal, or, for compiled steps, at once."""
        slots = Slots.of_prompt(state, self.heard(state.prompt_taps), self.net.fuse, self.masked)
        choice = self.choice(sampler, kind)
        if self.steps is None:
            return OnSlots(self, choice, slots)
        self.settle(slots, max(state.limits))
        whole = Whole(self, self.steps, choice, slots)
        whole.take_over(state)
        return OnSlots(self, choice, slots, whole=whole)


@dataclass
class OnSlots(Drafting):
    """A drafter that reads slots and then makes a tree, on one request. whole: drafts in one launch, where it can."""

    drafter: SlotDrafter
    choice: Choice
    slots: Slots
    whole: Whole | None = field(default=None, kw_only=True)

    @property
    def early(self) -> bool:
        """Plain calls ask what was accepted."""
        return self.whole is not None

    def ahead(self, state: State) -> bool:
        """See `Drafting`."""
        return self.whole is not None and self.whole.serves(state)

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
