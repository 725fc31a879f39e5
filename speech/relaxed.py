"""Lossy rules for sound: many codes sound alike, so a drafted one may stay where it is plausible enough.

Every rule here first looks for the target's own draw, as the exact rule does, then for a plausible child; when no child
is either, the target's own draw is emitted and the round ends. So each has a neutral knob with which it is the exact
rule. A token that ends the utterance is kept only as the target's own draw: no tolerance may cut a sentence short.

tolerance   a child that is among m independent draws of the target (our reading of VADUSA, arXiv 2410.21951)
top-k       a child among the target's k likeliest tokens (Llasa+, arXiv 2508.06262)
max-ratio   a child with at least rho times the probability of the likeliest token
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from mmspec import noise
from mmspec.acceptance.exact import choices
from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.errors import InputError
from mmspec.sampling import Sampler
from mmspec.tree import deepest, follow, path_to


class Relaxed(Rule):
    """Law: none but that of the neutral knob, where it is the coupled match. At temperature 0 the greedy comparison."""

    takes: tuple[Kind, ...] = ("coupled", "point", "sampled")

    def __init__(self, neutral: bool) -> None:
        self.lossless = self.invariant = neutral
        self.ends: tuple[int, ...] = ()

    def bind(self, target: Any) -> None:
        """Learn which tokens end an utterance."""
        self.ends = tuple(target.ends())

    @abstractmethod
    def plausible(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Tensor:
        """[B, N] rank of every node among what its parent's law finds plausible: 0 or more, inf where it is not."""

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Follow the target's own choices, else plausible children. See `mmspec.contract.Rule`."""
        if sampler.greedy:
            return follow(draft, scores.argmax(-1))
        choice = choices(draft, scores, sampler, emitted)  # [B, N]
        rank = self.plausible(draft, scores, sampler, emitted)
        for end in self.ends:
            rank = rank.masked_fill(draft.tokens == end, math.inf)
        own = draft.tokens == choice.gather(1, draft.parents.clamp(min=0))
        last = descend(draft, torch.where(own, -1.0, rank))
        return path_to(draft, last, choice.gather(1, last[:, None])[:, 0])


class Tolerance(Relaxed):
    """A child passes if it is one of `draws` independent draws from p, so with chance 1 - (1 - p(c))^draws.

    Args: draws: 1 or more; 1 is the exact rule.
    """

    def __init__(self, draws: int = 4) -> None:
        if not isinstance(draws, int) or isinstance(draws, bool) or not 1 <= draws <= 256:
            raise InputError(f"tolerance needs a whole number of draws, 1 (exact) to 256, got {draws!r}")
        super().__init__(neutral=draws == 1)
        self.draws = draws

    def plausible(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Tensor:
        """The number of the first further draw that gave the token."""
        rank = torch.full(draft.tokens.shape, math.inf, dtype=torch.float32, device=scores.device)
        rows = torch.arange(len(rank), device=scores.device)[:, None]
        above = draft.parents.clamp(min=0)
        # nodes of one depth share the noise of their position; made for all draws at once, since little of it is slow
        places = emitted[:, None] + torch.arange(draft.levels + 1, device=scores.device)
        counters = places[..., None] * 2**8 + torch.arange(1, self.draws, device=scores.device)
        g = noise.gumbel(sampler.seeds, noise.ACCEPT, counters.flatten(1), scores.shape[-1])
        for draw, each in reversed(list(enumerate(g.unflatten(1, counters.shape[1:]).unbind(2), 1))):
            drawn = (scores + each[rows, draft.depth]).argmax(-1).gather(1, above)
            rank = torch.where(draft.tokens == drawn, float(draw), rank)
        return rank


class TopK(Relaxed):
    """A child passes if fewer than `k` tokens are likelier. Args: k: 0 is the exact rule."""

    def __init__(self, k: int = 50) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or k < 0:
            raise InputError(f"top-k acceptance needs a whole number k, 0 (exact) or more, got {k!r}")
        super().__init__(neutral=k == 0)
        self.k = k

    def plausible(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Tensor:
        """How many tokens are likelier."""
        token, law = under_parents(draft, scores)
        rank = (law > token[..., None]).sum(-1).float()
        return rank.masked_fill((rank >= self.k) | token.isneginf(), math.inf)


class MaxRatio(Relaxed):
    """A child passes if p(c) >= rho max p. Args: rho: in (0, 1], or infinite, which is the exact rule."""

    def __init__(self, rho: float = 0.6) -> None:
        if not isinstance(rho, int | float) or isinstance(rho, bool) or not (0 < rho <= 1 or rho == math.inf):
            raise InputError(f"max-ratio acceptance needs rho in (0, 1], or infinity (exact), got {rho!r}")
        super().__init__(neutral=rho == math.inf)
        self.rho = rho

    def plausible(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Tensor:
        """How far below the likeliest token it is, in logarithms."""
        token, law = under_parents(draft, scores)
        behind = law.amax(-1) - token
        return behind.masked_fill(behind > -math.log(self.rho), math.inf)


def under_parents(draft: Draft, scores: Tensor) -> tuple[Tensor, Tensor]:
    """[B, N] the score of every node under its parent's law, and [B, N, V] that law's scores."""
    above = draft.parents.clamp(min=0)
    law = scores.gather(1, above[..., None].expand_as(scores))
    return law.gather(2, draft.tokens[..., None])[..., 0], law


def descend(draft: Draft, rank: Tensor) -> Tensor:
    """The deepest node [B] that is reached by always going to the child of the lowest finite rank [B, N], the first of
    equals, from node 0 down."""
    place = torch.arange(draft.size, device=rank.device)
    passes = rank.isfinite()
    if draft.valid is not None:
        passes &= draft.valid  # padding is nobody's better sibling
    siblings = draft.parents[:, :, None] == draft.parents[:, None, :]
    mine, other = rank[:, :, None], rank[:, None, :]
    better = (other < mine) | ((other == mine) & (place[None, :] < place[:, None]))
    passes &= ~(siblings & better & passes[:, None, :]).any(-1)
    return deepest(draft, passes)
