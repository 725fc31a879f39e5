"""Spec-LLaVA: a small VLM drafts a tree, which grows where it is confident (arXiv 2509.11961).

The drafter is a small VLM, or a language model that sees with the target's eyes (`mmspec.vlm.drafters.eyes`). How the
published method prunes is not known in detail; here the tree is EAGLE-2's (`mmspec.drafters.growing`): every level
keeps the nodes of the highest cumulative probability, and the best of all levels are verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.contract import Draft, Kind, Shape, State
from mmspec.control import TREES
from mmspec.drafters.children import Choice
from mmspec.drafters.filling import fill, planned
from mmspec.drafters.growing import Above, grow
from mmspec.drafters.independent import Writing
from mmspec.drafters.static import TYPICAL, best_tree
from mmspec.errors import InputError
from mmspec.sampling import Sampler
from mmspec.vlm.drafters.eyes import Eyes
from mmspec.vlm.drafters.grafted import Massv


class SpecLlava(Massv):
    """Drafts a tree with a small model that sees.

    Args: net: the model. depth: levels of the tree. width: nodes expanded per level, and children of each.
        total: nodes verified, the pending token included.
    """

    method = "spec-llava"
    source = "Spec-LLaVA, arXiv 2509.11961"
    shapes = TREES
    kin = ("massv", "ibed", "tabed")

    def __init__(self, net: Eyes, depth: int = 5, width: int = 4, total: int = 16) -> None:
        if min(depth, width) < 1 or total < 2:
            raise InputError(
                f"a tree of Spec-LLaVA needs depth and width >= 1 and total >= 2, got {depth}, {width} and {total}"
            )
        super().__init__(net, depth)
        self.width, self.total = width, total

    def save(self, folder: Any) -> dict[str, Any]:
        """See `Massv`."""
        options = {"depth": self.length, "width": self.width, "total": self.total}
        return {**super().save(folder), "options": options}

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Branching:
        """See `Massv`."""
        writing = super().begin(state, sampler, kind)
        return Branching(self, sampler, kind, writing.cache, writing.unread)


@dataclass
class Branching(Writing):
    """A tree-drafting language model on one request. depth: [B, M] levels of the nodes in the cache since the
    text."""

    depth: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))

    def propose(self, state: State) -> Draft:
        """A tree from the pending token on; afterwards nothing of it is in the cache."""
        assert state.pending is not None
        drafter: Any = self.drafter
        width, total = drafter.width, drafter.total
        if state.shape is not None:
            width, total = state.shape.width, state.shape.total
        if state.chains or drafter.decoder.running:
            width, total = 1, 1 + (state.shape.depth if state.shape else drafter.length)
        levels = min(state.levels(drafter.length), total - 1)
        if levels < 1:
            return state.undrafted()
        choice = Choice(self.sampler, self.kind, drafter.placeholders)
        self.depth = torch.zeros(len(state.ids), 0, dtype=torch.long, device=self.cache.device)
        if choice.draws:
            nodes = best_tree(TYPICAL, total, levels, width)
            draft = fill(state.pending, state.emitted, choice, self._expand, planned(nodes, state.pending.device))
        else:
            shape = Shape(levels, width, total)
            draft = grow(state.pending, state.emitted, choice, self._expand, shape, width)
        self.cache.commit(self.depth.shape[1], [[]] * len(self.cache.lengths))
        return draft

    def _expand(self, level: int, tokens: Tensor, origin: Tensor, above: Above) -> Tensor:
        """See `mmspec.drafters.growing.Expand`."""
        if level == 0:
            return self._catch_up()[:, None]
        self.depth = torch.cat([self.depth, torch.full_like(tokens, level - 1)], 1)
        return self.drafter.decoder.extend(self.cache, tokens, self.depth, above()).logits
