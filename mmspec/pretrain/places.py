"""Where in a picture: what stands for its squares is asked for their row and column.

Nothing else asks a tower where a thing lies, or a decoder that draws code by code how far it has come, and what belongs
to what in a picture depends on it. Only the loss knows of this: the model stays the stock one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

SHARPNESS = 4.0  # of the logits


def place_loss(states: Tensor) -> Tensor:
    """Cross-entropy of the row and the column of each square, read off the first features of what stands for it.

    Args: states: [N, side * side, D], row by row, D at least 2 side.
    """
    side = math.isqrt(states.shape[1])
    scaled = sharpened(states)
    places = torch.arange(side * side, device=states.device).expand(len(states), -1)
    rows, columns = places // side, places % side
    across = cross_entropy(scaled[..., :side].flatten(0, 1), rows.flatten())
    return across + cross_entropy(scaled[..., side : 2 * side].flatten(0, 1), columns.flatten())


def sharpened(states: Tensor) -> Tensor:
    """States [..., D] as logits: all of one length, whatever the layer, and sharp enough to say one thing surely."""
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6) * SHARPNESS
