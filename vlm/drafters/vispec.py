"""ViSpec: a few vectors stand for a whole picture, and one of them is told to every later word (arXiv 2509.15235).

Learned queries attend to the target's embeddings of one picture (one run of image slots). All answers but the last
take the place of the run's last image slots, at their positions, and enter the layer as they are, past the fc, which
is for words; the other image slots are left out. The last answer is the global feature g: in every later slot, until
the next picture ends, h = W [f_t; g] stands where EAGLE has f_t. W begins as the identity on f and zero on g. Before
the first picture g is zero.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig

from mmspec.drafters.heads import HeadNet
from mmspec.vlm.drafters.sight import Seen, Sight, SightDrafter, SightHead


class Adaptor(nn.Module):
    """Learned queries over the embeddings of a picture.

    Args: config: for its heads. queries: how many.
    """

    def __init__(self, config: LlamaConfig, queries: int) -> None:
        super().__init__()
        size, heads, width = config.hidden_size, config.num_attention_heads, config.head_dim
        self.queries = nn.Parameter(torch.randn(queries, heads, width) * width**-0.5)
        self.keys = nn.Linear(size, heads * width)
        self.values = nn.Linear(size, heads * width)
        self.out = nn.Linear(heads * width, size, bias=False)

    def forward(self, pictures: Tensor, real: Tensor) -> Tensor:
        """[S, queries, H] of S pictures [S, n, H]; real: [S, n] bool, False for padding."""
        heads, width = self.queries.shape[1:]
        keys, values = (
            part(pictures).unflatten(-1, (heads, width)).transpose(1, 2) for part in (self.keys, self.values)
        )
        asked = self.queries.transpose(0, 1).expand(len(pictures), -1, -1, -1)
        found = scaled_dot_product_attention(asked, keys, values, attn_mask=real[:, None, None])
        return self.out(found.transpose(1, 2).flatten(2))


class ViSpecHead(SightHead):
    """An EAGLE head with an adaptor.

    Args: queries: of the adaptor, g among them; with 0 there is no adaptor, and nothing of the pictures is read.
        global_feature: whether g is told to later slots.
        direct: False for heads that were trained with the other answers going through the fc, as words do.
    """

    def __init__(self, config: LlamaConfig, queries: int = 2, global_feature: bool = True, direct: bool = True) -> None:
        super().__init__(config, queries=queries, global_feature=global_feature, direct=direct)
        size = config.hidden_size
        self.adaptor = Adaptor(config, queries) if queries else None
        self.inject = nn.Linear(2 * size, size) if queries and global_feature else None
        if self.inject is not None:
            with torch.no_grad():
                self.inject.weight.copy_(torch.cat([torch.eye(size), torch.zeros(size, size)], 1))
                self.inject.bias.zero_()

    def see(self, sight: Sight) -> Seen:
        """See `SightHead`."""
        rows, starts, stops = runs(sight.image)
        if self.adaptor is None or not len(rows):
            told = torch.zeros_like(sight.features[:, :1])
            return Seen(self.content(sight.embeddings, sight.features, told), ~sight.image, told)
        vectors = self.adaptor(*pictures(sight.embeddings, rows, starts, stops))
        *_, told = vectors.unbind(1)
        embeddings, kept = sight.embeddings, ~sight.image
        width = vectors.shape[1] - 1
        places = stops[:, None] - width + torch.arange(width, device=rows.device)
        there = places >= starts[:, None]
        if there.any():
            at = (rows[:, None].expand_as(places)[there], places[there])
            embeddings = embeddings.index_put(at, vectors[:, :-1][there].to(embeddings.dtype))  # mixed precision
            kept = kept.index_put(at, torch.ones_like(at[0], dtype=torch.bool))
        # which picture was the last one to end before each slot, and before the slot behind the text; 0 is none
        ended = torch.zeros(len(kept), kept.shape[1] + 1, dtype=torch.long, device=rows.device)
        ended[rows, stops] = torch.arange(1, len(rows) + 1, device=rows.device)
        of_slot = torch.cat([torch.zeros_like(told[:1]), told])[ended.cummax(1).values]  # [B, T + 1, H]
        content = self.content(embeddings, sight.features, of_slot[:, :-1])
        if self.settings["direct"] and there.any():
            content = content.index_put(at, vectors[:, :-1][there].to(content.dtype))
        return Seen(content, kept, of_slot[:, -1:])

    def content(self, embeddings: Tensor, features: Tensor, context: Tensor | None = None, step: int = 0) -> Tensor:
        """See `SightHead`; context: [B, N or 1, H] the global feature."""
        if self.inject is not None and context is not None:
            features = self.inject(torch.cat([features, context.expand_as(features)], -1))
        return super().content(embeddings, features)


class ViSpec(SightDrafter):
    """Drafts a dynamic tree with a `ViSpecHead`."""

    method = "vispec"
    source = "ViSpec, arXiv 2509.15235"
    noun = "ViSpec"
    net_class: ClassVar[type[HeadNet]] = ViSpecHead


def runs(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, start and stop [S] of every run of image slots in [B, T] bool, row by row."""
    edges = torch.nn.functional.pad(image.int(), (1, 1)).diff(dim=1)
    rows, starts = (edges == 1).nonzero(as_tuple=True)
    return rows, starts, (edges == -1).nonzero(as_tuple=True)[1]


def pictures(embeddings: Tensor, rows: Tensor, starts: Tensor, stops: Tensor) -> tuple[Tensor, Tensor]:
    """The embeddings [S, n, H] of the slots of each run, and which of them are real [S, n]."""
    places = starts[:, None] + torch.arange(int((stops - starts).max()), device=rows.device)
    real = places < stops[:, None]
    return embeddings[rows[:, None], places.clamp(max=embeddings.shape[1] - 1)], real
