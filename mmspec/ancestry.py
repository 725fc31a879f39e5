"""Which node of a tree stands above which."""

import torch
from torch import Tensor


def ancestors(parents: Tensor) -> Tensor:
    """[B, N] parents -> [B, N, N] bool, [b, i, j] True if j is i or above i (parents stand before children)."""
    size = parents.shape[1]
    node = torch.arange(size, device=parents.device)
    above = ((parents[..., None] == node) | (node[:, None] == node)).float()
    reach = 1
    while reach < size - 1:  # every squaring doubles how far up a node sees
        above, reach = ((above @ above) > 0).float(), 2 * reach
    return above > 0
