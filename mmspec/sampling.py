"""Sampling: the warpers that shape the target's law, the same for every node, and the noise that draws from it.

Order and edge cases are those of transformers (repetition penalty, temperature, top-k, top-p, min-p), so that the law
is the one that `generate` samples from. All arithmetic is float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec import noise
from mmspec.errors import InputError


class Paths(Protocol):
    """Nodes and what stands above them: a draft, as far as sampling has to know it."""

    tokens: Tensor
    parents: Tensor

    @property
    def ancestors(self) -> Tensor:
        """[B, N, N] bool, see `mmspec.contract.Draft`."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; names and meanings of HF's GenerationConfig.

    temperature: 0 is greedy. top_k: 0 is off. top_p: in (0, 1], 1 is off. min_p: in [0, 1], 0 is off.
    repetition_penalty: positive, 1 is off.
    seed: row i of a batch uses seed + i, so it equals a single call with that seed.
    Raises: InputError for a value that is negative, not finite or out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, wanted: str) -> None:
            if not ok:
                raise InputError(f"{name}={getattr(self, name)!r} is not valid: {wanted}")

        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            check(name, number and math.isfinite(value), "a finite number is needed")
        check("temperature", self.temperature >= 0, "it must be 0 (greedy) or more")
        whole = isinstance(self.top_k, int) and not isinstance(self.top_k, bool)
        check("top_k", whole and self.top_k >= 0, "it must be a whole number, 0 (off) or more")
        check("top_p", 0 < self.top_p <= 1, "it must lie in (0, 1]")
        check("min_p", 0 <= self.min_p <= 1, "it must lie in [0, 1]")
        check("repetition_penalty", self.repetition_penalty > 0, "it must be positive (1 is off)")
        check("seed", isinstance(self.seed, int) and not isinstance(self.seed, bool), "it must be a whole number")


class Sampler:
    """The sampling of one request: warps logits and supplies the request's noise."""

    def __init__(self, sampling: Sampling, batch: int, device: torch.device) -> None:
        self.sampling = sampling
        self.greedy = sampling.temperature == 0
        self.device = device
        seeds = [(sampling.seed + row + 2**63) % 2**64 - 2**63 for row in range(batch)]
        self.seeds = torch.tensor(seeds, dtype=torch.long, device=device)
        self.seen: Tensor | None = None  # [B, V] ids in the text so far; kept only for the repetition penalty

    def see(self, ids: list[list[int]], vocab_size: int) -> None:
        """Note tokens of every row that the repetition penalty must know (prompt, emitted tokens)."""
        if self.sampling.repetition_penalty == 1:
            return
        if self.seen is None:
            self.seen = torch.zeros(len(ids), vocab_size, dtype=torch.bool, device=self.device)
        for row, tokens in enumerate(ids):
            self.seen[row, torch.tensor(tokens, dtype=torch.long, device=self.device)] = True

    def warp(self, draft: Paths, logits: Tensor) -> Tensor:
        """Warped log-scores of the next token at every node, each with the history of its own path.

        Args: logits: [B, N, V] raw. Returns: [B, N, V] float32, -inf where ruled out; unnormalised.
        """
        scores = logits.float()
        if self.seen is not None:
            scores = penalise(
                scores, self.seen[:, None] | path_tokens(draft, scores.shape[-1]), self.sampling.repetition_penalty
            )
        return scores if self.greedy else warp(scores, self.sampling)

    def shape(self, logits: Tensor) -> Tensor:
        """Warped log-scores without history, for a drafter's own logits [..., V]: no law depends on them."""
        return logits.float() if self.greedy else warp(logits.float(), self.sampling)

    def target_noise(self, positions: Tensor, vocab_size: int) -> Tensor:
        """[B, P] indices among the emitted tokens -> [B, P, V] Gumbel noise with which the target draws them."""
        return noise.gumbel(self.seeds, noise.TARGET, positions, vocab_size)

    def draft_noise(self, emitted: Tensor, level: int, lanes: int, vocab_size: int) -> Tensor:
        """Gumbel noise for a drafter that samples, independent of the target's.

        It is new in every round, also where a position is drafted again: a rule that looked at the whole draft, such as
        block verification, has used up the noise of the tokens that it rejected.

        Args: emitted: [B] tokens before this round. level: below 256. lanes: nodes of the level, 256 at most.
        Returns: [B, lanes, V].
        """
        lane = torch.arange(lanes, device=emitted.device)
        return noise.gumbel(self.seeds, noise.DRAFT, emitted[:, None] * 2**16 + level * 2**8 + lane, vocab_size)

    def draw(self, scores: Tensor, positions: Tensor) -> Tensor:
        """The target's tokens at [B, P] positions under scores [B, P, V]: argmax, plus noise unless greedy."""
        return (scores if self.greedy else scores + self.target_noise(positions, scores.shape[-1])).argmax(-1)


def path_tokens(draft: Paths, vocab_size: int) -> Tensor:
    """[B, N, V] bool: the tokens on the path from node 0 to each node, both ends included."""
    batch, size = draft.parents.shape
    tokens = draft.tokens[:, None, :].expand(batch, size, size)
    counts = torch.zeros(batch, size, vocab_size, dtype=torch.long, device=tokens.device)
    return counts.scatter_add_(2, tokens, draft.ancestors.long()) > 0


def penalise(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Repetition penalty (CTRL, arXiv 1909.05858): seen tokens' scores are divided by it, or multiplied if negative."""
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def warp(scores: Tensor, sampling: Sampling) -> Tensor:
    """Temperature, top-k, top-p, min-p on scores [..., V]."""
    if sampling.temperature != 1:
        scores = scores / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -math.inf)
    if sampling.top_p < 1:
        ordered, order = scores.sort(dim=-1)
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        drop[..., -1] = False
        scores = scores.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -math.inf)
    if sampling.min_p > 0:
        p = scores.softmax(-1)
        scores = scores.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), -math.inf)
    return scores
