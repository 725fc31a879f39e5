"""Ways to make fewer vectors of a picture, for drafters that choose among them (SpecVLM, arXiv 2509.11815).

A picture is one run of image slots, in reading order. What a way makes of it stands in some of the run's own slots, so
that positions stay; the other slots are left out.

    Prune      the slots that the target looks at most
    Pool       the mean of every few slots, in the last of them
    Convolve   learned weights over every few slots, then a linear map; begins as the mean
    Resample   learned queries over all slots, in the run's last ones
    Nothing    the words are enough
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LlamaConfig

from mmspec.vlm.drafters.sight import most
from mmspec.vlm.drafters.vispec import Adaptor

Made = tuple[Tensor, Tensor]
"""[S, n, H] what stands in the slots of S pictures, zero where nothing does, and [S, n] bool, where something does."""


class Prune(nn.Module):
    """Args: ratio: one slot in so many is kept (rounded up)."""

    def __init__(self, ratio: int) -> None:
        super().__init__()
        self.share = 1 / ratio

    def forward(self, vectors: Tensor, real: Tensor, focus: Tensor) -> Made:
        """Made of pictures [S, n, H]; real: [S, n] bool, False for padding. focus: [S, n] the attention they get."""
        kept = most(focus, real, self.share)
        return vectors * kept[..., None], kept


class Pool(nn.Module):
    """Args: ratio: how many slots one vector stands for."""

    def __init__(self, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, vectors: Tensor, real: Tensor, focus: Tensor) -> Made:
        """See `Prune`."""
        counts = folded(real[..., None].to(vectors.dtype), self.ratio).sum(2).clamp(min=1)
        return spread(folded(vectors * real[..., None], self.ratio).sum(2) / counts, real, self.ratio)


class Convolve(nn.Module):
    """Args: size: H. ratio: kernel and stride."""

    def __init__(self, size: int, ratio: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.full((ratio, size), 1 / ratio))
        self.mix = nn.Linear(size, size)
        nn.init.eye_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, vectors: Tensor, real: Tensor, focus: Tensor) -> Made:
        """See `Prune`."""
        ratio = len(self.kernel)
        windows = folded(vectors * real[..., None], ratio)
        return spread(self.mix((windows * self.kernel).sum(2)), real, ratio)


class Resample(nn.Module):
    """Args: config: for its heads. queries: vectors per picture."""

    def __init__(self, config: LlamaConfig, queries: int) -> None:
        super().__init__()
        self.adaptor = Adaptor(config, queries)

    def forward(self, vectors: Tensor, real: Tensor, focus: Tensor) -> Made:
        """See `Prune`; a picture with fewer slots than there are queries gets the last answers alone."""
        found = self.adaptor(vectors, real)
        places = real.sum(1, keepdim=True) - found.shape[1] + torch.arange(found.shape[1], device=real.device)
        return placed(found, places, places >= 0, real)


class Nothing(nn.Module):
    """Leaves the picture out."""

    def forward(self, vectors: Tensor, real: Tensor, focus: Tensor) -> Made:
        """See `Prune`."""
        return torch.zeros_like(vectors), torch.zeros_like(real)


def folded(values: Tensor, ratio: int) -> Tensor:
    """[S, m, ratio, ..] of [S, n, ..], the last group filled up with zeros."""
    return pad(values, (0, 0, 0, -values.shape[1] % ratio)).unflatten(1, (-1, ratio))


def spread(vectors: Tensor, real: Tensor, ratio: int) -> Made:
    """Vectors [S, m, H] of groups of slots, each in its group's last real slot."""
    starts = torch.arange(vectors.shape[1], device=real.device) * ratio
    count = real.sum(1, keepdim=True)
    return placed(vectors, (starts + ratio).clamp(max=count) - 1, starts < count, real)


def placed(vectors: Tensor, places: Tensor, there: Tensor, real: Tensor) -> Made:
    """Vectors [S, m, H] at places [S, m] of the slots, those that are there [S, m] bool."""
    at = places.clamp(min=0)
    made = vectors.new_zeros(*real.shape, vectors.shape[-1])
    made = made.scatter_add(1, at[..., None].expand_as(vectors), vectors * there[..., None])
    return made, torch.zeros_like(real, dtype=torch.long).scatter_add(1, at, there.long()) > 0
