"""Where `mar-mini` begins to learn.

With the published start, small noise, what blocks add drowns the places before they are learnt: after 300 updates
tokens did not look at the words that name their place yet, with waves they did after 100.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mmspec.image_ar.mar_model import Mar


@torch.no_grad()
def placed_by_waves(model: Mar) -> Mar:
    """The model, its places as waves along the slots, the rows and the columns, its words as loud as these. Its hidden
    size is a multiple of 4."""
    slots, grid, size = model.config.buffer, model.config.grid, model.config.hidden_size
    lines = waves(grid, size // 2)
    squares = torch.cat([lines.repeat_interleave(grid, 0), lines.repeat(grid, 1)], -1)
    places = torch.cat([waves(slots, size), squares])
    for weight in (model.encoder_pos_embed_learned, model.decoder_pos_embed_learned):
        weight.copy_(places)
    model.diffusion_pos_embed_learned.copy_(squares)
    nn.init.normal_(model.class_emb.weight)
    return model


def waves(count: int, size: int) -> Tensor:
    """[count, size] sines and cosines of places on a line, size even, from the shortest wave that tells neighbours
    apart to one twice as long as the line."""
    lengths = 4.0 * (count / 2) ** torch.linspace(0, 1, size // 2)
    angles = 2 * math.pi * torch.arange(count)[:, None] / lengths
    return torch.cat([angles.sin(), angles.cos()], -1)
