"""Drafting by the target itself: Jacobi windows, and what makes them work where tokens are sampled.

jacobi: the target's best token (Jacobi decoding; greedy only in effect).
sjd: a new draw from the target's law, judged by the ratio rule (speculative Jacobi decoding, arXiv 2410.01699).
scd-mc, scd-gs: draws of successive rounds are coupled, so that guesses settle (arXiv 2510.24211): by maximal coupling,
or by Gumbel noise that stays with its place. With the exact rule scd-gs draws with the target's own noise.

Under the ratio rule a guess needs a law that it was really drawn from, whatever else is known: for a place, noise
decides only about that place, so given all that happened before it, the guess follows its q. All three are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.acceptance.ratio import residual
from mmspec.contract import Kind
from mmspec.image_ar.window import AGAIN, FIRST, REST, JacobiDrafter, Redraw


class Jacobi(JacobiDrafter):
    """The target's best token at every place. At temperature 0 all other methods are this one."""

    kinds: frozenset[Kind] = frozenset({"point"})
    source = "Jacobi decoding, as in arXiv 2305.10427"

    def redraw(self, at: Redraw) -> Tensor:
        """See `JacobiDrafter`."""
        return best(at)


class SJD(JacobiDrafter):
    """New draws in every round."""

    kinds: frozenset[Kind] = frozenset({"sampled"})
    source = "speculative Jacobi decoding, arXiv 2410.01699"

    def redraw(self, at: Redraw) -> Tensor:
        """See `JacobiDrafter`."""
        if at.sampler.greedy:
            return best(at)
        return (at.scores + at.fresh(FIRST if at.first else AGAIN)).argmax(-1)


class MaximalCoupling(JacobiDrafter):
    """A guess d ~ q is kept with chance p(d) / q(d) and else drawn from norm(max(p - q, 0)): then it is one from p, and
    the same as before with the largest possible chance."""

    kinds: frozenset[Kind] = frozenset({"sampled"})
    reuses = True
    own_window = 32
    source = "speculative coupled decoding, maximal coupling, arXiv 2510.24211"

    def redraw(self, at: Redraw) -> Tensor:
        """See `JacobiDrafter`."""
        if at.sampler.greedy:
            return best(at)
        if at.first or at.old is None or at.old.q is None:
            return (at.scores + at.fresh(FIRST)).argmax(-1)
        count = at.old.tokens.shape[1]
        p, law = at.scores.softmax(-1), at.scores.clone()
        seen = p[:, :count]
        law[:, :count] = residual(seen, at.old.q).log()
        drawn = (law + at.fresh(REST)).argmax(-1)
        guess = at.old.tokens[..., None]
        keep = at.coins(count) * at.old.q.gather(2, guess)[..., 0] < seen.gather(2, guess)[..., 0]
        drawn[:, :count] = torch.where(keep, at.old.tokens, drawn[:, :count])
        return drawn


class GumbelSharing(JacobiDrafter):
    """Every place keeps its Gumbel noise g, and its guess is argmax(log p + g): it changes only if p changes enough."""

    kinds: frozenset[Kind] = frozenset({"coupled", "sampled"})
    reuses = True
    own_window = 32
    source = "speculative coupled decoding, Gumbel sharing, arXiv 2510.24211"

    def redraw(self, at: Redraw) -> Tensor:
        """See `JacobiDrafter`."""
        return best(at) if at.sampler.greedy else (at.scores + at.shared()).argmax(-1)


def best(at: Redraw) -> Tensor:
    """The best tokens; among equal first guesses, one that the place decides."""
    return (at.scores + at.shared()).argmax(-1) if at.first else at.scores.argmax(-1)
