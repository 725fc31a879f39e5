"""Attention for packed training rows: one image prefix shared by many questions, without paying for a dense mask.

A row is `[prefix][bin 1][bin 2]...`: every bin has the same width and holds whole question-answer pairs. The prefix is
causal; a bin attends to the prefix and, under its own mask, to itself. This is what stock attention computes with a
4-D mask over the whole row, several times cheaper. Layers with a sliding window get masks that know of it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from mmspec.cache import additive

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

    Among the further arguments: `watch`, a `Watch` that sees the queries and keys; `together` [prefix, prefix] bool,
    which tokens of the prefix see each other even where they come later; `sliding_window`, of the layer.
    """
    if "watch" in kwargs:
        kwargs["watch"].see(module.layer_idx, query, key, scaling)
    batch, heads, total, size = query.shape
    dtype = query.dtype
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

    together = kwargs.get("together")
    seen = None if together is None else _prefix_mask(together, kwargs.get("sliding_window"))
    with torch.autocast("cpu", enabled=False):  # where the backward pass of attention is slower in bfloat16
        precise = torch.promote_types(query.dtype, torch.float32) if query.device.type == "cpu" else query.dtype
        query, key, value = query.to(precise), key.to(precise), value.to(precise)
        first = scaled_dot_product_attention(
            query[:, :, :prefix],
            key[:, :, :prefix],
            value[:, :, :prefix],
            attn_mask=seen,
            is_causal=seen is None,
            scale=scaling,
        )
        rest = scaled_dot_product_attention(
            binned(query), extended(key), extended(value), attn_mask=attention_mask, scale=scaling
        )
    rest = rest.reshape(batch, bins, heads, width, size).transpose(1, 2).reshape(batch, heads, bins * width, size)
    return torch.cat([first, rest], dim=2).transpose(1, 2).to(dtype).contiguous(), None


def _prefix_mask(together: Tensor, window: int | None) -> Tensor:
    """[P, P] bool: what lies before, or belongs together, and not further back than the window."""
    place = torch.arange(len(together), device=together.device)
    back = place[:, None] - place
    seen = (back >= 0) | together
    return seen if window is None else seen & (back < window)


def bin_mask(segments: Tensor, prefix: int, positions: Tensor | None = None, window: int | None = None) -> Tensor:
    """Additive mask [B * bins, 1, width, prefix + width]: a token sees the prefix and its own question so far.

    Args: segments: [B, bins, width]. prefix: its length. positions: of the tokens, [B, bins, width], where a window
        hides what is further back.
    """
    flat = segments.flatten(0, 1)
    width = flat.shape[1]
    same = flat[:, :, None] == flat[:, None, :]
    inside = same & torch.ones(width, width, dtype=torch.bool, device=flat.device).tril()
    seen = torch.cat([inside.new_ones(*flat.shape, prefix), inside], -1)
    if positions is not None and window is not None:
        asking = positions.flatten(0, 1)
        before = torch.arange(prefix, device=flat.device).expand(len(flat), -1)
        seen &= asking[:, :, None] - torch.cat([before, asking], 1)[:, None, :] < window
    return additive(seen, torch.float32)[:, None]


AttentionInterface.register(NAME, packed_attention)
