"""Training of DSpark: DFlash's, where each slot is told the answer's own tokens before it (arXiv 2607.05147).

Beside the target's law a slot learns to say who wins the target's races with it: greedily, and with noise as the
coupled rule has it at temperature 1. The law alone has no gradient for the confidence head. The races move the law a
little, too: towards the one that drafts best, which is not quite the likeliest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmspec.drafters.children import race
from mmspec.drafters.dflash import BlockNet
from mmspec.drafters.dspark import DSpark, SparkNet
from mmspec.drafters.heads import HeadDrafter
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.chunks import in_chunks
from mmspec.training.dflash import DFlashLoss, DFlashRecipe
from mmspec.training.features import as_in_use, head_logits
from mmspec.training.recipe import setting


class DSparkLoss(DFlashLoss):
    """See `DFlashLoss`."""

    net: SparkNet
    recipe: DSparkRecipe

    def losses(self, hidden: Tensor, before: Tensor, drafted: Tensor, goal: Tensor) -> Tensor:
        """Slots that were told the answer's own tokens before them, and, where `untold` counts, as they were."""
        entering, factors = self.told(hidden, before)
        found = in_chunks(self.raced, self.target.vocab_size, entering[drafted], factors[drafted], goal)
        if not self.recipe.untold:
            return found
        return found + self.recipe.untold * super().losses(hidden, before, drafted, goal)

    def told(self, hidden: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """What enters the output head, [B, J, slots, H], for slots behind the tokens `before` [B, J, slots], and the
        factors [B, J, slots, 3] of their laws."""
        with as_in_use(before.device):
            embeddings = self.target.embed(before).to(hidden.dtype)
        slots, memory, made = self.net.slot(hidden), torch.zeros_like(hidden[:, :, 0]), []
        for here, slot, token in zip(hidden.unbind(2), slots.unbind(2), embeddings.unbind(2), strict=True):
            entering, memory, factors = self.net.told(here, slot, token, memory)
            made.append((entering, factors))
        entering, factors = (torch.stack(part, 2) for part in zip(*made, strict=True))
        return entering, factors

    def raced(self, estimate: Tensor, factors: Tensor, goal: Tensor) -> Tensor:
        """The losses [M] of what enters the output head, [M, H], with the factors of its law [M, 3], in the place of
        features `goal` [M, H]: of the law, and of who wins with noise and without."""
        scores = head_logits(self.target, estimate).log_softmax(-1)
        with as_in_use(goal.device):
            goals = head_logits(self.target, goal)
            noise = noise_like(goals)
        trust, sharpness, greedy = factors.split(1, -1)
        law = -(goals.softmax(-1) * scores).sum(-1)
        raced = race(scores, noise, trust * DSpark.trust, sharpness)
        drawn = cross_entropy(raced, (goals + noise).argmax(-1), reduction="none")
        best = scores * (greedy * DSpark.greedy_sharpness)
        return law + drawn + cross_entropy(best, goals.argmax(-1), reduction="none")


def noise_like(scores: Tensor) -> Tensor:
    """Gumbel noise, from the global generator: what is computed twice for want of memory, and runs that go on, find it
    as it was."""
    return -torch.empty_like(scores).exponential_().log()


@dataclass(frozen=True, kw_only=True)
class DSparkRecipe(DFlashRecipe):
    """How a block drafter with a sequential head is trained. Alone, the head learns beside a block that stays the same.
    The loss of slots that are told nothing counts beside the three of those that are (law and races): with it the block
    goes on learning to guess on its own."""

    alone: bool = setting("the head learns alone; then the weights serve dflash, too", False)
    untold: float = setting("weight of the loss of slots told nothing; above 0 the weights serve dflash, too", 0.0)

    method: ClassVar[str] = "dspark"
    about: ClassVar[str] = (
        "DSpark: a few layers over hidden states of several depths of the target guess a block of tokens in one pass, "
        "and a small recurrent head corrects each guess by what was drafted before it, and says how sure it is "
        "(arXiv 2607.05147)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = DSpark
    loss_class: ClassVar[type[Any]] = DSparkLoss
    net_class: ClassVar[type[BlockNet]] = SparkNet

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.untold <= 100:
            raise InputError(f"untold={self.untold} is not valid: it lies between 0 and 100")
        if self.alone and self.untold:
            raise InputError("a head that learns alone teaches its block nothing: give --alone or --untold")

    def network(self, target: Any, rows: Sequence[Answered]) -> BlockNet:
        """See `HeadRecipe`."""
        return self._resting(super().network(target, rows))

    def begin(self, start: Any, target: Any) -> BlockNet:
        """See `Recipe`."""
        return self._resting(super().begin(start, target))

    def _resting(self, net: BlockNet) -> BlockNet:
        """The network, of which only the head learns if that is asked for."""
        for name, weight in net.named_parameters():
            weight.requires_grad_(not self.alone or name.startswith(SparkNet.quiet))
        return net
