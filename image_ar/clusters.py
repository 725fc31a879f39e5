"""GSD, grouped speculative decoding (arXiv 2508.07747), and the weights of Cool-SD (arXiv 2601.09212).

GSD compares clusters: x is kept with chance P(C) / q(C), C being the tokens whose probabilities rank next to x's in the
target's law and that are neither much likelier nor far from it in the embedding. Cool-SD grants w p(x), with a weight
that falls along the draft.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import InputError, MismatchError
from mmspec.image_ar.relaxed import Raise, Relaxed
from mmspec.registry import name_of

logger = logging.getLogger(__name__)

ASKED = 64
"""Of so many tokens the nearest other one is looked for."""


class Grouped(Relaxed):
    """Args: size: tokens per cluster (G), 1 is the ratio rule. near: their probabilities differ from x's by less.

    distance: their squared distance in the target's input embedding is less than this; None does not look at it. The
        paper's 0.5 suits the scale of Lumina-mGPT's embedding.
    """

    def __init__(
        self, size: int = 14, near: float = 0.15, distance: float | None = 0.5, residual: str = "plain"
    ) -> None:
        super().__init__(residual)
        if not isinstance(size, int) or size < 1 or not near > 0 or not (distance is None or distance > 0):
            raise InputError(
                f"GSD needs size >= 1, a positive near, and a positive distance or None; got {size!r}, {near!r} and "
                f"{distance!r}"
            )
        self.size, self.near, self.distance = size, near, distance
        self.lossless = size == 1
        self.vectors: Tensor | None = None

    @torch.inference_mode()
    def bind(self, target: Any) -> None:
        """Take the embedding of the target's tokens; warn if it leaves every token alone in its cluster."""
        if self.distance is None or self.size == 1:
            return
        if not hasattr(target, "embed"):
            raise MismatchError(
                f"{name_of('rules', self)!r} compares embeddings of tokens, {type(target).__name__} has none"
            )
        self.vectors = target.embed(torch.arange(target.vocab_size, device=target.model.device)).float()
        some = self.vectors[:: max(1, len(self.vectors) // ASKED)]
        apart = torch.cdist(some, self.vectors, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest = apart.topk(2, largest=False).values[:, 1]  # the first is the token itself
        if float(nearest.min()) >= self.distance:
            logger.warning(
                "gsd with distance=%g is the ratio rule on this model: the nearest other token lies %.2g to %.2g away "
                "(squared) in its embedding; give a distance in that range, or None to go by probabilities alone",
                self.distance,
                float(nearest.min()),
                float(nearest.max()),
            )

    def raised(self, law: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """See `Relaxed.raised`."""
        return self.raising(law, q, depth)(tokens)

    def raising(self, law: Tensor, q: Tensor, depth: Tensor) -> Raise:
        """See `Relaxed.raising`: laws are sorted once."""
        order = law.sort(dim=-1, descending=True, stable=True).indices
        places = torch.arange(law.shape[-1], device=law.device).expand_as(order)
        return partial(self._clustered, law, q, order, torch.empty_like(order).scatter_(1, order, places))

    def _clustered(self, law: Tensor, q: Tensor, order: Tensor, rank: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The window of ranks stays inside the vocabulary, and x is always a member.

        Args: order: [B, V] tokens, the likeliest first. rank: [B, V] of each token.
        """
        vocab, size = law.shape[-1], min(self.size, law.shape[-1])
        start = (rank.gather(1, tokens) - (size - 1) // 2).clamp(0, vocab - size)  # [B, K]
        places = start[..., None] + torch.arange(size, device=law.device)
        members = order.gather(1, places.flatten(1)).view(places.shape)  # [B, K, G]
        mass = law.gather(1, members.flatten(1)).view(places.shape)
        alike = (mass - law.gather(1, tokens)[..., None]).abs() < self.near
        if self.vectors is not None and self.distance is not None:
            alike &= (self.vectors[members] - self.vectors[tokens][:, :, None]).square().sum(-1) < self.distance
        alike |= members == tokens[..., None]
        drafted = q.gather(1, members.flatten(1)).view(places.shape)
        return torch.where(alike, mass, 0.0).sum(-1), torch.where(alike, drafted, 0.0).sum(-1)


class CoolSD(Relaxed):
    """Args: delta: weight of the first drafted token, 1 is the ratio rule. decay: how fast weights fall to 1.

    The weight of token i (from 0) is 1 + (delta - 1) exp(-decay i): the paper's decay with a normalisation of our own,
    under which delta = 1 is exact at every place. The residual is the optimal one unless told otherwise.
    """

    def __init__(self, delta: float = 1.1, decay: float = 0.7, residual: str = "optimal") -> None:
        super().__init__(residual)
        if not (delta >= 1 and math.isfinite(delta)) or not decay >= 0:
            raise InputError(f"Cool-SD needs delta >= 1 and decay >= 0, got {delta!r} and {decay!r}")
        self.delta, self.decay = delta, decay
        self.lossless = delta == 1

    def raised(self, law: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """See `Relaxed.raised`."""
        weight = 1 + (self.delta - 1) * torch.exp(-self.decay * depth)
        return law.gather(1, tokens) * weight[:, None].to(law.dtype), q.gather(1, tokens)
