"""Hydra: Medusa's heads, each told what the ones before it guessed (arXiv 2402.05109).

Head i sees the last feature and the embeddings of the tokens since: the pending one and those drafted on the path to
the node, [f; E(x_1); ..; E(x_{i+1})]. A first block maps that to the target's width, further ones are residual, and the
target's own frozen output head gives the law. So nodes of a level differ, and a guess fits the path it continues.

Hydra++ puts a decoder layer over all features before the heads, so that they see more of the text than its last
position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from mmspec.drafters.growing import Above, Expand
from mmspec.drafters.heads import HeadNet
from mmspec.drafters.medusa import Medusa, ResidualBlock
from mmspec.drafters.slots import Forward, Slots


class MergingBlock(nn.Module):
    """[f; E_1; ..; E_n] of width (n + 1) H -> f + W x + SiLU(A x + b), f alone at first."""

    def __init__(self, parts: int, size: int) -> None:
        super().__init__()
        self.skip = nn.Linear(parts * size, size, bias=False)
        self.linear = nn.Linear(parts * size, size)
        for weight in (self.skip.weight, self.linear.weight, self.linear.bias):
            nn.init.zeros_(weight)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """[.., parts * H] -> [.., H]."""
        return x[..., : self.size] + self.skip(x) + silu(self.linear(x))


class MappingBlock(nn.Module):
    """[f; E_1; ..; E_n] of width (n + 1) H -> W x + c + SiLU(A x + b): that of published heads."""

    def __init__(self, parts: int, size: int) -> None:
        super().__init__()
        self.skip = nn.Linear(parts * size, size)
        self.linear = nn.Linear(parts * size, size)

    def forward(self, x: Tensor) -> Tensor:
        """[.., parts * H] -> [.., H]."""
        return self.skip(x) + silu(self.linear(x))


class HydraHeads(HeadNet):
    """The heads. levels: how many. layers: blocks of each. projected: whether they are of the published form, with
    `MappingBlock`s and an output projection each, instead of the target's head."""

    def __init__(self, config: LlamaConfig, levels: int, layers: int = 2, projected: bool = False) -> None:
        super().__init__(config, levels=levels, layers=layers, projected=projected)
        size, own = config.hidden_size, levels if projected else 0
        first = MappingBlock if projected else MergingBlock
        self.heads = nn.ModuleList(
            nn.Sequential(first(level + 2, size), *(ResidualBlock(size) for _ in range(layers - 1)))
            for level in range(levels)
        )
        self.projections = nn.ModuleList(nn.Linear(size, config.vocab_size) for _ in range(own))

    def forward(self, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None) -> Tensor:
        """What the heads are told about the text, [B, N, H]: the features as they are."""
        return features

    def guess(self, level: int, paths: Tensor, head: nn.Module) -> Tensor:
        """[.., V] of what the head of a level is told, [.., (level + 2) H]; head: the target's."""
        states = self.heads[level](paths)
        return self.projections[level](states) if self.projections else head(states)


class PrefixedHeads(HydraHeads):
    """The heads behind a decoder layer over the features; published ones have a norm between."""

    def __init__(self, config: LlamaConfig, levels: int, layers: int = 2, projected: bool = False) -> None:
        super().__init__(config, levels, layers, projected)
        self.layer = LlamaDecoderLayer(config, layer_idx=0)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps) if projected else nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None) -> Tensor:
        """[B, N, H] features at positions [B, N] -> [B, N, H]; mask: additive, None for plain causal attention."""
        states = self.layer(
            features,
            attention_mask=mask,
            position_embeddings=self.rotary(features, positions),
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return self.norm(states)


class Hydra(Medusa):
    """Drafts a static tree with `HydraHeads`."""

    method = "hydra"
    source = "Hydra, arXiv 2402.05109"
    noun = "Hydra"
    net_class: ClassVar[type[HeadNet]] = HydraHeads

    def expansion(self, forwards: Sequence[Forward], past: Any, read: Callable[[], Tensor], pending: Tensor) -> Expand:
        """Each head is told what the ones before it guessed."""
        paths = torch.empty(0)  # [B, F, n H] what the heads were told about the nodes that got children last

        def expand(level: int, tokens: Tensor, origin: Tensor, above: Above) -> Tensor:
            nonlocal paths
            rows = torch.arange(len(tokens), device=tokens.device)[:, None]
            before = read()[:, None] if level == 0 else paths[rows, origin]
            paths = torch.cat([before, self.target.embed(tokens)], -1)
            return self.net.guess(level, paths, self.head)

        return expand


class HydraPlus(Hydra):
    """Drafts a static tree with `PrefixedHeads`."""

    method = "hydra++"
    source = "Hydra++, arXiv 2402.05109"
    net_class: ClassVar[type[HeadNet]] = PrefixedHeads
    text = Slots
