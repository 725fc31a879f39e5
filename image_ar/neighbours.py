"""Which codes of a codebook look alike: for each one its nearest others, computed once and kept for relaxed rules.

Only as many columns as a rule needs are stored, as 32-bit integers; a saved table knows which codebook it belongs to.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mmspec.errors import CheckpointError, InputError, MismatchError, one_line
from mmspec.safe_files import whole

CHUNK = 1024


@dataclass(frozen=True)
class Neighbours:
    """nearest: [codes, k] int32, the other codes by growing distance, equal ones by index. codebook: hash of the
    vectors that they stand for."""

    nearest: Tensor
    codebook: str

    @classmethod
    def of(cls, codebook: Tensor, count: int) -> Neighbours:
        """The table of a codebook [codes, d] by Euclidean distance, with `count` columns (or all, if there are fewer).

        Distances are those of the vectors as given: pass normalised ones where the picture decoder normalises them.
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
        return cls(torch.cat(rows), codebook_hash(codebook))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a safetensors file, whole or not at all."""
        goal = Path(path)
        try:
            with whole(goal) as draft:
                save_file({"nearest": self.nearest.contiguous().cpu()}, draft, {"codebook": self.codebook})
        except OSError as error:
            raise CheckpointError(f"{goal} was not saved: {one_line(error)}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Neighbours:
        """A table that `save` wrote."""
        try:
            with safe_open(path, "pt") as file:
                nearest, origin = file.get_tensor("nearest"), (file.metadata() or {}).get("codebook")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is no table of neighbours: {one_line(error)}") from error
        if origin is None or nearest.ndim != 2 or nearest.dtype != torch.int32:
            raise CheckpointError(f"{path} is no table of neighbours: save one with Neighbours.save")
        return cls(nearest, origin)

    def on(self, device: torch.device) -> Neighbours:
        """The same table on a device."""
        return replace(self, nearest=self.nearest.to(device))

    def fit(self, codebook: Tensor) -> None:
        """Raise MismatchError unless this is the table of `codebook`."""
        if len(self.nearest) != len(codebook) or self.codebook != codebook_hash(codebook):
            raise MismatchError(
                f"the table of neighbours belongs to another codebook: it has {len(self.nearest)} codes with hash "
                f"{self.codebook[:12]}, the target's {len(codebook)} with {codebook_hash(codebook)[:12]}"
            )


def codebook_hash(codebook: Tensor) -> str:
    """SHA-256 of the vectors, as float32."""
    return hashlib.sha256(codebook.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()
