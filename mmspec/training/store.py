"""The target's hidden states on disk, within a limit of bytes: what does not fit is computed again in every epoch.

One safetensors file per answer, written whole or not at all, so a run that was killed finds what it had. Once full, the
store takes nothing more; the first answers keep their place, and no file is ever written twice.
"""

from __future__ import annotations

import logging
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.safe_files import whole

logger = logging.getLogger(__name__)


class Store:
    """Hidden states by the index of their answer.

    Args: folder: of this target, these answers and these taps alone. limit: bytes. sharers: how many processes fill it,
        each as fast as this one.
    """

    def __init__(self, folder: Path, limit: int, sharers: int = 1) -> None:
        self.folder, self.limit, self.sharers = folder, limit, sharers
        self.size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))

    def get(self, index: int) -> Tensor | None:
        """[T, taps, H] of an answer, or None if it is not there."""
        file = self.folder / f"{index}.safetensors"
        return load_file(file)["states"] if file.exists() else None

    def put(self, index: int, states: Tensor) -> None:
        """Keep the states [T, taps, H] of an answer that is not there, if there is room."""
        if self.size + self.sharers * states.nbytes > self.limit:
            return
        file = self.folder / f"{index}.safetensors"
        with whole(file) as draft:
            save_file({"states": states.contiguous().cpu()}, draft)
        self.size += self.sharers * file.stat().st_size


def say_what_is_kept(size: int, memory: int, disk: int) -> None:
    """Say what all hidden states take, and warn if what is computed once cannot all be kept.

    Args: size: bytes of all of them. memory, disk: the limits.
    """
    fits = size <= max(memory, disk)
    logger.log(
        logging.INFO if fits else logging.WARNING,
        "the hidden states of all answers take %.2f GB, %.2f GB may be kept in memory and %.2f GB on disk: %s",
        *(part / 2**30 for part in (size, memory, disk)),
        "so all are kept" if fits else "the rest is computed again in every epoch (see --memory and --disk)",
    )
