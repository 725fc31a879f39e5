"""Training of DSpark: DFlash's, where each slot is told the answer's own tokens before it (arXiv 2607.05147)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.drafters.dflash import BlockNet
from mmspec.drafters.dspark import DSpark, SparkNet
from mmspec.drafters.heads import HeadDrafter
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.dflash import DFlashLoss, DFlashRecipe


class DSparkLoss(DFlashLoss):
    """See `DFlashLoss`."""

    net: SparkNet
    recipe: DSparkRecipe

    def entering(self, hidden: Tensor, before: Tensor) -> list[tuple[float, Tensor]]:
        """Slots that were told the answer's own tokens before them, and, where `untold` counts, as they were."""
        with torch.no_grad():
            embeddings = self.target.embed(before).to(hidden.dtype)
        slots, memory, made = self.net.slot(hidden), torch.zeros_like(hidden[:, :, 0]), []
        for here, slot, token in zip(hidden.unbind(2), slots.unbind(2), embeddings.unbind(2), strict=True):
            entering, memory = self.net.told(here, slot, token, memory)
            made.append(entering)
        told = (1.0, torch.stack(made, 2))
        return [told, (self.recipe.untold, hidden)] if self.recipe.untold else [told]


@dataclass(frozen=True, kw_only=True)
class DSparkRecipe(DFlashRecipe):
    """How a block drafter with a sequential head is trained. Fields as in `DFlashRecipe`.

    alone: the head learns alone, beside a block drafter that stays as it was, so that the weights serve `dflash`, too.
    untold: what the loss of slots that are told nothing counts beside that of those that are; above 0 the block goes
        on learning to guess on its own, so that the weights serve `dflash`, too.
    """

    alone: bool = False
    untold: float = 0.0

    method: ClassVar[str] = "dspark"
    about: ClassVar[str] = (
        "DSpark: a few layers over hidden states of several depths of the target guess a block of tokens in one pass, "
        "and a small recurrent head corrects each guess by what was drafted before it (arXiv 2607.05147)."
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
        net = super().network(target, rows)
        for name, weight in net.named_parameters():
            weight.requires_grad_(not self.alone or name.startswith(SparkNet.quiet))
        return net
