"""From a PIL image to the colours that a picture encoder takes, and from those that a decoder returns to an image."""

from __future__ import annotations

import numpy as np
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


def to_pixels(picture: Image.Image, side: int) -> Tensor:
    """[1, 3, side, side] colours in [-1, 1] of a picture, made smaller by means over boxes."""
    shrunk = picture.convert("RGB").resize((side, side), Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(shrunk, dtype=np.float32)).permute(2, 0, 1)[None] / 127.5 - 1
