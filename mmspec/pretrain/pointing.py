"""Where to look: some attention heads are taught which positions of the input they should attend to.

A small model finds out by itself where in a caption, a text or a picture the next token is decided, but late. Taught,
it looks there from the first hundred updates on. Only the loss knows of this: the model stays the stock one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "watched"
HEAD = 0  # the head of a watched layer that is taught


@dataclass
class Watch:
    """What the taught heads of some layers attend to among some positions of the input.

    layers: the watched ones; keys: where the positions lie in the row (a slice, or an index each); prefix: tokens
    before the first query of interest. scores: filled by the forward pass, layer -> attention logits [B, T, keys].
    """

    layers: tuple[int, ...]
    keys: slice | Tensor
    prefix: int
    scores: dict[int, Tensor] = field(default_factory=dict)

    def see(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
        """query, key: [B, H, prefix + T, D], rotated."""
        if layer in self.layers:
            keys = key[:, HEAD, self.keys].transpose(1, 2)
            self.scores[layer] = query[:, HEAD, self.prefix :] @ keys * scaling


def reading_layers(layers: int) -> tuple[int, int]:
    """The layers whose heads read, before a token is said, what decides it: by the depth of the decoder."""
    return layers // 2 - 1, layers * 3 // 4 - 1


def pointing_loss(scores: Tensor, right: Tensor) -> Tensor:
    """-log of the attention on the right positions, averaged over the tokens that have some; 0 if none has.
    Both: [.., keys]."""
    known = right.any(-1)
    chances = log_softmax(scores[known], -1).masked_fill(~right[known], -torch.inf)
    return -chances.logsumexp(-1).mean() if bool(known.any()) else scores.new_zeros(())


def watched_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    watch: Watch | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The library's attention, with its queries and keys shown to a `Watch`; returns [B, T, H, D]."""
    if watch is not None:
        watch.see(module.layer_idx, query, key, scaling)
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


AttentionInterface.register(NAME, watched_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
