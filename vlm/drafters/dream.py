"""DREAM: the drafter's stream of tokens looks across at the target's features (arXiv 2505.19201).

Three blocks: a decoder layer over the embeddings (no input norm), a gated block that attends from that stream to the
target's last features f_0 .. f_t, another decoder layer; then a norm, and the target's output head. While drafting,
the drafter's own estimates join the features. Each block has a cache of its own.

Of the image slots only those are read that the target's last layer looks at most (three quarters by default): the
others are left out of the stream and of the features, and keep their positions. A slot goes as a whole, so with the
token x_{t+1} goes f_t. The gates are half open before training (the paper's are shut), because a few hundred updates
would not open them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from mmspec.contract import State
from mmspec.drafters.heads import HeadNet
from mmspec.errors import InputError
from mmspec.vlm.drafters.sight import Seen, Sight, SightDrafter, SightHead, most

GATE = 0.5


class Across(nn.Module):
    """Attention from a stream to features, and an MLP, each behind a gate. No rotary positions.

    Args: layer: which layer of a cache is its own.
    """

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        size, width = config.hidden_size, config.head_dim * config.num_attention_heads
        self.layer, self.width = layer, config.head_dim
        self.norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(size, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, size, bias=False)
        self.q_norm, self.k_norm = (LlamaRMSNorm(config.head_dim, config.rms_norm_eps) for _ in range(2))
        self.attention_gate, self.mlp_gate = (nn.Parameter(torch.full((1,), GATE)) for _ in range(2))
        self.mlp_norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, stream: Tensor, features: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        """[B, N, H] of a stream and features [B, N, H] of the same slots; mask and cache as for a decoder layer."""
        queries = self.q_norm(self._heads(self.q_proj(self.norm(stream)))).transpose(1, 2)
        keys = self.k_norm(self._heads(self.k_proj(features))).transpose(1, 2)
        values = self._heads(self.v_proj(features)).transpose(1, 2)
        if cache is not None:
            keys, values = cache.update(keys, values, self.layer)
        found = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
        stream = stream + self.attention_gate.tanh() * self.o_proj(found.transpose(1, 2).flatten(2))
        return stream + self.mlp_gate.tanh() * self.mlp(self.mlp_norm(stream))

    def _heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (-1, self.width))


class DreamNet(SightHead):
    """The three blocks.

    Args: config: the shape of the layers. keep: share of a prompt's image slots that are read, in [0, 1]. opening:
        whether a slot for the first token of a text stands before the others, as in published drafters.
    """

    def __init__(self, config: LlamaConfig, keep: float = 0.75, opening: bool = False) -> None:
        HeadNet.__init__(self, config, keep=keep, opening=opening)
        if not 0 <= keep <= 1:
            raise InputError(f"keep={keep} is not valid: it is a share of the image slots, 0 to 1")
        self.keep, self.opening, self.focuses = keep, opening, keep < 1
        self.below = LlamaDecoderLayer(config, layer_idx=0)
        self.below.input_layernorm = nn.Identity()
        self.across = Across(config, 1)
        self.above = LlamaDecoderLayer(config, layer_idx=2)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(config)

    def see(self, sight: Sight) -> Seen:
        """See `SightHead`."""
        content = self.content(sight.embeddings, sight.features)
        if sight.focus is None:
            return Seen(content, torch.ones_like(sight.image))
        return Seen(content, ~sight.image | most(sight.focus, sight.image, self.keep))

    def opened(self, seen: Seen, embedding: Tensor, features: Tensor) -> Seen:
        """With a slot for the first token of each text in front, which no feature comes before.

        What attends to nothing attends to all alike, so its view of the prompt's features is that of their mean.
        Args: embedding: [B, 1, H] of the token. features: [B, 1, H] the mean.
        """
        content = torch.cat([self.content(embedding, features), seen.content], 1)
        return Seen(content, torch.nn.functional.pad(seen.kept, (1, 0), value=True), ahead=1)

    def content(self, embeddings: Tensor, features: Tensor, context: Tensor | None = None, step: int = 0) -> Tensor:
        """[B, N, 2 H]: the embeddings of the stream and the features that it looks at."""
        return torch.cat([embeddings, features], -1)

    def forward(self, content: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None) -> Tensor:
        """See `SightHead`."""
        return self.both(content, positions, mask, cache)[0]

    def both(self, content: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None) -> tuple[Tensor, Tensor]:
        """The next features, and what the second block says, which training compares with a middle layer."""
        stream, features = content.chunk(2, -1)
        places = self.rotary(stream, positions)
        rest: dict[str, Any] = {
            "attention_mask": mask,
            "position_embeddings": places,
            "past_key_values": cache,
            "use_cache": cache is not None,
        }
        if self.opening:
            mask = unseen(mask, positions)
        middle = self.across(self.below(stream, **rest), features, mask, cache)
        return self.norm(self.above(middle, **rest)), middle


def unseen(mask: Tensor | None, positions: Tensor) -> Tensor:
    """A mask [B, 1, N, K] under which only the opening slot, at position -1 and in the first column, sees itself: it
    has no feature for the others to look at."""
    assert mask is not None
    hidden = mask.clone()
    low = torch.finfo(mask.dtype).min
    hidden[..., 0] = torch.where(positions[:, None] < 0, mask[..., 0], low)
    return hidden


class Dream(SightDrafter):
    """Drafts a dynamic tree with a `DreamNet`."""

    method = "dream"
    source = "DREAM, arXiv 2505.19201"
    noun = "DREAM"
    net_class: ClassVar[type[HeadNet]] = DreamNet

    def see(self, state: State, features: Tensor) -> Seen:
        """See `SightDrafter`."""
        seen = super().see(state, features)
        if not self.net.opening:
            return seen
        assert state.prompt_embeddings is not None
        count = state.prompt_length[:, None]
        real = (torch.arange(features.shape[1], device=features.device) < count)[..., None]
        mean = (features * real).sum(1) / count
        return self.net.opened(seen, state.prompt_embeddings[:, :1], mean[:, None].to(features.dtype))
