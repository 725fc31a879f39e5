"""From the colours that a picture decoder returns to a PIL image, whole or as far as it is known."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

GREY = 0.0
"""The colour of what is not known yet, in [-1, 1]."""


def to_picture(pixels: Tensor, known: Tensor) -> Image.Image:
    """A picture from colours [3, H, W] in [-1, 1]; cut off above and below, rounded down as in transformers.

    Args: known: [rows, columns] bool, the places of the grid that have a token.
    """
    (rows, columns), (height, width) = known.shape, pixels.shape[-2:]
    seen = known.repeat_interleave(height // rows, 0).repeat_interleave(width // columns, 1)
    colours = torch.where(seen, pixels.float(), GREY) * 0.5 + 0.5
    return Image.fromarray((colours * 255).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).cpu().numpy())
