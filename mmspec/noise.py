"""Counter-based randomness: the same (seed, stream, position, index) gives the same number, on every device.

Nothing depends on call order, on the other rows or on the drafter, which is what makes a sampled output repeatable and
independent of how it was drafted (drafter-invariant speculative decoding, arXiv 2408.07978). The hash is two rounds of
a 32-bit integer mixer, held in int32 because torch has no unsigned 32-bit arithmetic: sums and products wrap alike.
"""

from functools import cache

import torch
from torch import Tensor

TARGET, DRAFT, ACCEPT = 1, 2, 3
"""Streams: what the target emits, what a drafter samples, the coins of a ratio rule."""


def _signed(x: int) -> int:
    """The int32 with the low 32 bits of a number."""
    return (x + 2**31) % 2**32 - 2**31


_GOLDEN, _SILVER = _signed(0x9E3779B9), _signed(0x85EBCA6B)
_FIRST, _SECOND = _signed(0x7FEB352D), _signed(0x846CA68B)
_BITS = 23


def _mix(x: Tensor) -> Tensor:
    """A bijective 32-bit mixer with low bias; int32 in and out. It works in place: to fetch memory for numbers of a
    whole vocabulary takes longer than to mix them."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)  # a shift repeats the sign
    x *= _FIRST
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= _SECOND
    x ^= (x >> 16).bitwise_and_(0xFFFF)
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
    key = _mix(seeds.int() ^ _signed(stream * _GOLDEN))  # `int` keeps the low bits
    key = _mix((seeds >> 32).int() ^ key)
    key = _mix(key[:, None] + positions.int() * _GOLDEN + (positions >> 32).int() * _SILVER)
    index = _mix(numbers.int() * _GOLDEN) if isinstance(numbers, Tensor) else _indices(numbers, seeds.device)
    bits = _mix(_mix(key[:, :, None] + index))
    bits.bitwise_right_shift_(32 - _BITS).bitwise_and_(2**_BITS - 1)
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-_BITS)


@cache  # none may go: recorded rounds of `mmspec.engine` read it at its address
@torch.inference_mode(False)  # serves requests and trainings
def _indices(width: int, device: torch.device) -> Tensor:
    """[width] the indices, mixed: the same in every round."""
    return _mix(torch.arange(width, dtype=torch.int32, device=device) * _GOLDEN)


def gumbel(seeds: Tensor, stream: int, positions: Tensor, numbers: int | Tensor) -> Tensor:
    """Standard Gumbel noise for what `uniform` takes, float32: argmax(log p + gumbel) is distributed as p."""
    return uniform(seeds, stream, positions, numbers).log_().neg_().log_().neg_()
