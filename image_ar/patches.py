"""How pictures become the codes of `janus-mini`: each from its own patch alone.

The stock encoder sees the whole picture. Trained by itself, it put into half of the codes what lies elsewhere: codes of
bare ground announced the shapes to come, and the decoder could take them from there instead of from the caption. So a
small network of single patches finds the codes. Whoever draws needs only the stock decoder; for training, and to send
real pictures through the codes, the network lies beside the checkpoint.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from mmspec.errors import CheckpointError, one_line

NAME = "patches.safetensors"
HIDDEN = 256


class Patches(nn.Module):
    """Pictures -> the direction of each patch among those of the codes.

    Args: patch: pixels of its side. size: of a code. hidden: between.
    """

    def __init__(self, patch: int, size: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.PixelUnshuffle(patch),
            nn.Conv2d(3 * patch**2, hidden, 1),
            nn.SiLU(),
            nn.Conv2d(hidden, hidden, 1),
            nn.SiLU(),
            nn.Conv2d(hidden, size, 1),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, 3, S, S] in [-1, 1] -> unit vectors [B, side, side, d]."""
        return normalize(self.net(pixels).permute(0, 2, 3, 1), dim=-1)

    @torch.no_grad()
    def codes(self, pixels: Tensor, book: Tensor) -> Tensor:
        """[B, 3, S, S] in [-1, 1] and the codes' vectors [V, d], of which directions count -> [B, side * side]."""
        return nearest(self(pixels), normalize(book, dim=-1)).flatten(1)

    def write(self, folder: Path) -> None:
        """Put it beside a checkpoint."""
        save_file({name: weight.contiguous() for name, weight in self.state_dict().items()}, folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> Patches:
        """The network beside a checkpoint, frozen. Raises: CheckpointError: it is missing, damaged or another one."""
        try:
            weights = load_file(folder / NAME)
            hidden, inputs = weights["net.1.weight"].shape[:2]
            made = cls(math.isqrt(inputs // 3), len(weights["net.5.weight"]), hidden)
            made.load_state_dict(weights)
        except (OSError, SafetensorError, RuntimeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{folder} has no {NAME} that fits, which makes the codes of its pictures: {one_line(error)}"
            ) from error
        return made.eval().requires_grad_(False)


@torch.no_grad()
def nearest(states: Tensor, book: Tensor) -> Tensor:
    """Unit vectors [..., d] and those of the codes [V, d] -> the codes [...]."""
    return (states @ book.T).argmax(-1)
