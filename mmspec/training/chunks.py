"""Losses over a vocabulary, some places at a time: a law over Gemma3's 262 208 tokens takes a megabyte."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS = 1 << 26
"""Of a chunk: 256 MB in float32."""


def in_chunks(judge: Callable[..., Tensor], vocab_size: int, *rows: Tensor) -> Tensor:
    """The losses [m] that `judge` finds for rows [M, ...], m <= M. Where laws of all of them would be too large, they
    are judged a chunk at a time, and on the way back what was computed for a chunk is computed again."""
    size = max(1, LOGITS // vocab_size)
    if len(rows[0]) <= size:
        return judge(*rows)
    chunks = zip(*(one.split(size) for one in rows), strict=True)
    return torch.cat([checkpoint(judge, *chunk, use_reentrant=False) for chunk in chunks])
