"""EAGLE-3: features of three depths, a head of its own over a smaller vocabulary, no feature to imitate (arXiv
2503.01840).

Slot t holds the token x_{t+1} and h_t = fc([low; middle; high]), the target's hidden states near its bottom, in its
middle and near its top. One layer attends over [norm(E(x_{t+1})); norm(h_t)] with h_t as residual; its output is the
h of the next step as it is, and through a norm and an own head the law of x_{t+2} over the words that answers use most.
What the layer's output should look like is left to training, which runs on its own outputs as drafting does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from mmspec.drafters.axes import rotary
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.heads import HeadNet
from mmspec.drafters.vocabulary import WordRows, widened
from mmspec.grouped import NAME as GROUPED


class Eagle3Head(HeadNet):
    """Fusion, one layer over pairs of embedding and feature, and an output head over `words` ids.

    Args: config: the shape of the layer; `vocab_size` is the target's. taps: the target's `hidden_states` to fuse.
        words: size of the draft vocabulary. `ids` [words] says which ids of the target these are.
        normed_residual: whether attention is added to the normed feature, as some published heads do.
        seen: how it read pictures, see `mmspec.drafters.eagle.OneLayer`.
    """

    def __init__(
        self, config: LlamaConfig, taps: Sequence[int], words: int, normed_residual: bool = False, **seen: Any
    ) -> None:
        super().__init__(config, taps=list(taps), words=words, normed_residual=normed_residual, **seen)
        size = config.hidden_size
        self.fc = nn.Linear(len(taps) * size, size, bias=False)
        self.embedding_norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.feature_norm = LlamaRMSNorm(size, config.rms_norm_eps)
        width = config.head_dim * config.num_attention_heads
        pairs = LlamaConfig.from_dict({**config.to_dict(), "hidden_size": 2 * size})
        pairs._attn_implementation = GROUPED
        self.attention = LlamaAttention(pairs, layer_idx=0)
        self.attention.o_proj = nn.Linear(width, size, bias=False)
        self.mlp_norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)
        self.norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.words = WordRows(words, size)
        self.register_buffer("ids", torch.arange(words))
        self.ids: Tensor
        self.rotary = rotary(config, seen.get("axes"))

    def forward(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None
    ) -> Tensor:
        """The next features; arguments and shapes as for `mmspec.drafters.eagle.EagleHead`."""
        normed = self.feature_norm(features)
        pair = torch.cat([self.embedding_norm(embeddings), normed], -1)
        attended, _ = self.attention(
            hidden_states=pair,
            position_embeddings=self.rotary(pair, positions),
            attention_mask=mask,
            past_key_values=cache,
        )
        hidden = (normed if self.settings["normed_residual"] else features) + attended
        return hidden + self.mlp(self.mlp_norm(hidden))

    def fuse(self, heard: Tensor) -> Tensor:
        """[B, N, H] of the taps side by side, [B, N, taps * H]."""
        return self.fc(heard)

    def own_logits(self, features: Tensor) -> Tensor:
        """[.., words] of features [.., H]."""
        return self.words(self.norm(features))

    def logits(self, features: Tensor, head: nn.Module) -> Tensor:
        """[.., V]: -inf for ids outside the draft vocabulary. The target's head is not asked."""
        return widened(self.own_logits(features), self.ids, self.config.vocab_size)


class Eagle3(Eagle):
    """Drafts a dynamic tree with an `Eagle3Head`."""

    method = "eagle3"
    source = "EAGLE-3, arXiv 2503.01840"
    noun = "EAGLE-3"
    net_class: ClassVar[type[HeadNet]] = Eagle3Head

    def taps(self, target: Any) -> tuple[int, ...]:
        """Those that the head was trained on."""
        return tuple(self.net.settings["taps"])


def usual_taps(num_layers: int) -> tuple[int, int, int]:
    """The hidden states that enter layers 2, L // 2 and L - 3, or what a shorter target has in their place."""
    return min(2, num_layers), num_layers // 2, max(num_layers - 3, 0)
