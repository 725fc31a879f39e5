"""Copy where the text repeats itself, ask another drafter elsewhere (SAM-Decoding, arXiv 2411.10666).

A long match with earlier text is a better guess than any small model's, and free; a short one is worse. In every round
each row decides by the length of its match; one with answers to other requests has to be longer than one with its own
text. The other drafter is asked only if some row needs it; it sees every round through `observe`, drafted by itself or
not, so its state stays that of the text. Copies are point masses, so rules that need the law of every child are not
served. A drafter that decides on the host.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.drafters.host import HostTree, plant
from mmspec.drafters.suffix import Matching, Suffix
from mmspec.errors import InputError
from mmspec.sampling import Sampler

BEHIND = 5
"""By how many tokens a match in the copier's store counts as shorter than one in a row's own text."""


class Hybrid(Drafter):
    """Drafts a copy where at least `least` tokens match, else what another drafter drafts.

    Args:
        other: that drafter: an object, a name, a folder or a hub id. None takes the best trained one that lies beside
            the model, else token recycling.
        least: length from which a match is trusted. copier: who copies, with its limits and, perhaps, its store.
    Raises: InputError: a match of no tokens.
    """

    kinds: frozenset[Kind] = frozenset({"point"})
    source = "SAM-Decoding, arXiv 2411.10666"

    def __init__(self, other: Any = None, least: int = 5, copier: Suffix | None = None) -> None:
        if least < 1:
            raise InputError(f"a hybrid drafter needs least >= 1, got {least}")
        self.given, self.least = other, least
        self.copier = copier or Suffix(length=12, total=16)
        self.other: Drafter | None = None

    def bind(self, target: Any) -> None:
        """Find the other drafter, and take over what it needs and can."""
        from mmspec.checkpoints import drafters_of
        from mmspec.loading import find_drafter

        place = getattr(getattr(target, "model", None), "name_or_path", "")
        folder = Path(place) if place and Path(place).is_dir() else None
        wanted = self.given
        if wanted is None:
            beside = drafters_of(folder) if folder and target.trained_first else {}
            wanted = next(iter(beside), "recycling")
        self.other = find_drafter(wanted, target, folder)
        self.copier.bind(target)
        self.kinds = self.other.kinds - {"sampled"}
        self.needs, self.shapes = self.other.needs, self.other.shapes
        self.reuses, self.net = self.other.reuses, self.other.net

    def forget(self) -> None:
        """Let the other drafter forget."""
        if self.other is not None:
            self.other.forget()

    def aside(self) -> Hybrid:
        """See `Drafter`."""
        other = copy(self)
        other.copier, other.other = self.copier.aside(), None if self.other is None else self.other.aside()
        return other

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Mixing:
        """Start both."""
        assert self.other is not None
        return Mixing(self, self.copier.begin(state, sampler, "point"), self.other.begin(state, sampler, kind))


@dataclass
class Mixing(Drafting):
    """A hybrid drafter on one request."""

    drafter: Hybrid
    copying: Matching
    other: Drafting

    def propose(self, state: State) -> Draft:
        """Each row's copy, where its match is long; the other drafter's tree elsewhere.

        A copy may be as deep as the wanted shape has nodes: it costs as much to verify.
        """
        copier = self.drafter.copier
        total = state.nodes(copier.total)
        most = min(copier.length, state.room, total - 1)
        trees = [HostTree(ids[-1]) for ids in state.ids]
        copies, asking = [], False
        for row, done in enumerate(state.done):
            match, tree = self.copying.tree(state, row, most, total, BEHIND)
            copies.append(match >= self.drafter.least)
            asking |= not copies[-1] and not done
            if copies[-1]:
                trees[row] = tree
        device = state.emitted.device
        if not asking:
            return plant(trees, device)
        draft = self.other.propose(state)
        return mixed(plant(trees, device), draft, torch.tensor(copies, device=device)) if any(copies) else draft

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Both learn from what was verified."""
        self.copying.observe(state, draft, verified, accepted)
        self.other.observe(state, draft, verified, accepted)


def mixed(first: Draft, second: Draft, choose: Tensor) -> Draft:
    """The first draft in the rows that `choose` [B] names, the second in the others, padded to one size."""
    size = max(first.size, second.size)
    rows = choose[:, None]
    fields = zip(_padded(first, size), _padded(second, size), strict=True)
    tokens, parents, depth, valid = (torch.where(rows, one, other) for one, other in fields)
    return Draft(tokens, parents, depth, second.kind, valid=valid)


def _padded(draft: Draft, size: int) -> tuple[Tensor, ...]:
    """Tokens, parents, depth and validity [B, size]; new nodes are invalid."""
    real = torch.ones_like(draft.parents, dtype=torch.bool) if draft.valid is None else draft.valid
    filled = ((draft.tokens, 0), (draft.parents, 0), (draft.depth, 1), (real, False))
    return tuple(torch.nn.functional.pad(part, (0, size - draft.size), value=value) for part, value in filled)
