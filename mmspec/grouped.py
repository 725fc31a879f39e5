"""Attention on a CPU in which several query heads share a key head: registered with transformers under the name
"mmspec_grouped", so that unmodified models call it.

Under a draft's mask transformers' sdpa writes every key and value down once per query head, for all of the context and
in every layer; for a single query without one torch reads them as often. Here the heads of a group are further queries
of one head, and nothing is repeated. But for rounding the result is the same.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mmspec.checkpoints import quiet
from mmspec.decoder import first_layer

NAME = "mmspec_grouped"
FEW = 64
"""Most queries for which a mask is written down for every head of a group. A prompt has more."""
BEYOND = ("position_bias", "softcap", "cache")
"""What only transformers' own sdpa knows, or refuses."""


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of a layer, as transformers calls it.

    Args:
        query: [B, heads, N, D]. key, value: [B, kv heads, S, D]. attention_mask: [B or 1, heads or 1, N, S]; without
            one N queries are causal.
    Returns: [B, N, heads, D], and no weights.
    """
    batch, heads, nodes, size = query.shape
    alone = attention_mask is None and nodes == 1
    shared = attention_mask is not None and attention_mask.shape[1:3] == (1, nodes) and nodes <= FEW
    if heads == key.shape[1] or not (alone or shared) or any(kwargs.get(name) is not None for name in BEYOND):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    mask = None if attention_mask is None else attention_mask.repeat(1, 1, heads // key.shape[1], 1)
    rows = query.reshape(batch, key.shape[1], -1, size)  # heads of a group x nodes
    out = F.scaled_dot_product_attention(rows, key, value, mask, dropout, scale=scaling)
    return out.reshape(batch, heads, nodes, -1).transpose(1, 2).contiguous(), None


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Let the decoder of a model that runs sdpa on a CPU call `grouped_attention` instead, if its heads share keys."""
    text = model.config.get_text_config(decoder=True)
    first = first_layer(text)
    heads, keys = (getattr(first, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if model.device.type == "cpu" and text._attn_implementation == "sdpa" and keys not in (None, heads):
        use_attention(model, NAME)


def use_attention(model: PreTrainedModel, name: str) -> None:
    """Let the decoder of a model call the attention of that name, unless its class has one of its own."""
    alone = model.config.get_text_config(decoder=True) is model.config
    with quiet():  # which of the two it is transformers would say
        model.set_attn_implementation({"" if alone else "text_config": name})


ALL_ATTENTION_FUNCTIONS.register(NAME, grouped_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
