"""Sampling: the warpers that shape the target's law, the same for every node, and the noise that draws from it.

Order and edge cases are those of transformers (suppressed tokens, repetition penalty, temperature, top-k, top-p,
min-p), so that the law is the one that `generate` samples from with the same settings (where nobody sets top-k it takes
50, and nothing is cut off here), but for equal scores at the edge of top-p (see `warp`). All arithmetic is float32.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol

import torch
from torch import Tensor

from mmspec import noise
from mmspec.ancestry import in_line
from mmspec.best import best_of_many, in_parts
from mmspec.errors import InputError, shorten
from mmspec.placeholders import listed, rule_out

FIRST = 1024
"""So many tokens nearly always hold the nucleus of top-p; to sort a whole vocabulary takes as long as a small model."""
COLDEST = 1e-6
"""The least temperature above 0: logits that are divided by a much smaller one overflow."""


class Paths(Protocol):
    """Nodes and what stands above them: a draft, as far as sampling has to know it."""

    tokens: Tensor

    @property
    def ancestors(self) -> Tensor:
        """[B, N, N] bool, see `mmspec.contract.Draft`."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; names and meanings of HF's GenerationConfig.

    temperature: 0 is greedy, all others are at least COLDEST. top_k: 0 is off. top_p: in (0, 1], 1 is off. min_p: in
        [0, 1], 0 is off.
    repetition_penalty: positive, 1 is off.
    suppress_tokens: ids that are never drawn; those that the vocabulary has not are passed over, as in transformers.
    ras_window, ras_share: repetition-aware sampling (see `repetition_aware`): how many of the last emitted tokens it
        looks at, 0 is off; and from which share of them on a token counts as repeated. Off at temperature 0.
    seed: row i of a batch uses seed + i, so it equals a single call with that seed.
    Raises: InputError for a value that is negative, not finite or out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    suppress_tokens: Collection[int] = ()
    ras_window: int = 0
    ras_share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, wanted: str) -> None:
            if not ok:
                raise InputError(f"{name}={shorten(getattr(self, name))} is not valid: {wanted}")

        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "ras_share"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            check(name, number and abs(value) <= sys.float_info.max, "a finite number is needed")
        warm = self.temperature == 0 or self.temperature >= COLDEST
        check("temperature", warm, f"it must be 0 (greedy) or at least {COLDEST}")
        whole = isinstance(self.top_k, int) and not isinstance(self.top_k, bool)
        check("top_k", whole and self.top_k >= 0, "it must be a whole number, 0 (off) or more")
        check("top_p", 0 < self.top_p <= 1, "it must lie in (0, 1]")
        check("min_p", 0 <= self.min_p <= 1, "it must lie in [0, 1]")
        check("repetition_penalty", self.repetition_penalty > 0, "it must be positive (1 is off)")
        ids = self.suppress_tokens
        told = isinstance(ids, Collection) and all(isinstance(each, Integral) for each in ids)
        check("suppress_tokens", told, "a list of ids is needed")
        object.__setattr__(self, "suppress_tokens", tuple(map(int, ids)))
        whole = isinstance(self.ras_window, int) and not isinstance(self.ras_window, bool)
        check("ras_window", whole and 0 <= self.ras_window <= 4096, "it must be a whole number, 0 (off) to 4096")
        check("ras_share", 0 < self.ras_share <= 1, "it must lie in (0, 1]")
        check("seed", isinstance(self.seed, int) and not isinstance(self.seed, bool), "it must be a whole number")


