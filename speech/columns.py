"""Tokens that are columns: K codes that one forward writes at once, each by a law of its own given earlier columns.

This is what a delay pattern makes of a codec's K codebooks (MusicGen, arXiv 2306.05284; Parler, Dia). A column is
drafted as a whole, and the draft goes on while whole columns are kept. Three exact ways to decide (the laws of a
column's codes are independent of each other, so all of them reproduce the joint law):

coupled     every code is the target's own draw with the request's noise, as in the rule `exact`
per code    each drafted code is kept with min(1, p_k / q_k), a rejected one comes from its own residual
joint       the column is kept with min(1, prod p_k / q_k), which is more often; a rejected one is drawn again by
            thinning: columns from p, kept with max(0, 1 - prod q_k / p_k)

Cells that the pattern forces have one token of probability one, so they change nothing.
"""

from __future__ import annotations

import logging
from abc import abstractmethod

import torch
from torch import Tensor

from mmspec import noise
from mmspec.acceptance.ratio import residual
from mmspec.contract import Accepted, Draft, Kind, Rule, State
from mmspec.errors import MismatchError
from mmspec.sampling import Sampler
from mmspec.stopping import Stop

logger = logging.getLogger(__name__)

LANES, MOST = 8, 4096
"""Columns that are tried at once after a joint rejection, and at most: what is left then has next to no mass."""


class ColumnSampler(Sampler):
    """Draws columns."""

    def warp(self, draft: object, logits: Tensor) -> Tensor:
        """[B, N, K, V] raw logits -> warped log-scores of every code."""
        return self.shape(logits)

    def column_noise(self, stream: int, counters: Tensor, codebooks: int, size: int) -> Tensor:
        """[B, P] counters of columns -> [B, P, K, V] Gumbel noise, another one for every code."""
        places = counters[..., None] * codebooks + torch.arange(codebooks, device=counters.device)
        return noise.gumbel(self.seeds, stream, places.flatten(1), size).unflatten(1, places.shape[1:])

    def draw(self, scores: Tensor, positions: Tensor) -> Tensor:
        """The target's columns [B, P, K] at [B, P] positions under scores [B, P, K, V]."""
        if self.greedy:
            return scores.argmax(-1)
        return (scores + self.column_noise(noise.TARGET, positions, *scores.shape[-2:])).argmax(-1)


def kept_until(draft: Draft, kept: Tensor, following: Tensor) -> Accepted:
    """The first `kept` [B] drafted columns, and the column [B, K] that follows them."""
    path = torch.arange(draft.size, device=kept.device).expand(len(kept), -1)
    count = kept + 1
    return Accepted(torch.where(path < count[:, None], path, 0), count, following)


def columns_ahead(draft: Draft) -> Tensor:
    """[B] how many columns each row drafts: in a batch one that is nearly full drafts fewer than others."""
    real = torch.ones_like(draft.depth, dtype=torch.bool) if draft.valid is None else draft.valid
    return real[:, 1:].sum(1)


def leading(keep: Tensor) -> Tensor:
    """[B, N] bool -> [B] how many True stand before the first False."""
    return keep.long().cumprod(1).sum(1)


class ColumnRule(Rule):
    """Base of the three. At temperature 0 all are the greedy comparison."""

    lossless = True
    invariant = False
    takes: tuple[Kind, ...] = ("sampled",)
    judges = "columns"

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Decide how many columns stay. scores: [B, N, K, V]. See `mmspec.contract.Rule`."""
        assert isinstance(sampler, ColumnSampler)
        if sampler.greedy:
            return match(draft, scores.argmax(-1))
        if draft.size > 1 and (draft.kind not in self.takes or (draft.kind == "sampled" and draft.q is None)):
            raise MismatchError(f"{type(self).__name__} takes no columns of kind {draft.kind!r}")
        return self.decide(draft, scores, sampler, emitted)

    @abstractmethod
    def decide(self, draft: Draft, scores: Tensor, sampler: ColumnSampler, emitted: Tensor) -> Accepted:
        """The decision above temperature 0."""


def match(draft: Draft, choice: Tensor) -> Accepted:
    """Keep columns while they are the target's choice [B, N, K] after the column before."""
    kept = torch.minimum(leading((draft.tokens[:, 1:] == choice[:, :-1]).all(-1)), columns_ahead(draft))
    return kept_until(draft, kept, _at(choice, kept))


class Columns(ColumnRule):
    """Law: the columns of the autoregressive loop with the same seed. Takes any proposal."""

    invariant = True
    takes: tuple[Kind, ...] = ("coupled", "point", "sampled")

    def decide(self, draft: Draft, scores: Tensor, sampler: ColumnSampler, emitted: Tensor) -> Accepted:
        """See `match`."""
        return match(draft, sampler.draw(scores, emitted[:, None] + draft.depth))


class PerCode(ColumnRule):
    """Law: the target's, if every code was drawn from its own q with independent noise."""

    def decide(self, draft: Draft, scores: Tensor, sampler: ColumnSampler, emitted: Tensor) -> Accepted:
        """A column goes on if all its codes are kept, with the chance prod (1 - TV_k)."""
        p, ends = scores.softmax(-1), emitted[:, None] + draft.depth
        codebooks = p.shape[-2]
        coins = noise.uniform(sampler.seeds, noise.ACCEPT, ends[:, :-1], codebooks)  # [B, N - 1, K]
        own, drafted = chances(draft, p)
        keep = (drafted > 0) & (coins * drafted < own)
        ahead = columns_ahead(draft)
        kept = torch.minimum(leading(keep.all(-1)), ahead)
        law = _at(p, kept)
        if draft.q is None or draft.size == 1:
            return kept_until(draft, kept, sampler.draw(law.log()[:, None], _at(ends, kept)[:, None])[:, 0])
        failed = (kept < ahead)[:, None]
        place = kept.clamp(max=draft.size - 2)
        stays = failed & _at(keep, place)
        law = torch.where((failed & ~stays)[..., None], residual(law, _at(draft.q, kept)), law)
        drawn = sampler.draw(law.log()[:, None], _at(ends, kept)[:, None])[:, 0]
        return kept_until(draft, kept, torch.where(stays, _at(draft.tokens, place + 1), drawn))


