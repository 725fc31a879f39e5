"""A whole draft in one launch: the last round's slots are read and the tree is made by one function of tensors.

Where steps are compiled, that function, `grown`, is recorded for every size of tree, on CUDA in a graph: a draft costs
the host one launch instead of hundreds. `Whole` makes and plays the recordings on one request of a drafter on slots
(`mmspec.drafters.on_slots`). They read what the last round left, as it comes from the rule; which slots are true is
decided on the device. Drafts are those of the plain calls, which serve whenever more than one round waits to be read.
The first draft is made in this way, too: the prompt's last slot waits as if a round without a draft had left it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, State
from mmspec.drafters.children import Choice
from mmspec.drafters.filling import Plan
from mmspec.drafters.heads import Sizes, level_by_level
from mmspec.drafters.slots import Forward, Slots, causal, following
from mmspec.engine.cache import FRONT
from mmspec.engine.graphs import Recorded, make_room, renewed
from mmspec.engine.sizes import padded
from mmspec.engine.steps import WIDTHS

if TYPE_CHECKING:
    from mmspec.engine.cache import Slab, StaticRows
    from mmspec.engine.steps import Steps

MOST_READ = WIDTHS[-1]
"""Most tokens that a round may have emitted for its slots to be read by the recording that serves most rounds, unless a
drafter says another number. Deeper drafts, and what follows them, have recordings of their own."""

MOST_FRONT = 4 * FRONT
"""Most slots in front for drafts that are recorded: every recording holds the features of as many nodes."""

MOST_KEPT = 32
"""Recordings of different sizes and laws on the same addresses: `auto` has a dozen sizes, for every temperature."""


@dataclass
class Whole:
    """On one request.

    drafter: a `SlotDrafter`. steps: its own; the first one reads. slots: of the request, in a static cache.
    left: what rounds left that nobody has read: their drafts, what was heard of the target at every node [B, N, T], and
    what was accepted. fronts: what drafts of sizes that came take of the slots in front.
    """

    drafter: Any
    steps: tuple[Steps, ...]
    choice: Choice
    slots: Slots
    left: deque[tuple[Draft, Tensor, Accepted]] = field(default_factory=deque)
    fronts: dict[Sizes, int] = field(default_factory=dict)

    def take_over(self, state: State) -> None:
        """Take what `Slots.settle` lets wait, the pending token's slot, for what a round without a draft left."""
        assert state.pending is not None
        ((_, heard, counts),) = self.slots.waiting
        self.slots.waiting = []
        none = torch.zeros_like(state.pending)
        accepted = Accepted(
            none[:, None],
            none + 1,
            state.pending,
            paths=[[0] for _ in counts],
            emitted=[ids[-1:] for ids in state.ids],
            running=[True for _ in counts],
        )
        self.left.append((Draft.root(state.pending), heard, accepted))

    def observe(self, draft: Draft, heard: Tensor, accepted: Accepted) -> None:
        """Remember a round; those before it, if nobody read them, wait among the slots."""
        self.hand_over()
        self.left.append((draft, heard, accepted))

    def hand_over(self) -> None:
        """Let plain calls read what was left by rounds that the host knows."""
        while self.left and self.left[0][2].paths:
            self.slots.observe(*self.left.popleft())

    def serves(self, state: State) -> bool:
        """Whether this round can be drafted here."""
        cache: StaticRows = self.slots.cache  # type: ignore[assignment]
        sizes = self.drafter.sizes(state)
        return (
            len(self.left) == 1
            and not self.slots.waiting
            and not self.choice.sampler.remembers
            and min(sizes.levels, state.room) >= 1  # with less room levels are in vain, and nothing is recorded anew
            and self._front(sizes) <= MOST_FRONT
            and cache.most + self._read(sizes) <= cache.slab.room
        )

    def _read(self, sizes: Sizes) -> int:
        """How many slots of the last round are made room for: as many as it may have emitted, and as a draft of these
        sizes may emit, so that a size that stays is recorded once."""
        draft, _, accepted = self.left[0]
        return padded(max(self.drafter.most_read, sizes.levels + 1, accepted.most_committed(draft)), WIDTHS)

    def _front(self, sizes: Sizes) -> int:
        """How many slots in front there must be: for the last round's nodes, and for all that drafting forwards."""
        if sizes not in self.fronts:
            self.fronts[sizes] = self.drafter.forwarded(sizes)
        return max(self.left[0][0].size, self._read(sizes), self.fronts[sizes])

    def propose(self, state: State) -> Draft | None:
        """The round's draft; None where plain calls must make it, to which the slots are handed over."""
        if not self.serves(state):
            self.hand_over()
            return None
        cache: StaticRows = self.slots.cache  # type: ignore[assignment]
        sizes = self.drafter.sizes(state)
        read, front = self._read(sizes), self._front(sizes)
        if front > cache.slab.front:  # what comes once may come again: later requests have these slots at once
            self.steps[0].front = padded(front, (self.steps[0].front,))
            cache.grow(self.steps[0].front, cache.slab.room)
        left, heard, accepted = self.left.popleft()
        assert accepted.next is not None
        given = left.tokens, heard, accepted.path[:, :read], accepted.committed, accepted.next
        recorded = self._recorded(cache.slab, sizes, read, heard, state.often(self.choice.sampler))
        tokens, parents, depth, above, q = recorded(*given, state.emitted, self.choice.sampler.seeds)
        cache.note(left, accepted)
        return Draft(tokens, parents, depth, self.choice.kind, q, _ancestors=above, _levels=sizes.levels)

    def _recorded(self, slab: Slab, sizes: Sizes, read: int, heard: Tensor, often: bool) -> Recorded:
        """What reads as many slots and drafts trees of that size on these addresses; made if it is not there yet, and
        compiled as a whole if it will be used `often`: not for each of the sizes that are tried, or for every
        temperature."""
        choice = self.choice
        law = replace(choice.sampler.sampling, seed=0)
        key = "whole", sizes, read, law, choice.kind, choice.trust, choice.sharpness, often
        if not renewed(slab.recorded, key):
            number = torch.zeros(len(heard), dtype=torch.long)
            nodes, path = number[:, None].expand(-1, slab.front), number[:, None].expand(-1, read)
            features = heard[:, :1].expand(-1, slab.front, -1)
            inputs = nodes, features, path, number, number, number, number
            choice = replace(choice, sampler=copy(choice.sampler))
            plan = self.drafter.plan(choice, sizes, heard.device)
            forwards = tuple(step.forward if often else step.uncaptured for step in self.steps)
            function = partial(grown, self.drafter, forwards, choice, sizes, plan, slab)
            make_room(slab.recorded, [old for old in slab.recorded if old[0] == "whole"], MOST_KEPT)
            slab.recorded[key] = self.steps[0].recorded(function, inputs, heard.device, compiled=often)
        return slab.recorded[key]


