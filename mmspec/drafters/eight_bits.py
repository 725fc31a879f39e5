"""A drafter's weights on disk in half the room: matrices of eight-bit numbers with a scale per row.

What is loaded is an ordinary network in the target's dtype, with weights at most half a step off. Drafts decide
nothing, so a little acceptance (tau) is all that can change. Layers that stay in eight bits in memory are another
thing: `mmspec.drafters.precision`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.drafters.precision import rounded

SCALE = ".scale"
"""Ends the name of the scales [.., O, 1] of the matrix [.., O, I] with the name before it."""


def pack(file: Path) -> None:
    """Rewrite a file of weights. Vectors and whole numbers stay as they are."""
    packed: dict[str, Tensor] = {}
    for name, weight in load_file(file).items():
        packed[name] = weight
        if weight.ndim > 1 and weight.is_floating_point():
            packed[name], packed[name + SCALE] = rounded(weight)
    save_file(packed, file)


def read(file: Path) -> dict[str, Tensor]:
    """The weights in a file, packed or not; those that were packed in float32."""
    weights = load_file(file)
    for name in [name for name, weight in weights.items() if weight.dtype == torch.int8]:
        weights[name] = weights[name] * weights.pop(name + SCALE)
    return weights
