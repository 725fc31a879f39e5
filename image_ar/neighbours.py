"""Which codes of a codebook look alike: for each one its nearest others, for relaxed rules.

Only as many columns as a rule needs are kept, as 32-bit integers. A table is made anew for each model that is loaded:
one of 16384 codes with 1000 columns takes ten seconds on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.errors import InputError

CHUNK = 1024


@dataclass(frozen=True)
class Neighbours:
    """nearest: [codes, k] int32, the other codes by growing distance, equal ones by index."""

    nearest: Tensor

    @classmethod
    def of(cls, codebook: Tensor, count: int) -> Neighbours:
        """The table of a codebook [codes, d] by Euclidean distance, with `count` columns (or all, if there are fewer).

        Distances are those of the vectors as given: pass normalised ones where the picture decoder normalises them.
        Raises: InputError: no finite vectors.
        """
        if codebook.ndim != 2 or not torch.isfinite(codebook).all():
            raise InputError(f"a codebook must be finite vectors [codes, d], got a tensor {list(codebook.shape)}")
        vectors = codebook.float()
        count = min(count, len(vectors) - 1)
        every = torch.arange(len(vectors), device=vectors.device)
        rows = []
        for start in range(0, len(vectors), CHUNK):
            part = vectors[start : start + CHUNK]
            distance = torch.cdist(part, vectors, compute_mode="donot_use_mm_for_euclid_dist")
            # The bits of a float that is not negative grow with it: with the index behind them all are different, so
            # that the smallest are the same ones wherever they are looked for.
            ranks = (distance.view(torch.int32).long() << 32) + every
            ranks.diagonal(start).fill_(torch.iinfo(torch.int64).max)
            rows.append(ranks.topk(count, largest=False).indices.int())
        return cls(torch.cat(rows))
