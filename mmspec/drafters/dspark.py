"""DSpark: DFlash, whose slots are told the token before their own when the tree comes to them (arXiv 2607.05147).

The slots of a block are guessed all at once, so that none knows what was drafted in front of it. A small head corrects
what enters the output head, node by node while the tree grows, by a gated embedding of the node's own token x:

    h_i + P (sigmoid(G [h_i; E(x)]) * E(x))

It is the gated one of the paper's sequential heads, with the target's frozen embeddings and output head in the place of
two matrices as long as the vocabulary. The paper's confidence head is left out: how far a block is worth verifying,
`auto` measures (`mmspec.control`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from mmspec.drafters.dflash import BlockDrafter, BlockNet
from mmspec.drafters.growing import Expand
from mmspec.drafters.heads import HeadNet


class SparkNet(BlockNet):
    """A block drafter with the sequential head. Arguments as for `BlockNet`."""

    quiet = ("gate.", "pull.")

    def __init__(self, config: Qwen3Config, taps: Sequence[int], block: int) -> None:
        super().__init__(config, taps, block)
        size = config.hidden_size
        self.gate = nn.Linear(2 * size, size)
        self.pull = nn.Linear(size, size, bias=False)
        nn.init.zeros_(self.pull.weight)

    def told(self, hidden: Tensor, before: Tensor) -> Tensor:
        """What enters the output head, [.., H], for slots that are told the token before them.

        Args: hidden: [.., H] of the slots, as `forward` makes them. before: [.., H] embeddings of these tokens.
        """
        return hidden + self.pull(torch.sigmoid(self.gate(torch.cat([hidden, before], -1))) * before)


class DSpark(BlockDrafter):
    """Drafts a tree from the slots of a block, each node from what its parent says."""

    method = "dspark"
    source = "DSpark, arXiv 2607.05147"
    noun = "DSpark"
    net_class: ClassVar[type[HeadNet]] = SparkNet

    def laws(self, hidden: Callable[[], Tensor]) -> Expand:
        """The sequential head tells each slot what its node's own token is."""
        slots: list[Tensor] = []

        def expand(level: int, tokens: Tensor, origin: Tensor, above: Tensor) -> Tensor:
            if level == 0:
                slots[:] = [hidden()]
            here = slots[0][:, level, None].expand(-1, tokens.shape[1], -1)
            return self.head(self.net.told(here, self.target.embed(tokens)))

        return expand
