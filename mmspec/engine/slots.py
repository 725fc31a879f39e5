"""Where a tree stands in a static buffer of keys and values, as the attention function is told it.

The nodes of the round lie in slots 0 .. N-1, always at the same addresses; a row's committed tokens lie from slot
`front` on, one after the other. What a node may see is then its ancestors among the first slots and a plain prefix
behind them: work follows the true length, whatever the size of the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

WORD = 64
"""Bits of an ancestor word."""


@dataclass
class TreeSlots:
    """One round's tree in a buffer [B, kv heads, S, D].

    nodes: N, at most `front`. front: the slot of the first committed token.
    lengths: [B] int64, committed tokens of each row. ancestors: [B, N, N] bool, see `mmspec.contract.Draft`.
    depth: [B, N] int64; a node of a row with n committed tokens stands at position n + depth.
    words: [B, N, W] int64, the rows of `ancestors` as words of 64 bits: bit j % 64 of word j // 64 is node j.
    """

    nodes: int
    front: int
    lengths: Tensor
    ancestors: Tensor
    depth: Tensor
    words: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.words = ancestor_words(self.ancestors)

    def visible(self, slots: int, window: int | None = None) -> Tensor:
        """[B, N, slots] bool: which slots of a buffer of that size each node sees.

        Args: window: how many positions a sliding layer sees, its own included; None for all.
        """
        slot = torch.arange(slots, device=self.depth.device)
        place = slot - self.front  # of a committed token; for a slot of the tree it is negative
        committed = (place >= 0) & (place < self.lengths[:, None])  # [B, S]
        seen = F.pad(self.ancestors, (0, slots - self.nodes)) | committed[:, None]
        if window is None:
            return seen
        behind = torch.arange(self.nodes, slots, device=slot.device) - self.front
        stands = torch.cat(
            [self.lengths[:, None] + self.depth, behind.expand(len(self.depth), -1)], 1
        )  # [B, S] positions
        return seen & (stands[:, : self.nodes, None] - stands[:, None, :] < window)


def ancestor_words(ancestors: Tensor) -> Tensor:
    """[B, N, N] bool -> [B, N, W] int64, W words of 64 bits; bit 63 is the sign, so adding bits is or-ing them."""
    padded = F.pad(ancestors, (0, -ancestors.shape[-1] % WORD)).unflatten(-1, (-1, WORD))
    return (padded.long() << torch.arange(WORD, device=ancestors.device)).sum(-1)
