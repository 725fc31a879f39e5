"""Training of Medusa's and Hydra's heads: every head guesses the target's law of its own token.

Medusa (arXiv 2401.10774) learns the tokens themselves; here, as Hydra does (arXiv 2402.05109), the heads learn the law
from which the target drew them, which says more with every token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mmspec.drafters.heads import HeadDrafter, HeadNet
from mmspec.drafters.hydra import Hydra, HydraPlus
from mmspec.drafters.layer import head_config
from mmspec.drafters.medusa import Medusa
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.recipe import setting
from mmspec.training.steps import Batch, HeadRecipe, StepLoss


class HeadsLoss(StepLoss):
    """Cross-entropy of every head to the target's law."""

    def judged_in(self, step: int) -> Callable[[Tensor, Tensor], Tensor]:
        """See `StepLoss`; of published heads each has an output projection of its own."""
        own = getattr(self.net, "projections", ())
        return partial(self.projected, own[step]) if own else super().judged_in(step)

    def projected(self, project: nn.Module, estimate: Tensor, goal: Tensor) -> Tensor:
        """As `judged`, by an output projection."""
        return cross_entropy(project(estimate).float(), self.law(goal), reduction="none")


class MedusaLoss(HeadsLoss):
    """See `HeadsLoss`, of heads that know nothing of each other."""

    def estimates(self, batch: Batch) -> Iterator[Tensor]:
        """See `StepLoss`: the head of step s sees the feature of its root, s slots before."""
        batch = from_roots(batch)
        for step, heads in enumerate(self.net(batch.features[:, : batch.slots]).unbind(2)):
            yield batch.shifted(heads, step)


def from_roots(batch: Batch) -> Batch:
    """The same slots without those that are never a root: each head makes a state of every slot, and a prompt with
    pictures has thousands. The first root is slot `first`, or the one before where a prompt is a single token."""
    low = max(0, batch.first - 1)
    features, embeddings = batch.features[:, low:], batch.embeddings[:, low:]
    return replace(batch, features=features, embeddings=embeddings, first=batch.first - low)


class HydraLoss(HeadsLoss):
    """The same for heads that are told the tokens since the root, the true ones."""

    def estimates(self, batch: Batch) -> Iterator[Tensor]:
        """See `StepLoss`."""
        features = batch.features[:, : batch.slots]
        told = self.net(features, torch.arange(batch.slots, device=features.device)[None], None)
        for step, head in enumerate(self.net.heads):
            since = [batch.shifted(batch.embeddings, back) for back in range(step, -1, -1)]
            yield head(torch.cat([batch.shifted(told, step), *since], -1))


@dataclass(frozen=True, kw_only=True)
class ManyHeads(HeadRecipe):
    """How heads are trained."""

    levels: int = setting("how many heads there are, one for each token ahead", 5)
    layers: int = setting("layers of each head", 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.levels <= 16 or self.layers < 1:
            raise InputError(f"{self.method} has 1 to 16 levels of 1 layer or more, got {self.levels} x {self.layers}")

    def network(self, target: Any, rows: Sequence[Answered]) -> HeadNet:
        """See `HeadRecipe`."""
        return self.drafter_class.net_class(head_config(target), levels=self.levels, layers=self.layers)


@dataclass(frozen=True, kw_only=True)
class MedusaRecipe(ManyHeads):
    """Medusa-1: heads on a frozen target."""

    method: ClassVar[str] = "medusa"
    about: ClassVar[str] = (
        "Medusa: several heads on the target's last feature guess several tokens ahead and fill a static tree, whose "
        "shape was measured, with the target's own output head (arXiv 2401.10774)."
    )
    context: ClassVar[bool] = False
    drafter_class: ClassVar[type[HeadDrafter]] = Medusa
    loss_class: ClassVar[type[Any]] = MedusaLoss


@dataclass(frozen=True, kw_only=True)
class HydraRecipe(ManyHeads):
    """Hydra: heads that know what was drafted before them."""

    layers: int = 2

    method: ClassVar[str] = "hydra"
    about: ClassVar[str] = (
        "Hydra: heads on the target's last feature, each told the tokens before its own, fill a static tree, whose "
        "shape was measured, with the target's own embeddings and output head (arXiv 2402.05109)."
    )
    context: ClassVar[bool] = False
    drafter_class: ClassVar[type[HeadDrafter]] = Hydra
    loss_class: ClassVar[type[Any]] = HydraLoss


@dataclass(frozen=True, kw_only=True)
class HydraPlusRecipe(HydraRecipe):
    """Hydra++: with a decoder layer before the heads."""

    method: ClassVar[str] = "hydra++"
    about: ClassVar[str] = (
        "Hydra++: heads behind one decoder layer over the target's features, each told the tokens before its own, fill "
        "a static tree, whose shape was measured (arXiv 2402.05109)."
    )
    context: ClassVar[bool] = True
    drafter_class: ClassVar[type[HeadDrafter]] = HydraPlus
