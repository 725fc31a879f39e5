"""SpecVLM: what the drafter reads of a picture is compressed in the way that suits the question (arXiv 2509.11815).

An EAGLE head with its layer's input norm, which the method adds for stable training. Of five ways to compress a picture
(`compressors`) a gate takes one, by the words of the prompt and by the picture: the way of the largest logit; while it
is trained, logits and Gumbel noise, with the gradient of their softmax (straight through). The vectors enter the layer
past the fc, having no feature of their own.

The paper names the ways, the choice by the question, the Gumbel softmax and the loss; the gate's input (the mean
embedding of the words and that of the picture), the sizes and that pictures are read in one dimension are choices made
here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mmspec.drafters.heads import HeadNet
from mmspec.vlm.drafters.compressors import Convolve, Made, Nothing, Pool, Prune, Resample
from mmspec.vlm.drafters.sight import Seen, Sight, SightDrafter, SightHead
from mmspec.vlm.drafters.vispec import pictures, runs


class SpecVlmHead(SightHead):
    """An EAGLE head with an elastic compressor.

    Args: config: the shape of the layer. ratio: image slots per vector. queries: vectors per picture where learned
        queries make them.
    """

    focuses = True

    def __init__(self, config: LlamaConfig, ratio: int = 4, queries: int = 4) -> None:
        super().__init__(config, ratio=ratio, queries=queries)
        size = config.hidden_size
        self.layer.input_layernorm = LlamaRMSNorm(size, config.rms_norm_eps)
        ways = {
            "prune": Prune(ratio),
            "pool": Pool(ratio),
            "convolve": Convolve(size, ratio),
            "resample": Resample(config, queries),
            "nothing": Nothing(),
        }
        self.ways: Any = nn.ModuleDict(ways)
        self.gate = nn.Linear(2 * size, len(ways))
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def see(self, sight: Sight, noise: torch.Generator | None = None) -> Seen:
        """See `SightHead`. noise: of the gate, in training; without it the best way is taken and no other is tried."""
        content, kept = self.content(sight.embeddings, sight.features), ~sight.image
        rows, starts, stops = runs(sight.image)
        if not len(rows):
            return Seen(content, kept)
        assert sight.focus is not None
        vectors, real = pictures(sight.embeddings, rows, starts, stops)
        focus = pictures(sight.focus[..., None], rows, starts, stops)[0][..., 0]
        wanted = self.wanted(asked(sight)[rows], vectors, real)
        if noise is not None:
            chance = torch.rand(wanted.shape, generator=noise, device=wanted.device).clamp(min=1e-9)
            wanted = wanted - (-chance.log()).log()
        made, there = self.compress(vectors, real, focus, wanted, every=noise is not None)
        places = starts[:, None] + torch.arange(vectors.shape[1], device=rows.device)
        at = (rows[:, None].expand_as(places)[real], places[real])
        return Seen(content.index_put(at, made[real].to(content.dtype)), kept.index_put(at, there[real]))

    def wanted(self, question: Tensor, vectors: Tensor, real: Tensor) -> Tensor:
        """[S, ways] logits for pictures [S, n, H], of which `real` [S, n] slots count, under questions [S, H]."""
        count = real.sum(1, keepdim=True).to(vectors.dtype)
        return self.gate(torch.cat([question, (vectors * real[..., None]).sum(1) / count], -1)).float()

    def compress(self, vectors: Tensor, real: Tensor, focus: Tensor, wanted: Tensor, every: bool) -> Made:
        """What the best way by `wanted` [S, ways] makes. every: the others too, for their gradient alone."""
        choice, law = wanted.argmax(-1), wanted.softmax(-1)
        weight = nn.functional.one_hot(choice, len(self.ways)) + (law - law.detach())
        content, there = torch.zeros_like(vectors), torch.zeros_like(real)
        for index, way in enumerate(self.ways.values()):
            own = choice == index
            read = (own | every).nonzero()[:, 0]
            if not len(read):
                continue
            made, stands = way(vectors[read], real[read], focus[read])
            share = weight[read, index, None, None].to(made.dtype)
            content = content.index_add(0, read, (share * made).to(content.dtype))
            there[read] |= stands & own[read, None]
        return content, there


def asked(sight: Sight) -> Tensor:
    """[B, H] the mean embedding of the words of each prompt."""
    slots = torch.arange(sight.image.shape[1], device=sight.image.device)
    words = (~sight.image & (slots < sight.prompt[:, None]))[..., None].to(sight.embeddings.dtype)
    return (sight.embeddings * words).sum(1) / words.sum(1).clamp(min=1)


class SpecVlm(SightDrafter):
    """Drafts a dynamic tree with a `SpecVlmHead`."""

    method = "specvlm"
    source = "SpecVLM, arXiv 2509.11815"
    noun = "SpecVLM"
    net_class: ClassVar[type[HeadNet]] = SpecVlmHead
