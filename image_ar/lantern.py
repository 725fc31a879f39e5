"""LANTERN (arXiv 2410.03355) and LANTERN++ (2502.06352): a drafted code borrows the mass of codes that look alike.

The neighbours n_1, n_2, ... of x lend to it as long as they lend no more than a bound in all: delta (LANTERN), or
(lambda - 1) p(x) (LANTERN++), so that a token that the target rules out stays ruled out. The bound holds for every x by
itself, not for what is emitted. At temperature 0 a code is kept if, with what it borrows, it is the best.

LANTERN's drafts, as published, are EAGLE-2's trees of likeliest children, whose q is 1: little of them is kept, and
little is gained by what they borrow. Drawn children (as of LANTERN++, as published) and windows of Jacobi decoding are
kept far more often, with the same bounds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft
from mmspec.errors import InputError, MismatchError
from mmspec.image_ar.neighbours import Neighbours
from mmspec.image_ar.relaxed import Relaxed
from mmspec.registry import name_of
from mmspec.sampling import Sampler
from mmspec.tree import deepest, path_to

USUAL = 1000
"""How many codes may lend where nobody says."""
PART = 8
"""No more than one in so many codes then: where most of a codebook lends, looking alike means nothing."""


class Lantern(Relaxed):
    """Args: delta: what neighbours lend at most, in [0, 1], 0 is the ratio rule.

    k: how many may lend, 0 is the ratio rule, too. None is 1000 but no more than an eighth of the codebook, so that
        both published settings (16384 codes of LlamaGen, 8192 of Chameleon) stay as published, and 512 codes give 64.
    residual: see `Relaxed`.
    plain: whether drafters that make both are asked for the likeliest children, not for drawn ones. Where nothing else
        can be had they are taken in any case. These are LANTERN's published trees and bound, with our residual: a
        rejection takes out the rejected code alone. The released code also zeroes the k + 1 codes nearest to it where
        any of them lent, and goes on with a uniform law where nothing is left.
    unit: whether code vectors are compared at unit length, or as they are stored (the released LANTERN); None as the
        picture tokenizer takes them.
    """

    def __init__(
        self,
        delta: float = 0.1,
        k: int | None = None,
        residual: str = "plain",
        plain: bool = False,
        unit: bool | None = None,
    ) -> None:
        super().__init__(residual)
        if not (k is None or (isinstance(k, int) and k >= 0)) or not 0 <= delta <= 1:
            raise InputError(f"LANTERN needs k >= 0 (or None) and delta in [0, 1], got {k!r} and {delta!r}")
        self.k, self.delta, self.unit = k, delta, unit
        self.takes = ("point", "sampled") if plain else ("sampled", "point")
        self.neighbours: Neighbours | None = None
        self.lossless = self.invariant_greedy = k == 0 or delta == 0

    def bind(self, target: Any) -> None:
        """Take the table of the target's codebook."""
        if not hasattr(target, "codebook"):
            raise MismatchError(
                f"{name_of('rules', self)!r} needs a codebook of images, {type(target).__name__} has none"
            )
        k = min(USUAL, len(target.codebook) // PART) if self.k is None else self.k
        self.neighbours = Neighbours(target.neighbours(k, self.unit).nearest[:, :k]) if k else None

    def bound(self, own: Tensor) -> Tensor:
        """What neighbours may lend to tokens with probabilities `own` [B, K]."""
        return torch.full_like(own, self.delta)

    def raised(self, law: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """See `Relaxed.raised`."""
        own = law.gather(1, tokens)
        return own + self.borrowed(law, tokens, own)[0], q.gather(1, tokens)

    def borrowed(self, law: Tensor, tokens: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What neighbours lend to tokens [B, K].

        Returns: [B, K] mass, [B, K, k] the neighbours, and [B, K, k] bool, which of them lend.
        """
        if self.neighbours is None:
            empty = tokens.new_zeros(*tokens.shape, 0)
            return torch.zeros_like(own), empty, empty.bool()
        table = self.neighbours.nearest
        codes = len(table)
        near = table[tokens.clamp(max=codes - 1)].long()  # [B, K, k]
        mass = law.gather(1, near.flatten(1)).view(near.shape)
        lends = mass.cumsum(-1) <= self.bound(own)[..., None]
        lends &= (tokens < codes)[..., None]  # layout tokens look like nothing
        return torch.where(lends, mass, 0.0).sum(-1), near, lends

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """See `mmspec.contract.Rule`."""
        return self._best(draft, scores) if sampler.greedy else super().__call__(draft, scores, sampler, emitted)

    def _best(self, draft: Draft, scores: Tensor) -> Accepted:
        """Temperature 0: the deepest path of tokens that are the best, or are it with what they borrow."""
        batch, size = draft.tokens.shape
        rows, above = torch.arange(batch, device=scores.device)[:, None], draft.parents.clamp(min=0)
        choice = scores.argmax(-1)  # [B, N]
        law = scores.softmax(-1)[rows, above].flatten(0, 1)  # [B N, V], of every node's parent
        tokens = draft.tokens.flatten()[:, None]
        own = law.gather(1, tokens)
        mass, near, lends = self.borrowed(law, tokens, own)
        others = law.scatter(1, tokens, -1.0)
        others = others.scatter_reduce(1, near[:, 0], torch.where(lends[:, 0], -1.0, 2.0), "amin")
        wins = (mass > 0) & (own + mass > others.amax(-1, keepdim=True))
        taken = (draft.tokens == choice[rows, above]) | wins.view(batch, size)
        last = deepest(draft, taken)
        return path_to(draft, last, choice[rows[:, 0], last])


class LanternPlus(Lantern):
    """Args: bound: lambda; a token is granted at most lambda times its probability, 1 is the ratio rule. The others: as
    for `Lantern`.
    """

    def __init__(
        self,
        bound: float = 2.0,
        k: int | None = None,
        residual: str = "plain",
        plain: bool = False,
        unit: bool | None = None,
    ) -> None:
        super().__init__(0.0, k, residual, plain, unit)
        if not bound >= 1:
            raise InputError(f"LANTERN++ needs a bound of 1 or more, got {bound!r}")
        self.times = bound
        self.lossless = self.invariant_greedy = k == 0 or bound == 1

    def bound(self, own: Tensor) -> Tensor:
        """See `Lantern.bound`."""
        return (self.times - 1) * own
