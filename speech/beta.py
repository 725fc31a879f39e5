"""Speculative sampling with a tolerance: a drafted token stays if u < min(1, p / q) + beta (SSD, arXiv 2505.15380).

After a rejection the residual norm(max(p - q, 0)) is drawn from, as in the ratio rule, which this is for beta = 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.acceptance.ratio import Ratio
from mmspec.errors import InputError


class Beta(Ratio):
    """Law: none above beta = 0, where it is that of `Ratio`. Lossy.

    The tolerance holds for no token that the target's sampling rules out, and for none that ends the utterance.
    Args: beta: in [0, 1]; 0 is exact, 1 keeps every draft. 0.4 is the paper's.
    """

    def __init__(self, beta: float = 0.4) -> None:
        if not isinstance(beta, int | float) or isinstance(beta, bool) or not 0 <= beta <= 1:
            raise InputError(f"beta acceptance needs beta in [0, 1], got {beta!r}")
        self.beta = beta
        self.lossless = beta == 0
        self.ends: tuple[int, ...] = ()

    def bind(self, target: Any) -> None:
        """Learn which tokens end an utterance."""
        self.ends = tuple(target.ends())

    def grant(self, law: Tensor, q: Tensor, token: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """The target's probability, raised by beta times the drafter's. See `Ratio.grant`."""
        own, drafted = super().grant(law, q, token, depth)
        strict = own <= 0
        for end in self.ends:
            strict = strict | (token == end)
        return torch.where(strict, own, own + self.beta * drafted), drafted
