"""Training of EAGLE heads: estimate the target's next feature, and through the target's own head its next law.

Sources: Li et al., EAGLE (arXiv 2401.15077), section 3.2 for loss and noise; HASS (arXiv 2408.15766) for the loss on
the likeliest tokens and the alignment. Heads run on their own estimates while they learn (`mmspec.training.unroll`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from mmspec.drafters.eagle import Eagle, Eagle1, Hass
from mmspec.drafters.heads import HeadDrafter, HeadNet
from mmspec.drafters.layer import head_config
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.recipe import setting
from mmspec.training.steps import Batch, StepLoss, generator_at
from mmspec.training.unroll import UnrolledRecipe, unroll


class EagleLoss(StepLoss):
    """Distance to the target's features and cross-entropy to its laws, on estimates of several steps."""

    def estimates(self, batch: Batch) -> list[Tensor]:
        """See `StepLoss`."""
        seen = batch.features[:, : batch.slots]
        noisy = seen + self._noise(batch.position, seen)
        return unroll(self.net, batch.embeddings, noisy, batch.first, self.recipe.unroll, self.fed)

    @staticmethod
    def fed(estimate: Tensor) -> Tensor:
        """What the next step gets of an estimate: all of it, its history included."""
        return estimate

    def judge(self, estimate: Tensor, goal: Tensor, law: Tensor) -> Tensor:
        """See `StepLoss`."""
        by_feature = smooth_l1_loss(estimate, goal, reduction="none").mean(-1)
        return self.recipe.feature_weight * by_feature + self.recipe.law_weight * super().judge(estimate, goal, law)

    def _noise(self, position: int, features: Tensor) -> Tensor:
        generator = generator_at(self.recipe, position, features.device)
        filled = features.any(-1)  # behind a row's end there are zeros, which make nothing smaller
        size = (features.square().mean() * (filled.numel() / filled.sum())).sqrt()
        width = 2 * self.recipe.noise * size
        return (torch.rand(features.shape, generator=generator, device=features.device) - 0.5) * width


class HassLoss(EagleLoss):
    """EAGLE's loss, and the target's likeliest tokens once more; each step learns by itself."""

    @staticmethod
    def fed(estimate: Tensor) -> Tensor:
        """An input like any other: no gradient goes back into the step that made it."""
        return estimate.detach()

    def judge(self, estimate: Tensor, goal: Tensor, law: Tensor) -> Tensor:
        """See `StepLoss`."""
        p, tokens = law.topk(min(self.recipe.top, law.shape[-1]), dim=-1)
        log_q = self.target_logits(estimate).log_softmax(-1).gather(-1, tokens)
        return super().judge(estimate, goal, law) - self.recipe.top_weight * (p * log_q).sum(-1)


@dataclass(frozen=True, kw_only=True)
class EagleRecipe(UnrolledRecipe):
    """How an EAGLE head is trained."""

    feature_weight: float = setting("weight of SmoothL1 between estimate and feature (published: 1.0)", 0.1)
    law_weight: float = setting("weight of the cross-entropy to the target's law (published: 0.1)", 1.0)
    noise: float = setting(
        "half the width of the uniform noise on the features, relative to their root mean square", 0.1
    )

    method: ClassVar[str] = "eagle2"
    about: ClassVar[str] = (
        "An EAGLE head: one decoder layer that estimates the target's next feature and drafts a dynamic tree with the "
        "target's own embeddings and output head (arXiv 2401.15077, 2406.16858)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Eagle
    loss_class: ClassVar[type[Any]] = EagleLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.feature_weight, self.law_weight, self.noise) < 0 or self.feature_weight + self.law_weight == 0:
            raise InputError(
                "the weights of an EAGLE loss and its noise are 0 or more, and one of the weights is positive"
            )

    def network(self, target: Any, rows: Sequence[Answered]) -> HeadNet:
        """See `HeadRecipe`."""
        return self.drafter_class.net_class(head_config(target, self.intermediate))


@dataclass(frozen=True, kw_only=True)
class Eagle1Recipe(EagleRecipe):
    """EAGLE as it was first published: true features alone, and mostly the distance to the next one."""

    feature_weight: float = 1.0
    law_weight: float = 0.1
    unroll: int = 1

    method: ClassVar[str] = "eagle"
    about: ClassVar[str] = (
        "An EAGLE head: one decoder layer that estimates the target's next feature and drafts a static tree, whose "
        "shape was measured, with the target's own embeddings and output head (arXiv 2401.15077)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Eagle1


@dataclass(frozen=True, kw_only=True)
class HassRecipe(EagleRecipe):
    """HASS: three aligned steps of equal weight."""

    feature_weight: float = 1.0
    law_weight: float = 0.1
    unroll: int = 3
    decay: float = 1.0
    top: int = setting("how many of the target's likeliest tokens count once more", 10)
    top_weight: float = setting("how much they count", 1.0)

    method: ClassVar[str] = "hass"
    about: ClassVar[str] = (
        "An EAGLE head that was trained on its own estimates and on the target's likeliest tokens; it drafts a dynamic "
        "tree (HASS, arXiv 2408.15766)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Hass
    loss_class: ClassVar[type[Any]] = HassLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top < 1 or self.top_weight < 0:
            raise InputError(f"HASS needs top >= 1 and top_weight >= 0, got {self.top} and {self.top_weight}")