class Joint(ColumnRule):
    """Law: the target's, if every code was drawn from its own q with independent noise."""

    def decide(self, draft: Draft, scores: Tensor, sampler: ColumnSampler, emitted: Tensor) -> Accepted:
        """A column goes on with the chance 1 - TV of the joint laws, the most that any rule can reach."""
        p, ends = scores.softmax(-1), emitted[:, None] + draft.depth
        coins = noise.uniform(sampler.seeds, noise.ACCEPT, ends[:, :-1], 1)[..., 0]  # [B, N - 1]
        own, drafted = (chance.double().prod(-1) for chance in chances(draft, p))
        ahead = columns_ahead(draft)
        kept = torch.minimum(leading((drafted > 0) & (coins * drafted < own)), ahead)
        law, place = _at(p, kept), _at(ends, kept)
        drawn = sampler.draw(law.log()[:, None], place[:, None])[:, 0]
        failed = kept < ahead
        if draft.q is not None:
            drawn[failed] = thin(law[failed], _at(draft.q, kept)[failed], sampler.seeds[failed], place[failed])
        return kept_until(draft, kept, drawn)


def chances(draft: Draft, p: Tensor) -> tuple[Tensor, Tensor]:
    """What the target and the drafter gave every drafted code: twice [B, N - 1, K]."""
    codes = draft.tokens[:, 1:, :, None]
    q = p[:, :-1] if draft.q is None else draft.q[:, :-1]
    return p[:, :-1].gather(-1, codes)[..., 0], q.gather(-1, codes)[..., 0]


def thin(p: Tensor, q: Tensor, seeds: Tensor, place: Tensor) -> Tensor:
    """A column [B, K] from norm(max(prod p - prod q, 0)), by acceptance-rejection with p as proposal; from p, with a
    warning, where no try is accepted.

    Args: p, q: [B, K, V]. seeds: [B]. place: [B] its index among the emitted columns.
    """
    codebooks, size = p.shape[-2:]
    found, left = p.argmax(-1), torch.arange(len(p), device=p.device)
    for start in range(0, MOST, LANES):
        law, other = p[left, None].expand(-1, LANES, -1, -1), q[left, None].expand(-1, LANES, -1, -1)
        tries = (place[left, None] + 1) * MOST + start + torch.arange(LANES, device=p.device)  # no coin counts so far
        counters = (tries[..., None] * codebooks + torch.arange(codebooks, device=p.device)).flatten(1)
        random = noise.uniform(seeds[left], noise.ACCEPT, counters, size + 1).unflatten(1, (LANES, codebooks))
        codes = (law.log() - (-random[..., :size].log()).log()).argmax(-1)  # [B, LANES, K]
        own, drafted = (each.gather(-1, codes[..., None])[..., 0].double().prod(-1) for each in (law, other))
        keep = random[..., 0, size] * own < own - drafted
        found[left] = _at(codes, torch.where(keep.any(1), keep.long().argmax(1), LANES - 1))
        left = left[~keep.any(1)]
        if not len(left):
            break
    else:
        logger.warning(
            "%d columns were drawn from the target's own law instead of the residual, since none of %d tries was "
            "accepted: they are not exact",
            len(left),
            MOST,
        )
    return found


def _at(values: Tensor, index: Tensor) -> Tensor:
    """values [B, N, ...] at one index [B] of each row: [B, ...]."""
    return values[torch.arange(len(index), device=index.device), index]


class ColumnStop(Stop):
    """Emits columns, as tuples of K codes, until the budget ends a row. See `Stop`."""

    def start(self, state: State) -> list[list[int]]:
        """Take over each row's first column."""
        assert state.pending is not None
        self.outputs = [[] for _ in state.ids]
        self.finish = [""] * len(state.ids)
        first: list[list[int]] = [
            self._emit(state, row, _columns([run])) for row, run in enumerate(state.pending.tolist())
        ]
        state.emitted = torch.ones_like(state.emitted)
        return first

    def ask(self, state: State, draft: Draft, accepted: Accepted) -> Tensor:
        """How many columns were accepted, the one that follows them, all drafted ones."""
        assert accepted.next is not None
        batch = len(accepted.count)
        return torch.cat([accepted.count[:, None], accepted.next, draft.tokens.reshape(batch, -1)], 1)

    def cut(self, state: State, draft: Draft, accepted: Accepted, known: list[list[int]]) -> None:
        """Fill the host side of `accepted`; mark rows that end."""
        assert accepted.next is not None
        width = accepted.next.shape[1]
        for row, (count, *rest) in enumerate(known):
            columns = [rest[start : start + width] for start in range(0, len(rest), width)]
            accepted.paths.append(list(range(count)))
            run = _columns([*columns[2 : 1 + count], columns[0]])
            kept = [] if state.done[row] else self._emit(state, row, run)
            accepted.emitted.append(kept)
            accepted.drafted.append(min(len(kept), count - 1))


def _columns(runs: list[list[int]]) -> list[int]:
    """Columns as hashable items; for the loop an item is an id, whatever it holds."""
    return [tuple(run) for run in runs]  # type: ignore[misc]
