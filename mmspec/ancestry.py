"""Which node of a tree stands above which."""

from functools import lru_cache

import torch
from torch import Tensor


def ancestors(parents: Tensor, levels: int | None = None) -> Tensor:
    """[B, N] parents -> [B, N, N] bool, [b, i, j] True if j is i or above i (parents stand before children).

    Args: levels: a number of levels below node 0 that no row exceeds, where it is known.
    """
    size = parents.shape[1]
    most = size - 1 if levels is None else min(levels, size - 1)
    node = torch.arange(size, device=parents.device)
    above = ((parents[..., None] == node) | (node[:, None] == node)).float()
    reach = 1
    while reach < most:  # every squaring doubles how far up a node sees
        above, reach = ((above @ above) > 0).float(), 2 * reach
    return above > 0


def in_line(rows: int, size: int, device: torch.device) -> Tensor:
    """[rows, size, size] bool: the same of chains, in which every node stands under the one before."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril().expand(rows, size, size)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # serves requests and trainings
def alone(rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Parents and depth [B, 1] and ancestors [B, 1, 1] of single nodes: always the same, so made once."""
    depth = torch.zeros(rows, 1, dtype=torch.long, device=device)
    return depth - 1, depth, (depth == 0)[..., None]
