"""The highest scores of a large vocabulary: what `torch.topk` finds, but for the order of equals, in a part of the
time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

if torch.cuda.is_available():  # Triton compiles for what it finds; elsewhere nothing needs it
    from mmspec.engine import top_k

MANY, PART = 8192, 128
"""From which vocabulary on it is searched in parts, and of how many words."""


def best_of_many(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` of [.., V]: by kernels where there is CUDA; elsewhere only the parts of a large vocabulary with
    the k highest maxima are searched."""
    if scores.is_cuda and top_k.serves(scores, k):
        return top_k.top_k(scores, k)
    size = scores.shape[-1]
    if not in_parts(size, k):
        return scores.topk(k, dim=-1)
    short = -size % PART
    whole = F.pad(scores, (0, short), value=-torch.inf) if short else scores  # to pad by nothing copies all the same
    parts = whole.unflatten(-1, (-1, PART))
    highest = parts.amax(-1).topk(k, dim=-1).indices  # [.., k]
    values, place = parts.gather(-2, highest[..., None].expand(*highest.shape, PART)).flatten(-2).topk(k, dim=-1)
    index = highest.gather(-1, place // PART) * PART + place % PART
    return values, index.clamp(max=size - 1)  # a padded place can win only where fewer than k scores are numbers


def in_parts(size: int, k: int) -> bool:
    """Whether the k highest of so many scores are found sooner in parts: k parts may be half of all."""
    return size >= MANY and 2 * k * PART <= size
