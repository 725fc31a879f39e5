"""Medusa: several heads on the last feature guess several tokens ahead, all at once (arXiv 2401.10774).

Head i sees f_t, the feature of the last position whose token the target has read, and guesses the token i + 2 places
later (the target itself gave the next one, the pending token):

    logits_i = head(f + sum of residual blocks),  block(x) = x + SiLU(A x + b),  A and b zero at first

with the target's own frozen output head, the form that Medusa's authors recommend for large vocabularies; a projection
of its own for every head would be V x H numbers each. No head knows what another guessed, so all nodes of a level have
the same children, and the tree's shape can only be a static one; it is measured (`mmspec.drafters.static`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig

from mmspec.drafters.growing import Expand, Guess
from mmspec.drafters.heads import HeadNet
from mmspec.drafters.on_slots import SlotDrafter
from mmspec.drafters.slots import Forward, Last, Slots


class ResidualBlock(nn.Module):
    """x + SiLU(A x + b), the identity at first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[.., H] -> [.., H]."""
        return x + silu(self.linear(x))


class MedusaHeads(HeadNet):
    """The heads. levels: how many. layers: residual blocks of each. projected: whether each has an output projection of
    its own, as published ones have, instead of the target's head."""

    def __init__(self, config: LlamaConfig, levels: int, layers: int = 1, projected: bool = False) -> None:
        super().__init__(config, levels=levels, layers=layers, projected=projected)
        size = config.hidden_size
        self.heads = nn.ModuleList(nn.Sequential(*(ResidualBlock(size) for _ in range(layers))) for _ in range(levels))
        own = levels if projected else 0
        self.projections = nn.ModuleList(nn.Linear(size, config.vocab_size, bias=False) for _ in range(own))

    def forward(self, features: Tensor, levels: int | None = None) -> Tensor:
        """Features [.., H] -> what enters the output head for each level, [.., levels, H]; None for all levels."""
        return torch.stack([head(features) for head in self.heads[:levels]], -2)

    def guess(self, features: Tensor, head: nn.Module, levels: int | None = None) -> Tensor:
        """[.., levels, V] of features [.., H]; head: the target's."""
        states = self(features, levels)
        if not self.projections:
            return head(states)
        each = zip(self.projections[:levels], states.unbind(-2), strict=True)
        return torch.stack([project(state) for project, state in each], -2)


class Medusa(SlotDrafter):
    """Drafts a static tree with `MedusaHeads`."""

    method = "medusa"
    source = "Medusa, arXiv 2401.10774"
    noun = "Medusa"
    static = True
    net_class: ClassVar[type[HeadNet]] = MedusaHeads
    text: ClassVar[type[Last | Slots]] = Last

    @property
    def most(self) -> int:
        """One level per head."""
        return len(self.net.heads)

    def taps(self, target: Any) -> tuple[int, ...]:
        """The features that enter the target's head."""
        return (target.num_layers,)

    def expansion(
        self, forwards: Sequence[Forward], past: Any, read: Callable[[], Tensor], pending: Tensor
    ) -> Expand | Guess:
        """What all heads guess at once."""
        return Guess(lambda levels: self.net.guess(read(), self.head, levels))