class Sampler:
    """The sampling of one request: warps logits and supplies the request's noise."""

    def __init__(self, sampling: Sampling, batch: int, device: torch.device) -> None:
        self.sampling = sampling
        self.greedy = sampling.temperature == 0
        self.device = device
        seeds = [(sampling.seed + row + 2**63) % 2**64 - 2**63 for row in range(batch)]
        self.seeds = torch.tensor(seeds, dtype=torch.long, device=device)
        self.told: Tensor | None = None  # [B, M] ids in the text so far, or -1; kept only for the repetition penalty
        self.recent: list[list[int]] = [[] for _ in range(batch)]  # the last emitted ids, at most `ras_window` of them
        self._ahead: tuple[Tensor, Tensor] | None = None  # see `noise_ahead`
        self._barred: dict[int, Tensor | None] = {}  # by vocabulary; held for as long as a recording reads it

    @property
    def remembers(self) -> bool:
        """Whether laws depend on the tokens before them."""
        return self.told is not None or self.sampling.ras_window > 0

    def restart(self, seeds: Tensor) -> None:
        """Draw with other seeds [B] from now on; for samplers that do not remember."""
        self.seeds, self._ahead = seeds, None

    def see(self, ids: list[list[int]], prompt: bool = False) -> None:
        """Note tokens of every row that later laws depend on: the prompt's (with `prompt`), or emitted ones."""
        window = self.sampling.ras_window
        if window and not prompt:
            self.recent = [(old + new)[-window:] for old, new in zip(self.recent, ids, strict=True)]
        if self.sampling.repetition_penalty == 1:
            return
        once = [sorted(set(row)) for row in ids]  # of a picture's slots, say, one tells all
        most = max(map(len, once))
        told = torch.tensor([row + [-1] * (most - len(row)) for row in once], dtype=torch.long, device=self.device)
        self.told = told if self.told is None else torch.cat([self.told, told], 1)

    def warp(self, draft: Paths, logits: Tensor) -> Tensor:
        """Warped log-scores of the next token at every node, each with the history of its own path.

        Args: logits: [B, N, V] raw. Returns: [B, N, V] float32, -inf where ruled out; unnormalised.
        """
        scores = self.allowed(logits)
        if self.told is not None:
            before = self.told[:, None].expand(-1, draft.tokens.shape[1], -1)
            scores = penalise(scores, seen(before, path_tokens(draft)), self.sampling.repetition_penalty)
        if self.greedy:
            return scores
        warped = warp(scores, self.sampling)
        if self.sampling.ras_window:
            repeated = self.repeated(draft, scores.shape[-1])
            return repetition_aware(warped, scores / self.sampling.temperature, repeated)
        return warped

    def after(self, path: Tensor, logits: Tensor) -> Tensor:
        """Warped log-scores [B, V] after a chain that is being drafted, its tokens a part of the history.

        Args: path: [B, L] the pending token and what was drafted after it. logits: [B, V] the drafter's own.
        """
        if not self.sampling.ras_window:  # the laws of the nodes above the last one are not asked for
            if self.told is not None:
                logits = penalise(logits.float(), seen(self.told, path), self.sampling.repetition_penalty)
            return self.shape(logits)
        return self.warp(Chain(path), logits[:, None].expand(-1, path.shape[1], -1))[:, -1]

    def repeated(self, draft: Paths, vocab_size: int) -> Tensor:
        """[B, N, V] bool: tokens that make up `ras_share` or more of the window that ends at each node.

        Node 0 is the last token that `see` was told, or (before any was emitted) the prompt's, which does not count.
        """
        window = self.sampling.ras_window
        above = draft.ancestors  # [B, N, N]
        depth = above.sum(-1) - 1
        age = depth[:, :, None] - depth[:, None, :]
        inside = above & (age < window) & (depth > 0)[:, None, :]
        counts = torch.zeros(*depth.shape, vocab_size + 1, dtype=torch.long, device=depth.device)
        counts.scatter_add_(2, draft.tokens[:, None, :].expand_as(inside), inside.long())
        tails = [[vocab_size] * (window - len(row)) + row for row in self.recent]  # the last column collects nothing
        tail = torch.tensor(tails, device=depth.device)[:, None, :].expand(-1, depth.shape[1], -1)
        younger = torch.arange(window - 1, -1, -1, device=depth.device) + depth[..., None] < window
        counts.scatter_add_(2, tail, younger.long())
        return counts[..., :-1] >= max(1.0, window * self.sampling.ras_share)

    def shape(self, logits: Tensor) -> Tensor:
        """Warped log-scores without history, for a drafter's own logits [..., V]: no law depends on them."""
        return self.allowed(logits) if self.greedy else warp(self.allowed(logits), self.sampling)

    def allowed(self, logits: Tensor) -> Tensor:
        """Logits [..., V] in float32, without the suppressed tokens."""
        logits, size, ids = logits.float(), logits.shape[-1], self.sampling.suppress_tokens
        if not ids:
            return logits
        if size not in self._barred:
            self._barred[size] = listed(tuple(each for each in ids if 0 <= each < size), size, logits.device)
        return rule_out(logits, self._barred[size])

    def likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """What `shape` leaves where top-k is on: warped log-scores and the tokens, likeliest first, both [.., top_k].

        Of equals at the last place some are missing.
        """
        return likeliest(self.allowed(logits), self.sampling)

    def target_noise(self, positions: Tensor, tokens: int | Tensor) -> Tensor:
        """[B, P] indices among the emitted tokens -> the Gumbel noise with which the target draws them: [B, P, V] for a
        vocabulary of V tokens, [B, P, K] for those that are given."""
        return noise.gumbel(self.seeds, noise.TARGET, positions, tokens)

    def noise_ahead(self, emitted: Tensor, count: int, vocab_size: int) -> Tensor:
        """[B, count, V] that of the next `count` tokens; drafter and rule of a round ask for the same.

        Args: emitted: [B], the very tensor of `State.emitted`: as long as it is that one, nothing is made twice.
        """
        known = self._ahead[1] if self._ahead is not None and self._ahead[0] is emitted else None
        if known is not None and known.shape[-1] != vocab_size:
            known = None
        have = 0 if known is None else known.shape[1]
        if have < count:
            places = emitted[:, None] + torch.arange(have, count, device=emitted.device)
            more = self.target_noise(places, vocab_size)
            known = more if known is None else torch.cat([known, more], 1)
            self._ahead = emitted, known
        assert known is not None
        return known[:, :count]

    def draft_noise(self, emitted: Tensor, level: int, lanes: int, vocab_size: int) -> Tensor:
        """Gumbel noise for a drafter that samples, independent of the target's.

        It is new in every round, also where a position is drafted again: a rule that looked at the whole draft, such as
        block verification, has used up the noise of the tokens that it rejected.

        Args: emitted: [B] tokens before this round. lanes: nodes of the level.
        Returns: [B, lanes, V].
        Raises: InputError: a level or lane beyond 256, whose numbers would be those of another node.
        """
        if level >= 256 or lanes > 256:
            raise InputError(
                f"a drawn tree has 256 levels and 256 nodes with children in each at most, this one {level + 1} and "
                f"{lanes}: ask for a smaller shape"
            )
        lane = torch.arange(lanes, device=emitted.device)
        return noise.gumbel(self.seeds, noise.DRAFT, emitted[:, None] * 2**16 + level * 2**8 + lane, vocab_size)

    def draw(self, scores: Tensor, positions: Tensor) -> Tensor:
        """The target's tokens at [B, P] positions under scores [B, P, V]: argmax, plus noise unless greedy."""
        return self._drawn(scores, positions, lambda: self.target_noise(positions, scores.shape[-1]))

    def draw_ahead(self, scores: Tensor, emitted: Tensor, depth: Tensor, levels: int) -> Tensor:
        """The same after nodes of a draft, at emitted [B] + depth [B, N] of at most `levels`, under scores [B, N, V].

        Nodes of one depth share the noise of a position. emitted: see `noise_ahead`.
        """

        def every() -> Tensor:
            rows = torch.arange(len(depth), device=depth.device)[:, None]
            return self.noise_ahead(emitted, levels + 1, scores.shape[-1])[rows, depth]

        return self._drawn(scores, emitted[:, None] + depth, every)

    def _drawn(self, scores: Tensor, positions: Tensor, every: Callable[[], Tensor]) -> Tensor:
        """See `draw`. every: makes the noise of all tokens [B, P, V], for which most ask in vain where top-k is on."""
        if self.greedy:
            return scores.argmax(-1)
        few = left_over(scores, self.sampling.top_k)
        if few is None:
            return (scores + every()).argmax(-1)
        place = (few[0] + self.target_noise(positions, few[1])).argmax(-1, keepdim=True)
        return few[1].gather(-1, place)[..., 0]


