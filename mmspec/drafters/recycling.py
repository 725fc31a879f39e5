"""Token recycling: every token's last seen best successors, kept in a matrix, fill a tree of fixed shape (arXiv
2408.08696).

Verification computes a law at every node and keeps one path; the top-k of all of them, rejected nodes included, are
worth keeping as guesses for the next time that the same token comes up. The tree is filled level by level from the
pending token. Its shape is chosen once, best first, by how likely a child of each rank is the accepted one (as in
Sequoia, arXiv 2402.12374). The host only looks whether anything is known, and nobody at noise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.best import best_of_many
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.control import TREES
from mmspec.drafters.filling import planned
from mmspec.drafters.static import best_tree
from mmspec.errors import InputError
from mmspec.placeholders import listed
from mmspec.sampling import Sampler

SHARES = (0.5, 0.17, 0.09, 0.06, 0.04, 0.03, 0.025, 0.02)
"""How likely the child of each rank is the accepted one, roughly; only their order and ratios shape the tree."""
UNKNOWN = -1


class Recycling(Drafter):
    """Drafts with the successors that the target found best when it last verified each token.

    The matrix belongs to the drafter: every request of a pipeline reads and refreshes it, all rows of a batch too. It
    takes 4 * width bytes per id of the vocabulary and never grows.

    Args: total: nodes of the tree, the pending token included. depth: its levels.
        width: successors kept per token, at most 8.
    Raises: InputError: a value that leaves nothing to draft, or more successors than ranks have a known share.
    """

    kinds: frozenset[Kind] = frozenset({"point"})
    shapes = TREES
    source = "token recycling, arXiv 2408.08696"

    def __init__(self, total: int = 16, depth: int = 6, width: int = 8) -> None:
        if total < 2 or depth < 1 or not 1 <= width <= len(SHARES):
            raise InputError(
                f"token recycling needs total >= 2, depth >= 1 and width in 1 to {len(SHARES)}, got {total}, {depth} "
                f"and {width}"
            )
        self.total, self.depth, self.width = total, depth, width
        self.vocab_size = 0
        self.successors: Tensor | None = None  # [V + 1, width] int32; the last row takes what is not worth keeping

    def bind(self, target: Any) -> None:
        """Learn the vocabulary; what was learned in another one is forgotten."""
        self.placeholders = target.placeholders
        if self.vocab_size != target.vocab_size:
            self.vocab_size, self.successors = target.vocab_size, None

    def forget(self) -> None:
        """Know no successors, as before the first request."""
        self.successors = None

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Recycled:
        """Make the matrix where the first request runs."""
        device = state.emitted.device
        if self.successors is None or self.successors.device != device:
            size = (self.vocab_size + 1, self.width)
            self.successors = torch.full(size, UNKNOWN, dtype=torch.int32, device=device)
        return Recycled(self, self.successors)


@dataclass
class Recycled(Drafting):
    """Token recycling on one request, which keeps the matrix that it began with, whoever makes the drafter forget."""

    drafter: Recycling
    successors: Tensor

    def propose(self, state: State) -> Draft:
        """A static tree filled from the pending tokens; nodes below an unknown successor are invalid."""
        assert state.pending is not None
        own = self.drafter
        levels = state.levels(own.depth)
        width = own.width if state.shape is None else min(own.width, state.shape.width)
        nodes = best_tree((SHARES,), state.nodes(own.total), levels, width)
        parts, layout, everyone = planned(nodes, state.pending.device)
        tokens = state.pending[:, None]
        for level, part in enumerate(parts):
            above = tokens[:, part.inner[part.picks]]  # [B, nodes of the level]
            found = self.successors[above.clamp(min=0), part.ranks].long()
            tokens = torch.cat([tokens, torch.where(above < 0, UNKNOWN, found)], 1)
            if level == 0 and not bool((found != UNKNOWN).any()):  # a tree of nothing would be verified all the same
                return state.undrafted()
        batch = len(tokens)
        parents, depth = layout.expand(batch, -1, -1).unbind(2)  # [B, N]
        every = everyone.expand(batch, -1, -1)
        return Draft(tokens.clamp(min=0), parents, depth, valid=tokens >= 0, _ancestors=every, _levels=len(parts))

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Keep the best successors of every verified token; of a token's several nodes the last one counts."""
        table = self.successors
        best = best_words(verified.logits, table.shape[1], self.drafter.placeholders).flatten(0, 1)  # [B * N, width]
        unused = table.shape[0] - 1
        tokens = draft.tokens if draft.valid is None else torch.where(draft.valid, draft.tokens, unused)
        tokens = tokens.flatten()
        order = torch.arange(len(tokens), device=tokens.device)
        last = tokens.new_zeros(len(table)).scatter_reduce_(0, tokens, order, "amax")
        table[tokens] = best[last[tokens]].int()


def best_words(logits: Tensor, k: int, placeholders: Collection[int]) -> Tensor:
    """[.., k] the likeliest tokens under logits [.., V] that are no placeholders.

    As many more are looked for as there are of these, since to rule them out first copies all logits.
    """
    size = logits.shape[-1]
    found = best_of_many(logits, min(k + len(placeholders), size))[1]
    barred = listed(tuple(placeholders), size, logits.device)
    if barred is not None:
        found = found.gather(-1, barred[found].sort(dim=-1, stable=True).indices)
    return found[..., :k]
