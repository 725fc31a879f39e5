"""Which children a node gets from the law that a drafter has of it. It depends on the kind of proposal:

point    log q, plain top-k.
coupled  top-k of c log q + g with the target's noise g; the confidence is their softmax. c above 1 pays where the
         target is surer than the drafter, whose q is a mean of the laws that the target may have. A drafter may
         judge node by node how much its law counts, and how sure the outcome is (`Judged`).
sampled  drawn without replacement, with noise of the draft's own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mmspec.best import best_of_many
from mmspec.contract import Kind
from mmspec.placeholders import forbid, listed, rule_out
from mmspec.sampling import Sampler


class Judged(NamedTuple):
    """Laws of nodes, and what their drafter thinks of them: positive factors, each [B, F, 1]. Children that are drawn
    from a law, and plain ones above temperature 0, do not ask for them.

    logits: [B, F, V]. trust, sharpness: of `Choice.trust` and `Choice.sharpness`, where the target's noise decides.
    greedy: of the sharpness at temperature 0.
    """

    logits: Tensor
    trust: Tensor
    sharpness: Tensor
    greedy: Tensor


@dataclass(frozen=True)
class Choice:
    """How children are chosen on one request.

    placeholders: ids that are never proposed. trust: c, what log q counts beside the target's noise.
    sharpness: exponent of the confidence, coupled or greedy. vocabulary: V; without it nothing is compiled or recorded.
    barred: with it, what `listed` gives of the placeholders, held for as long as a recording reads it.
    """

    sampler: Sampler
    kind: Kind
    placeholders: Collection[int] = ()
    trust: float = 1.0
    sharpness: float = 1.0
    vocabulary: int | None = None
    barred: Tensor | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = self.vocabulary
        barred = None if size is None else listed(tuple(self.placeholders), size, self.sampler.device)
        object.__setattr__(self, "barred", barred)

    @property
    def draws(self) -> bool:
        """Whether children are drawn from a law that the draft must declare."""
        return self.kind == "sampled" and not self.sampler.greedy

    @property
    def races(self) -> bool:
        """Whether the target's noise decides with them."""
        return self.kind == "coupled" and not self.sampler.greedy

    @property
    def personal(self) -> bool:
        """Whether nodes with the same law may have other children."""
        return self.draws or self.sampler.remembers

    def children(
        self, law: Tensor | Judged, emitted: Tensor, level: int, k: int, paths: Tensor, levels: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Children of nodes with a law in logits: tokens and log-confidence [B, F, k].

        Args: paths: [B, F, L] the tokens from the pending one down to each node, which a law with a memory looks at.
            levels: how many the tree will have, as far as is known: their noise is made at once, which little of it
            costs as well.
        """
        return _first(*self._running(law, emitted, level, k, paths, levels), k)

    def ahead(
        self, law: Tensor | Judged, emitted: Tensor, level: int, k: int, paths: Tensor, levels: int = 0
    ) -> Tensor:
        """`children` without the confidence, which costs a pass over the vocabulary."""
        raced, names = self._running(law, emitted, level, k, paths, levels)
        return _named(_ahead(raced, k)[0], names)

    def drawn(
        self, law: Tensor | Judged, emitted: Tensor, level: int, k: int, paths: Tensor, levels: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The same with the law [B, F, V], in log-scores, that a draft may have to declare."""
        raced, scores = self.standings(law, emitted, level, paths, levels)
        return _ahead(raced, k)[0], scores

    def _running(
        self, law: Tensor | Judged, emitted: Tensor, level: int, k: int, paths: Tensor, levels: int
    ) -> tuple[Tensor, Tensor | None]:
        """How far ahead in the race to be a child tokens are, [B, F, W], and which they are; None where they are all of
        the vocabulary."""
        if not self._few(k):
            return self.standings(law, emitted, level, paths, levels)[0], None
        logits, judged = (law.logits, law) if isinstance(law, Judged) else (law, None)
        return self._running_few(logits, emitted[:, None] + level, judged)

    def _few(self, k: int) -> bool:
        """Whether top-k leaves so few tokens, yet enough for k children, that the others need not run."""
        return self.races and not self.sampler.remembers and k <= self.sampler.sampling.top_k

    def _allowed(self, logits: Tensor) -> Tensor:
        """Logits [.., V] without the placeholders."""
        return forbid(logits, self.placeholders) if self.vocabulary is None else rule_out(logits, self.barred)

    def _running_few(self, logits: Tensor, positions: Tensor, judged: Judged | None = None) -> tuple[Tensor, Tensor]:
        """See `_running`, of logits [B, F, V] for the tokens at positions [B, F or 1]."""
        scores, names = self.sampler.likeliest(self._allowed(logits))
        return self._raced(scores, self.sampler.target_noise(positions, names), judged), names

    def _noise(self, emitted: Tensor, levels: int, logits: Tensor) -> Tensor:
        """The target's for every level of a tree, and for one more, which the rule asks for."""
        return self.sampler.noise_ahead(emitted, levels + 1, logits.shape[-1])

    def standings(
        self, law: Tensor | Judged, emitted: Tensor, level: int, paths: Tensor, levels: int
    ) -> tuple[Tensor, Tensor]:
        """Where every token stands in the race to be a child, and the law, both [B, F, V]. Args: as for `children`."""
        logits, judged = (law.logits, law) if isinstance(law, Judged) else (law, None)
        scores = self._scores(self._allowed(logits), paths)
        if self.draws:
            return scores + self.sampler.draft_noise(emitted, level, scores.shape[1], scores.shape[-1]), scores
        if self.races:
            noise = self._noise(emitted, max(level, levels), scores)
            return self._raced(scores, noise[:, level : level + 1], judged), scores
        return self._sharpened(scores, judged), scores

    def children_of_levels(self, logits: Tensor, emitted: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Children of every node of a level, from the level's logits [B, levels, V]: tokens and log-confidence
        [B, levels, k]. Not for a `personal` choice."""
        levels = logits.shape[1]
        if self._few(k):
            places = emitted[:, None] + torch.arange(levels, device=emitted.device)
            return _first(*self._running_few(logits, places), k)
        scores = self.sampler.shape(self._allowed(logits))
        if not self.races:
            return _first(self._sharpened(scores), None, k)
        return _first(self._raced(scores, self._noise(emitted, levels, scores)[:, :levels]), None, k)

    def _sharpened(self, scores: Tensor, judged: Judged | None = None) -> Tensor:
        if not self.sampler.greedy:
            return scores
        return scores * (self.sharpness if judged is None else judged.greedy * self.sharpness)

    def _raced(self, scores: Tensor, noise: Tensor, judged: Judged | None = None) -> Tensor:
        if judged is not None:
            return race(scores, noise, judged.trust * self.trust, judged.sharpness * self.sharpness)
        raced = torch.add(noise, scores, alpha=self.trust)
        return raced if self.sharpness == 1 else raced * self.sharpness

    def _scores(self, logits: Tensor, paths: Tensor) -> Tensor:
        """Warped log-scores [B, F, V], as the target's are."""
        if not self.sampler.remembers:
            return self.sampler.shape(logits)
        each = zip(paths.unbind(1), logits.unbind(1), strict=True)
        return torch.stack([self.sampler.after(path, law) for path, law in each], 1)

    def paths(self, above: Tensor, origin: Tensor, tokens: Tensor) -> Tensor:
        """Those to nodes [B, F] from those [B, M, L] to the nodes of the level before; origin: [B, F] parents there."""
        if not self.sampler.remembers:
            return above
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        return torch.cat([above[rows, origin], tokens[..., None]], -1)


def race(scores: Tensor, noise: Tensor, trust: Tensor, sharpness: Tensor) -> Tensor:
    """Log-confidence [.., V], not normalised, that a token wins the target's race.

    Args: scores: [.., V] log q. noise: [.., V] the target's. trust, sharpness: [.., 1] whole, as in `Choice`.
    """
    return torch.addcmul(noise, scores, trust) * sharpness


def _named(place: Tensor, names: Tensor | None) -> Tensor:
    """The tokens at places of a list [B, F, W]; without a list a place is the token."""
    return place if names is None else names.gather(-1, place)


def _first(raced: Tensor, names: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """The k tokens ahead in a race [B, F, W], and their log-confidence: both [B, F, k]. names: as for `_named`."""
    place, reached = _ahead(raced, k)
    confidence = raced.log_softmax(-1).gather(-1, place)
    # sorting puts NaN first, and a node must not stand before its parent
    return _named(place, names), confidence.masked_fill(confidence.isnan() | (reached == -torch.inf), -torch.inf)


def _ahead(raced: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k tokens ahead in a race [B, F, V], and what they reached: both [B, F, k]."""
    highest, token = best_of_many(raced, min(k, raced.shape[-1]))
    # where fewer tokens than children have a chance, the first child stands again: it was not ruled out
    return torch.where(highest == -torch.inf, token[..., :1], token), highest
