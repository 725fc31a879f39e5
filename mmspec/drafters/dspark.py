"""DSpark: DFlash, whose slots are told what was drafted before them when the tree comes to them (arXiv 2607.05147).

The slots of a block are guessed all at once, so that none knows what was drafted in front of it. A small recurrent head
corrects what enters the output head, node by node while the tree grows: h is the slot's own state, x the node's token,
s what the node's parent remembers (0 at the pending token).

    gate, news, said = J [h; E(x); s],    s' = sigmoid(gate) * s + (1 - sigmoid(gate)) * tanh(news)
    h + P tanh(said)

It is the recurrent one of the paper's sequential heads, with the target's frozen embeddings and output head in the
place of two matrices as long as the vocabulary. A confidence head, exp(C tanh(said)), tells what the law of a node is
worth. The paper's says how far to verify a chain; this one has three numbers, which decide who wins the target's race
and so what a tree holds (`mmspec.drafters.children.Judged`). How many nodes are worth verifying, `auto` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from mmspec.drafters.children import Judged
from mmspec.drafters.dflash import BlockDrafter, BlockNet
from mmspec.drafters.growing import Above, Expand
from mmspec.drafters.heads import HeadNet

FAR = 3.0
"""Logarithm that no factor of a law exceeds: infinite ones would rule out words, and let in those that are."""


class SparkNet(BlockNet):
    """A block drafter with the sequential head. Arguments as for `BlockNet`."""

    quiet = ("slot.", "token.", "pull.", "worth.")

    def __init__(self, config: Qwen3Config, taps: Sequence[int], block: int) -> None:
        super().__init__(config, taps, block)
        size = config.hidden_size
        self.slot = nn.Linear(size, 3 * size)  # J's columns for h, asked for all slots at once
        self.token = nn.Linear(2 * size, 3 * size, bias=False)  # those for E(x) and s
        self.pull = nn.Linear(size, size, bias=False)
        self.worth = nn.Linear(size, 3, bias=False)
        nn.init.zeros_(self.pull.weight)
        nn.init.zeros_(self.worth.weight)

    def told(self, hidden: Tensor, slot: Tensor, token: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What enters the output head, [.., H], for slots that are told the token before them; their memory, [.., H];
        and the factors of a `Judged`, [.., 3].

        Args: hidden: [.., H] of the slots, as `forward` makes them. slot: [.., 3 H], `self.slot(hidden)`. token:
            [.., H] embeddings of these tokens. memory: [.., H] what the slots before them remember.
        """
        gate, news, said = (slot + self.token(torch.cat([token, memory], -1))).chunk(3, -1)
        kept = gate.sigmoid()
        memory = kept * memory + (1 - kept) * news.tanh()
        said = said.tanh()
        return hidden + self.pull(said), memory, self.worth(said).clamp(-FAR, FAR).exp()


class DSpark(BlockDrafter):
    """Drafts a tree from the slots of a block, each node from what its path says."""

    method = "dspark"
    source = "DSpark, arXiv 2607.05147"
    noun = "DSpark"
    net_class: ClassVar[type[HeadNet]] = SparkNet
    greedy_sharpness = 1.5  # nobody knows yet what the target says next, so its laws are a little too flat
    menu = ((1, 2), (1, 4), (1, 8), (2, 16), (4, 32))
    floor = 0.05  # of a token: a node costs a CPU less than a hundredth of a round, which emits five to nine

    def laws(self, hidden: Callable[[], Tensor]) -> Expand:
        """The sequential head tells each slot what was drafted before it."""
        embed = self.target.embed
        slots: list[tuple[Tensor, Tensor]] = []
        memory = torch.empty(0)

        def expand(level: int, tokens: Tensor, origin: Tensor, above: Above) -> Judged:
            nonlocal memory
            token = embed(tokens)
            if level == 0:
                states = hidden()
                slots[:] = zip(states.split(1, 1), self.net.slot(states).split(1, 1), strict=True)
                memory = torch.zeros_like(token)
            else:
                memory = memory.gather(1, origin[..., None].expand_as(token))
            entering, memory, factors = self.net.told(*slots[level], token, memory)
            return Judged(self.head(entering), *factors.split(1, -1))

        return expand
