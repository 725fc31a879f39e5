"""Acceptance rules for continuous tokens, whose target and drafter are diffusion heads (CSpD, arXiv 2411.11925).

A token x_0 ends a walk of T steps whose noise w = (x_T, n_T .. n_2) target and drafter share (trajectory alignment).
Given w, both are Gaussian: N(mean_p, std_p^2) and N(mean_q, std_q^2). A drafted x is kept with the ratio of these two
densities, in log space; a rejected one is drawn again from norm(max(S p - q, 0)) by acceptance-rejection with p as
proposal, where the unknown normaliser cancels. The rules differ in what p is given, and in the factor S.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec import noise
from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.errors import InputError
from mmspec.sampling import Sampler

logger = logging.getLogger(__name__)

LANES = 16
"""Draws from the residual that are tried at once."""


@dataclass(frozen=True)
class Walk:
    """Where walks stand before their last step: the Gaussian of what comes next, and what earlier steps added.

    mean, log_std: [.., D]. trail: [..] sum of the log-stds of all earlier steps, over steps and dimensions.
    """

    mean: Tensor
    log_std: Tensor
    trail: Tensor

    def pack(self) -> Tensor:
        """[.., 2 D + 1], as it goes through `Verified.logits`."""
        return torch.cat([self.mean, self.log_std, self.trail[..., None]], -1)

    @classmethod
    def unpack(cls, packed: Tensor) -> Walk:
        """The counterpart of `pack`."""
        mean, log_std = packed[..., :-1].chunk(2, -1)
        return cls(mean, log_std, packed[..., -1])

    def at(self, index: tuple[Tensor, ...]) -> Walk:
        """The walks of some nodes."""
        return Walk(self.mean[index], self.log_std[index], self.trail[index])

    def log_density(self, tokens: Tensor, spread: float = 1.0) -> Tensor:
        """[..] of tokens [.., D]. spread: what the distance is divided by, in stds (1 is the density itself)."""
        distance = (tokens - self.mean) * (-self.log_std).exp() / spread
        size = tokens.shape[-1]
        return -0.5 * distance.square().sum(-1) - self.log_std.sum(-1) - 0.5 * size * math.log(2 * math.pi)


@dataclass
class Proposal(Draft):
    """Groups of places to reveal, each with drafted values but for the last, which the target fills itself.

    tokens: [B, N, D]. depth: [B, N] the group of a node, from 0. kind: "aligned" (p is given all earlier groups) or
        "masked" (p is given what was known before the round).
    places: [B, N] where the nodes lie in the grid. groups: how many there are in the longest row.
    filled: [B, N] nodes with a drafted value. law: the drafter's walks.
    """

    places: Tensor = field(kw_only=True)
    filled: Tensor = field(kw_only=True)
    law: Walk = field(kw_only=True)
    groups: int = field(kw_only=True)


@dataclass
class Revealed(Accepted):
    """What a round reveals. kept: [B] how many drafted values are among it; they stand first in `path`."""

    kept: Tensor = field(kw_only=True)


def normal(seeds: Tensor, stream: int, positions: Tensor, width: int) -> Tensor:
    """Standard normal noise [B, P, width], see `mmspec.noise.uniform`."""
    return torch.special.ndtri(noise.uniform(seeds, stream, positions, width))


class Continuous(Rule):
    """The rule of CSpD on a masked target: one forward judges all drafted groups from what was known before the round.

    S = prod of std_q / std_p over the earlier steps and all dimensions, as in the paper. The round ends with the first
    group that has a rejected token; its rejected tokens come from the residual, later groups are discarded. If none is
    rejected, the target fills one more group.

    Law, where the head has one step (then S = 1): every revealed token is distributed as the target's given what was
    known when the round began, whatever was drafted. Tokens of one round do not see each other, so a picture is one of
    plain decoding with larger steps, whose sizes depend on what was accepted; it is not the law of plain decoding,
    unless rounds have one group. A drafter equal to the target is therefore accepted surely in the first group only.
    Law, with more steps: S is the ratio of the densities of two different walks, while what both share is their noise,
    whose density is the same; so the rule is biased, even for a token alone. `Conditioned` has neither flaw.

    Args: tries: most draws from a residual. Where none is accepted, p itself is drawn from; a lossless rule then warns.
    capped: for how many tokens that happened, since the rule was made.
    """

    lossless = False
    invariant = False
    takes: tuple[Kind, ...] = ("masked",)
    judges = "values"
    trails = True
    """Whether S is part of the ratio."""

    def __init__(self, tries: int = 1024) -> None:
        if not isinstance(tries, int) or tries < 1:
            raise InputError(f"tries={tries!r} is not valid: a whole number, 1 or more")
        self.tries = tries
        self.capped = 0

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Revealed:
        """scores: [B, N, 2 D + 1], `Walk.pack` of the target's. See `mmspec.contract.Rule`."""
        assert isinstance(draft, Proposal)
        assert draft.valid is not None
        target = Walk.unpack(scores)
        keep = draft.filled & (self.coins(draft, sampler).log() < self.log_ratio(draft.tokens, target, draft.law))
        failed = torch.where(draft.valid & ~keep, draft.depth, draft.groups)
        revealed = draft.valid & (draft.depth <= failed.amin(-1, keepdim=True))
        values = torch.where(keep[..., None], draft.tokens, own_draws(draft, target, sampler))
        values = self.redrawn(values, revealed & draft.filled & ~keep, draft, target, sampler)
        return reveal(revealed, keep, values)

    def coins(self, draft: Proposal, sampler: Sampler) -> Tensor:
        """[B, N] uniform numbers, one per place."""
        return noise.uniform(sampler.seeds, noise.ACCEPT, draft.places, 1)[..., 0]

    def log_ratio(self, tokens: Tensor, target: Walk, law: Walk) -> Tensor:
        """log(S p / q) of tokens [.., D]."""
        ratio = target.log_density(tokens) - law.log_density(tokens)
        return ratio + (law.trail - target.trail) if self.trails else ratio

    def redrawn(self, values: Tensor, wanted: Tensor, draft: Proposal, target: Walk, sampler: Sampler) -> Tensor:
        """Values [B, N, D] with those of the nodes `wanted` [B, N] replaced by draws from norm(max(S p - q, 0))."""
        index = wanted.nonzero(as_tuple=True)
        p, q = target.at(index), draft.law.at(index)
        drawn, missed = self.residual(p, q, sampler.seeds[index[0]], draft.places[index])
        self.capped += missed
        if missed and self.lossless:
            logger.warning(
                "%d tokens were drawn from the target's own law instead of the residual, since none of %d tries was "
                "accepted: they are not exact, nor is this picture",
                missed,
                self.tries,
            )
        return values.index_put(index, drawn)

    def residual(self, p: Walk, q: Walk, seeds: Tensor, places: Tensor) -> tuple[Tensor, int]:
        """Draws [M, D] from norm(max(S p - q, 0)), and for how many of them the tries did not suffice.

        Args: p, q: M walks each. seeds, places: [M] what makes their noise.
        """
        mean, std = p.mean[:, None], p.log_std.exp()[:, None]
        drawn = self.fallback(p, seeds, places)
        waiting = torch.ones_like(places, dtype=torch.bool)
        for start in range(0, self.tries, LANES):
            if not bool(waiting.any()):
                break
            lanes = min(LANES, self.tries - start)
            counter = (places + (start // LANES + 1) * ROUND)[:, None]
            n = normal(seeds, noise.DRAFT, counter, lanes * mean.shape[-1])[:, 0].view(len(places), lanes, -1)
            tried = mean + std * n.to(mean.dtype)  # [M, lanes, D]
            wide = [Walk(w.mean[:, None], w.log_std[:, None], w.trail[:, None]) for w in (p, q)]
            chance = -torch.expm1(-self.log_excess(tried, *wide))  # max(S p - q, 0) / (S p), below 0 where none
            taken = noise.uniform(seeds, noise.ACCEPT, counter, lanes)[:, 0] < chance
            first = taken.long().argmax(-1)
            found = waiting & taken.any(-1)
            drawn = torch.where(found[:, None], tried[torch.arange(len(tried), device=tried.device), first], drawn)
            waiting = waiting & ~found
        return drawn, int(waiting.sum())

    def log_excess(self, tokens: Tensor, target: Walk, law: Walk) -> Tensor:
        """log(S p / q) as the residual takes it."""
        return self.log_ratio(tokens, target, law)

    def fallback(self, p: Walk, seeds: Tensor, places: Tensor) -> Tensor:
        """[M, D] what a token is where the tries did not suffice."""
        n = normal(seeds, noise.DRAFT, places[:, None], p.mean.shape[-1])[:, 0]
        return p.mean + p.log_std.exp() * n.to(p.mean.dtype)


ROUND = 2**20
"""Above every place, so that each batch of tries has noise of its own."""


class Conditioned(Continuous):
    """The exact rule for continuous tokens: p is given the drafted tokens of all earlier groups, and S is left out.

    Law: the target's plain decoding, whatever the drafter and the number of diffusion steps, but for tokens that
    `capped` counts. Given the shared noise w, the drafter's x_0 is distributed as q = N(mean_q(w), std_q(w)^2) and the
    target's as p = N(mean_p(w), std_p(w)^2); rejection sampling turns the first into the second for every w, and w has
    the same law for both. The density of a walk (and with it S) never enters, because what is shared is noise, not the
    walk. No decision depends on groups behind the first one that has a rejection, so their noise may be used again.

    An equal drafter is always accepted. The price is the verification: a masked target has to read one canvas per
    group. Where T is large, std is small, and only drafters whose mean is within it of the target's are accepted often.
    """

    lossless = True
    takes: tuple[Kind, ...] = ("aligned",)
    trails = False


class Released(Continuous):
    """What the code released with CSpD does, for comparison; its settings are those of its runner.

    It differs from the paper in this: the ratio of densities is taken at the drafter's mean, with distances divided by
    `softness`; S is inverted; tokens are judged one by one, and nothing is discarded after a rejection; a token whose
    residual is not found in 100 tries is 0; no group is filled by the target unless none was drafted. Here, drafts are
    made with the last step's noise (of small std) and their means are taken, and every group has its own step's
    guidance.

    Law: none that can be stated. With softness 1, one step, and drafts that keep the last noise it would be that of
    plain decoding that reveals all groups of a round at once, which the target could do alone: it is the softness that
    lets drafted tokens, which have seen each other, into the picture.
    """

    SOFTNESS = 42.0

    def __init__(self, softness: float = SOFTNESS) -> None:
        super().__init__(tries=100)
        if not softness > 0:
            raise InputError(f"softness={softness!r} is not valid: a number above 0")
        self.softness = softness

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Revealed:
        """See `Continuous`."""
        assert isinstance(draft, Proposal)
        assert draft.valid is not None
        target = Walk.unpack(scores)
        keep = draft.filled & (self.coins(draft, sampler).log() < self.log_ratio(draft.law.mean, target, draft.law))
        revealed = torch.where(draft.filled.any(-1, keepdim=True), draft.filled, draft.valid)
        values = torch.where(keep[..., None], draft.law.mean, target.mean)
        values = self.redrawn(values, draft.filled & ~keep, draft, target, sampler)
        return reveal(revealed, keep, values)

    def log_ratio(self, tokens: Tensor, target: Walk, law: Walk) -> Tensor:
        """The softened ratio of the test."""
        ratio = target.log_density(tokens, self.softness) - law.log_density(tokens, self.softness)
        return ratio + target.trail - law.trail

    def log_excess(self, tokens: Tensor, target: Walk, law: Walk) -> Tensor:
        """The residual's is not softened."""
        return target.log_density(tokens) - law.log_density(tokens) + target.trail - law.trail

    def fallback(self, p: Walk, seeds: Tensor, places: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(p.mean)


def own_draws(draft: Proposal, target: Walk, sampler: Sampler) -> Tensor:
    """[B, N, D] what the target draws at each place without a draft: the last step with the walk's own last noise."""
    n = normal(sampler.seeds, noise.TARGET, draft.places, target.mean.shape[-1])
    return target.mean + target.log_std.exp() * n.to(target.mean.dtype)


def reveal(revealed: Tensor, keep: Tensor, values: Tensor) -> Revealed:
    """The round's result from what is revealed and what is kept of it, both [B, N]; kept nodes first."""
    rank = torch.where(revealed, torch.where(keep, 0, 1), 2)
    path = rank.sort(dim=-1, stable=True).indices
    kept = (revealed & keep).sum(-1)
    return Revealed(path, revealed.sum(-1), None, values, kept=kept)