def grown(
    drafter: Any,
    forwards: Sequence[Forward],
    choice: Choice,
    sizes: Sizes,
    plan: Plan | None,
    slab: Slab,
    tokens: Tensor,
    heard: Tensor,
    path: Tensor,
    count: Tensor,
    pending: Tensor,
    emitted: Tensor,
    seeds: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Tokens, parents, depth, ancestors and law of a draft. Nothing in here asks the device for a number.

    Args: tokens [B, N], heard [B, N, T]: of the nodes of the last round. path [B, A], count [B]: which of them were
        accepted, none in rows that are done. pending, emitted, seeds: [B].
    """
    rows = torch.arange(len(path), device=path.device)
    place = torch.arange(path.shape[1], device=path.device)
    path = torch.where(place < count[:, None], path, 0)  # behind the count stands what earlier rounds left
    read = following(tokens, path, count, pending)
    out = causal(forwards[0], slab, read, drafter.net.fuse(heard[rows[:, None], path]), drafter.masked)
    slab.keep(place.expand(path.shape), count)
    expand = drafter.expansion(forwards, slab, lambda: out[rows, count - 1], pending)
    choice.sampler.restart(seeds)
    draft = level_by_level(pending, emitted, choice, expand, sizes, plan)
    choice.sampler.restart(seeds)  # its noise would stay as long as what was recorded
    return draft.tokens, draft.parents, draft.depth, draft.ancestors, draft.q
