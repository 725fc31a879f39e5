"""What stands where: the codes of a picture are asked what the caption puts into the cell that they draw.

The codes themselves ask this, too, but at few of their places and behind the grain of the grounds: a decoder that had
learnt from 75,000 pictures knew the row of "at the middle left" and not its column, and drew a star too many. Only the
loss knows of this: the model stays the stock one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmspec.image_ar.pretrain.captions import GRID, INKS, MOST_THINGS
from mmspec.image_ar.pretrain.world import UNTOLD
from mmspec.miniworld.facts import SHAPES
from mmspec.training.places import sharpened


def content_loss(states: Tensor, shapes: Tensor, colors: Tensor, coming: Tensor) -> Tensor:
    """Cross-entropy of the shape and the colour that the caption puts into each code's cell, and of how many things are
    still to come, read off the first features of what stands for the code. 0 where nothing is told.

    Args: states: [B, side * side, D], row by row. shapes, colors: [B, cells]; coming: [B, side, side]; as
        `mmspec.image_ar.pretrain.world.collate` makes them, or UNTOLD.
    """
    said = sharpened(states)
    cells = cells_of(math.isqrt(states.shape[1]), states.device)
    asked = [
        (shapes[:, cells], 1 + len(SHAPES)),
        (colors[:, cells], len(INKS)),
        (coming.flatten(1), 1 + MOST_THINGS),
    ]
    loss, first = states.sum() * 0.0, 0
    for labels, kinds in asked:
        logits = said[..., first : first + kinds].flatten(0, 1)
        told = (labels != UNTOLD).sum().clamp(min=1)
        loss = loss + cross_entropy(logits, labels.flatten(), ignore_index=UNTOLD, reduction="sum") / told
        first += kinds
    return loss


def cells_of(side: int, device: torch.device | None = None) -> Tensor:
    """[side * side] the cell that the middle of each square of a picture lies in, both row by row."""
    lines = ((torch.arange(side, device=device) + 0.5) * GRID / side).long()
    return (lines[:, None] * GRID + lines).flatten()
