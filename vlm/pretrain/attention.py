"""Attention for packed training rows: one image prefix shared by many questions, without paying for a dense mask.

A row is `[prefix][bin 1][bin 2]...`: every bin has the same width and holds whole question-answer pairs. The prefix is
causal; a bin attends to the prefix and, under its own mask, to itself. This is what stock attention computes with a
4-D mask over the whole row, several times cheaper.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "packed_bins"


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [B, H, T, D]
    key: Tensor,  # [B, H, T, D]
    value: Tensor,  # [B, H, T, D]
    attention_mask: Tensor,  # [B * bins, 1, width, prefix + width], additive
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend inside the prefix and from each bin to the prefix and itself; returns [B, T, H, D].

    A `Watch` among the further arguments sees the queries and keys.
    """
    if "watch" in kwargs:
        kwargs["watch"].see(module.layer_idx, query, key, scaling)
    batch, heads, total, size = query.shape
    width = attention_mask.shape[2]
    prefix = attention_mask.shape[3] - width
    bins = (total - prefix) // width

    def binned(states: Tensor) -> Tensor:
        """[B, H, T, D] -> [B * bins, H, width, D]."""
        tail = states[:, :, prefix:].reshape(batch, heads, bins, width, size)
        return tail.transpose(1, 2).reshape(batch * bins, heads, width, size)

    def extended(states: Tensor) -> Tensor:
        """The prefix in front of every bin: [B * bins, H, prefix + width, D]."""
        head = states[:, None, :, :prefix].expand(batch, bins, heads, prefix, size)
        return torch.cat([head.reshape(batch * bins, heads, prefix, size), binned(states)], dim=2)

    first = scaled_dot_product_attention(
        query[:, :, :prefix], key[:, :, :prefix], value[:, :, :prefix], is_causal=True, scale=scaling
    )
    rest = scaled_dot_product_attention(
        binned(query), extended(key), extended(value), attn_mask=attention_mask, scale=scaling
    )
    rest = rest.reshape(batch, bins, heads, width, size).transpose(1, 2).reshape(batch, heads, bins * width, size)
    return torch.cat([first, rest], dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, packed_attention)