@dataclass
class Chain:
    """Tokens [B, N] one after the other, as `Paths`."""

    tokens: Tensor

    @property
    def ancestors(self) -> Tensor:
        """Everything before a token stands above it."""
        batch, size = self.tokens.shape
        return in_line(batch, size, self.tokens.device)


def float32_at_least(logits: Tensor) -> Tensor:
    """Logits in float32 at least, for arithmetic that a model's own dtype would round."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def path_tokens(draft: Paths) -> Tensor:
    """[B, N, N] the tokens on the path from node 0 to each node, both ends included; node 0's for all other nodes."""
    return torch.where(draft.ancestors, draft.tokens[:, None, :], draft.tokens[:, None, :1])


def seen(told: Tensor, path: Tensor) -> Tensor:
    """Ids [.., M + N] of tokens told before [.., M], where -1 stands for none, and of a path [.., N] from node 0 on."""
    return torch.cat([torch.where(told < 0, path[..., :1], told), path], -1)


def penalise(scores: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Repetition penalty (CTRL, arXiv 1909.05858): seen tokens' scores are divided by it, or multiplied if negative.

    Args: scores: [.., V]. ids: [.., M] the seen tokens, some of them more than once.
    """
    found = scores.gather(-1, ids)
    return scores.scatter(-1, ids, torch.where(found < 0, found * penalty, found / penalty))


def repetition_aware(warped: Tensor, scores: Tensor, repeated: Tensor) -> Tensor:
    """Repetition-aware sampling (VALL-E 2, arXiv 2406.05370) as the law of one step, so that p and q can use it alike.

    Draw u from n; if u is repeated, draw again from p without u. With R the repeated tokens, what comes out is t with
    probability n(t) [t not in R] + p(t) sum over u in R, u != t of n(u) / (1 - p(u)). A token that has all of p stays.

    Args: warped: [..., V] log-scores of n, after top-k, top-p and min-p. scores: [..., V] of p, before them.
        repeated: [..., V] bool, R.
    Returns: [..., V] logarithms of the law.
    """
    n, p = warped.softmax(-1), scores.softmax(-1)
    rest = 1 - p
    again = repeated & (rest > torch.finfo(p.dtype).eps)
    share = torch.where(again, n / torch.where(again, rest, 1.0), 0.0)
    others = (share.sum(-1, keepdim=True) - share).clamp(min=0)
    return (torch.where(again, 0.0, n) + p * others).log()


def likeliest(scores: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """`warp` of [..., V] by its top-k list alone: scores, in descending order, and tokens, both [..., top_k]."""
    if sampling.temperature != 1:
        scores = scores / sampling.temperature
    highest, tokens = best_of_many(scores, min(sampling.top_k, scores.shape[-1]))
    if sampling.top_p == 1 and sampling.min_p == 0:
        return highest, tokens
    p = highest.softmax(-1)
    inside = nucleus(p, sampling.top_p) & (p >= sampling.min_p * p[..., :1])
    return highest.masked_fill(~inside, -math.inf), tokens


def left_over(scores: Tensor, top_k: int) -> tuple[Tensor, Tensor] | None:
    """All tokens of a large vocabulary that top-k left, with their scores, both [.., top_k + 1] in the order of the
    vocabulary: of equals the same one is the first as among all. None where there are more, equals of the last one.

    Args: scores: [.., V], -inf where ruled out. top_k: 0 is off, and gives None.
    """
    if top_k == 0 or scores.is_cuda or not in_parts(scores.shape[-1], top_k + 1):  # CUDA would be waited for
        return None
    highest, tokens = best_of_many(scores, top_k + 1)
    if (highest[..., -1] > -math.inf).any():
        return None
    tokens, order = tokens.sort(-1)
    return highest.gather(-1, order), tokens


def nucleus(p: Tensor, share: float) -> Tensor:
    """[..., K] bool: which of probabilities in descending order are the first ones that have `share` together."""
    inside = p.cumsum(-1) - p < share
    inside[..., :1].fill_(True)  # however small the share is
    return inside


def edge(highest: Tensor, most: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The least score in the nucleus of laws [.., 1], and whether it is the last one told.

    Args: highest: [.., K] their scores in descending order, perhaps the first ones alone. most: [.., 1] the largest
        probability of each.
    """
    inside = nucleus((highest - highest[..., :1]).exp() * most, share)
    return highest.masked_fill(~inside, math.inf).amin(-1, keepdim=True), inside[..., -1]


def edge_of_all(scores: Tensor, most: Tensor, share: float) -> Tensor:
    """The same [.., 1] from scores in any order. On a CPU only laws that the first ones do not tell are sorted."""
    if scores.is_cuda or scores.shape[-1] <= FIRST:
        return edge(scores.sort(dim=-1, descending=True).values, most, share)[0]
    least, wide = edge(scores.topk(FIRST, dim=-1).values, most, share)
    if wide.any():
        least[wide] = edge(scores[wide].sort(dim=-1, descending=True).values, most[wide], share)[0]
    return least


def warp(scores: Tensor, sampling: Sampling) -> Tensor:
    """Temperature, top-k, top-p, min-p on scores [..., V].

    At the edge of top-p tokens of the same score stay together, so that the law depends on the scores alone, not on the
    order in which a sort leaves equal ones, as it does in transformers. What top-k left is all that needs an order.
    """
    if sampling.temperature != 1:
        scores = scores / sampling.temperature
    highest: Tensor | None = None
    if 0 < sampling.top_k < scores.shape[-1]:
        highest = best_of_many(scores, sampling.top_k)[0]
        scores = torch.where(scores < highest[..., -1:], -math.inf, scores)
    if sampling.top_p < 1:
        most, share = scores.softmax(-1).amax(-1, keepdim=True), sampling.top_p
        least = edge_of_all(scores, most, share) if highest is None else edge(highest, most, share)[0]
        scores = torch.where(scores < least, -math.inf, scores)
    if sampling.min_p > 0:
        p = scores.softmax(-1)
        scores = scores.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), -math.inf)
    return scores
