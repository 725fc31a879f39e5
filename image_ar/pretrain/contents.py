"""What stands where: codes are asked what stands in the cell that they draw, how many things are to come, and which.

The codes themselves ask this, too, but at few of their places and behind the grain of the grounds: a decoder that had
learnt from 75,000 pictures knew the row of "at the middle left" and not its column, and drew a star too many. Where the
caption leaves places open the labels are those of the picture: what is learnt is how likely each content is. Only the
loss knows of this: the model stays the stock one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmspec.image_ar.captions import CELLS, GRID, INKS, MOST_THINGS, Cell, Kind
from mmspec.image_ar.pretrain.architecture import SIDE
from mmspec.miniworld.facts import SHAPES
from mmspec.pretrain.places import sharpened

UNTOLD = -100
"""A label that is not asked for: `cross_entropy` leaves it out."""
ANSWERS = (1 + len(SHAPES), len(INKS), 1 + MOST_THINGS, len(SHAPES), len(INKS))
"""How many answers each question has: shape and colour in the code's cell, things to come, shape and colour of the
next one."""


def contents(seen: Mapping[Cell, Kind]) -> tuple[Tensor, Tensor]:
    """Of each cell, row by row: its shape, 0 for nothing, and its colour, UNTOLD for that of nothing. [9] each."""
    kinds = [seen.get(cell) for cell in CELLS]
    shapes = [0 if kind is None else 1 + SHAPES.index(kind.shape) for kind in kinds]
    colors = [UNTOLD if kind is None else INKS.index(kind.color) for kind in kinds]
    return torch.tensor(shapes), torch.tensor(colors)


def questions(seen: Mapping[Cell, Kind], tops: Mapping[Cell, int]) -> Tensor:
    """[questions, side * side] the labels of every code. tops: the code that ends the first row of each thing; behind
    it the thing is no longer to come."""
    shapes, colors = contents(seen)
    cells = cells_of(SIDE)
    order = sorted(tops, key=lambda cell: tops[cell])
    past = torch.searchsorted(torch.tensor([tops[cell] for cell in order]), torch.arange(SIDE * SIDE))
    following = torch.tensor([row * GRID + column for row, column in order] + [GRID * GRID])[past]
    nothing = torch.tensor([UNTOLD])
    next_shapes, next_colors = torch.cat([shapes - 1, nothing]), torch.cat([colors, nothing])
    return torch.stack(
        [shapes[cells], colors[cells], len(order) - past, next_shapes[following], next_colors[following]]
    )


def own_cells(labels: Tensor, side: int) -> Tensor:
    """Of labels [B, questions, SIDE * SIDE], shape and colour in the cell of each square of another grid: [B, 2,
    side * side]."""
    middles = (2 * torch.arange(GRID) + 1) * SIDE // (2 * GRID)
    told = labels[:, :2].unflatten(-1, (SIDE, SIDE))[:, :, middles[:, None], middles].flatten(2)
    return told[:, :, cells_of(side).to(labels.device)]


def content_loss(states: Tensor, labels: Tensor, answers: tuple[int, ...] = ANSWERS) -> Tensor:
    """Cross-entropy of the answers, read off the first features of what stands for each code. 0 where nothing is told.

    Args: states: [B, places, D], row by row, D at least as many as there are answers. labels: [B, Q, places] of the
        first Q questions, or UNTOLD. answers: how many each question has.
    """
    said = sharpened(states).split([*answers, states.shape[-1] - sum(answers)], -1)
    parts = zip(said, labels.unbind(1), strict=False)  # features behind the answers are not read
    return torch.stack([mean_loss(logits.flatten(0, 1), right.flatten()) for logits, right in parts]).sum()


def mean_loss(law: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over what is told; 0 where nothing is."""
    return cross_entropy(law, labels, ignore_index=UNTOLD, reduction="sum") / (labels != UNTOLD).sum().clamp(min=1)


def cells_of(side: int) -> Tensor:
    """[side * side] the cell that the middle of each square of a picture lies in, both row by row."""
    lines = ((torch.arange(side) + 0.5) * GRID / side).long()
    return (lines[:, None] * GRID + lines).flatten()
