"""Relaxed acceptance: the ratio rule with more granted to a drafted token than its probability. Lossy.

At its neutral knob each rule is the ratio rule, bit for bit: what is granted is then p(x), and nothing else differs.
After a rejection all go on with norm(max(p - q, 0)), as the ratio rule; `residual="optimal"` takes what is closest to
the target's law for the acceptance at hand, norm(max(p - q f, 0)), f(x) being the chance to keep x (Cool-SD, arXiv
2601.09212). No bound on what is granted to a token bounds what a rule emits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.acceptance.ratio import Ratio, residual
from mmspec.errors import InputError, shorten

Raise = Callable[[Tensor], tuple[Tensor, Tensor]]
"""What target and drafter give to tokens [B, K], [B, K] each."""

CHUNK = 512
RESIDUALS = ("plain", "optimal")


class Relaxed(Ratio):
    """Law: none but that of the neutral knob, where it is that of `Ratio`; else what is emitted leans towards what the
    drafter proposes.

    Args: residual: what follows a rejection, "plain" or "optimal".
    """

    lossless = False  # rules say otherwise where their own settings are neutral

    def __init__(self, residual: str = "plain") -> None:
        if residual not in RESIDUALS:
            raise InputError(f"residual={shorten(residual)} is not valid: {', '.join(RESIDUALS)}")
        self.residual = residual

    @abstractmethod
    def raised(self, law: Tensor, q: Tensor, tokens: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """What target and drafter give to tokens [B, K], [B, K] each; see `Ratio.grant` for a single token."""

    def raising(self, law: Tensor, q: Tensor, depth: Tensor) -> Raise:
        """`raised` of these laws, whatever the tokens: what depends on the laws alone is found once."""
        return lambda tokens: self.raised(law, q, tokens, depth)

    def grant(self, law: Tensor, q: Tensor, token: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """See `Ratio.grant`."""
        granted, taken = self.raised(law, q, token[:, None], depth)
        return granted[:, 0], taken[:, 0]

    def kept(self, law: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """[B, V] the mass of every token that is drafted and kept: q(x) min(1, granted(x) / taken(x))."""
        parts, raised = [], self.raising(law, q, depth)
        for ids in torch.arange(law.shape[-1], device=law.device).split(CHUNK):
            granted, taken = raised(ids.expand(len(law), -1))
            own = q[:, ids]
            share = torch.where(own > 0, own / taken.clamp(min=torch.finfo(q.dtype).tiny), 0.0)
            parts.append(torch.minimum(own, granted * share))
        return torch.cat(parts, -1)

    def rest(self, law: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """See `Ratio.rest`."""
        return residual(law, q if self.residual == "plain" else self.kept(law, q, depth))
