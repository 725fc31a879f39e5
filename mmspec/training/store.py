"""What the target says of answers on disk, its hidden states above all, within a limit of bytes: what does not fit is
computed again in every epoch.

One safetensors file for each, written whole or not at all, so a run that was killed finds what it had. Once full, the
store takes nothing more, and neither once the disk is; the first answers keep their place, and no file is ever written
twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.errors import reason
from mmspec.safe_files import whole

logger = logging.getLogger(__name__)


class Store:
    """Tensors by the name of what they are of.

    Args: folder: of this target, these answers and these taps alone. limit: bytes. sharers: how many processes fill it,
        each as fast as this one.
    """

    def __init__(self, folder: Path, limit: int, sharers: int = 1) -> None:
        self.folder, self.limit, self.sharers = folder, limit, sharers
        self.size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))

    def get(self, name: str) -> dict[str, Tensor] | None:
        """What is kept under a name, or None if it is not there."""
        file = self.folder / f"{name}.safetensors"
        return load_file(file) if file.exists() else None

    def put(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep what is not there, if there is room."""
        if self.size + self.sharers * sum(one.nbytes for one in tensors.values()) > self.limit:
            return
        file = self.folder / f"{name}.safetensors"
        try:
            with whole(file) as draft:
                save_file({part: one.contiguous().cpu() for part, one in tensors.items()}, draft)
        except (OSError, SafetensorError) as error:
            logger.warning(
                "hidden states cannot be stored in %s (%s): from here on they are computed in every epoch",
                self.folder,
                reason(error),
            )
            self.limit = 0
            return
        self.size += self.sharers * file.stat().st_size


def say_what_is_kept(size: int, memory: int, disk: int, processes: int = 1) -> None:
    """Say what all hidden states take, and warn if what is computed once cannot all be kept.

    Args: size: bytes of all of them, and of what is kept beside them. memory, disk: the limits. processes: that train
        together; memory, unlike the disk, is each one's own, and an epoch brings it other answers than the last.
    """
    fits = size <= (max(memory, disk) if processes == 1 else disk)
    lost = "the rest is computed again in every epoch (see --memory and --disk)"
    if processes > 1:
        lost = "each process keeps in memory what it happened to read, and computes the rest again (see --disk)"
    logger.log(
        logging.INFO if fits else logging.WARNING,
        "the hidden states of all answers take %.2f GB, %.2f GB may be kept in memory and %.2f GB on disk: %s",
        *(part / 2**30 for part in (size, memory, disk)),
        "so all are kept" if fits else lost,
    )
