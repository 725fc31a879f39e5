"""Counter-based randomness: the same (seed, stream, position, index) gives the same number, on every device.

Nothing depends on call order, on the other rows or on the drafter, which is what makes a sampled output repeatable and
independent of how it was drafted (drafter-invariant speculative decoding, arXiv 2408.07978). The hash is two rounds of
a 32-bit integer mixer, held in int64 because torch has no unsigned 32-bit arithmetic.
"""

from functools import cache

import torch
from torch import Tensor

TARGET, DRAFT, ACCEPT = 1, 2, 3
"""Streams: what the target emits, what a drafter samples, the coins of a ratio rule."""

_MASK = 0xFFFFFFFF
_GOLDEN, _SILVER = 0x9E3779B9, 0x85EBCA6B
_BITS = 23


def _mix(x: Tensor) -> Tensor:
    """A bijective 32-bit mixer with low bias; int64 in and out, values below 2**32. It works in place: to fetch memory
    for numbers of a whole vocabulary takes longer than to mix them."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x &= _MASK
    x ^= x >> 15
    x *= 0x846CA68B
    x &= _MASK
    x ^= x >> 16
    return x


def uniform(seeds: Tensor, stream: int, positions: Tensor, numbers: int | Tensor) -> Tensor:
    """Uniform numbers in (0, 1), never 0 or 1.

    Args:
        seeds: [B] int64, one per row.
        stream: TARGET, DRAFT or ACCEPT.
        positions: [B, P] int64 counters (index of the token among the emitted ones).
        numbers: how many per position (the vocabulary, or a handful of coins), or [B, P, K] int64 which of them.

    Returns: [B, P, numbers or K] float32.
    """
    key = _mix((seeds & _MASK) ^ (stream * _GOLDEN & _MASK))
    key = _mix(((seeds >> 32) & _MASK) ^ key)
    key = _mix((key[:, None] + positions * _GOLDEN + (positions >> 32) * _SILVER) & _MASK)
    index = _mix(numbers * _GOLDEN & _MASK) if isinstance(numbers, Tensor) else _indices(numbers, seeds.device)
    bits = _mix(_mix((key[:, :, None] + index) & _MASK))
    return (bits >> (32 - _BITS)).to(torch.float32).add_(0.5).mul_(2.0**-_BITS)


@cache  # none may go: recorded rounds of `mmspec.engine` read it at its address
@torch.inference_mode(False)  # serves requests and trainings
def _indices(width: int, device: torch.device) -> Tensor:
    """[width] the indices, mixed: the same in every round."""
    return _mix(torch.arange(width, device=device) * _GOLDEN & _MASK)


def gumbel(seeds: Tensor, stream: int, positions: Tensor, numbers: int | Tensor) -> Tensor:
    """Standard Gumbel noise for what `uniform` takes, float32: argmax(log p + gumbel) is distributed as p."""
    return uniform(seeds, stream, positions, numbers).log_().neg_().log_().neg_()
