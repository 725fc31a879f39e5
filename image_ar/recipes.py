"""How the drafters of image models are trained (`mmspec train drafter`): on pictures that the target drew for captions.

Loss: for every place that the head drafts, the cross-entropy of the guided mix of its two rows to the target's, at the
guidance that the checkpoint usually has, and the distance of either row's estimate to the target's feature (EAGLE's
loss, with LANTERN's for guidance, arXiv 2401.15077, 2410.03355).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.contract import Needs
from mmspec.image_ar.captions import draw_groups, tell
from mmspec.image_ar.eagle import GuidedEagle, GuidedEagle1
from mmspec.image_ar.eagle_window import EagleSharing
from mmspec.image_ar.target import guide
from mmspec.sampling import Sampler, Sampling
from mmspec.training.answers import Answered
from mmspec.training.asking import prepare
from mmspec.training.eagle import EagleLoss, EagleRecipe
from mmspec.training.features import Features
from mmspec.training.questions import Question
from mmspec.training.steps import Batch
from mmspec.tree import chain


class Captions:
    """Captions of the synthetic world.

    Args: seed: name of the data set. length: how many captions.
    """

    def __init__(self, seed: str, length: int) -> None:
        self.name = f"miniworld/captions/{seed}"
        self.seed, self.length = seed, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Question:
        if not 0 <= index < self.length:
            raise IndexError(index)
        rng = random.Random(f"{self.seed}/{index}/caption")
        return Question(None, tell(draw_groups(rng), rng).text)


class GuidedFeatures(Features):
    """Hidden states of pictures: of the prompt's last token and of every code, the rows of guidance side by side."""

    def size(self, rows: list[Answered]) -> int:
        """See `Features`."""
        target = self.pipe.target
        width: int = target.hidden_size * target.model.dtype.itemsize
        pairs = 1 if target.guidance() == 1 else 2
        return sum(1 + len(row.answer) for row in rows) * pairs * width

    def _compute(self, rows: list[Answered]) -> list[Tensor]:
        """[1 + L, 1, P * H] per picture of L codes."""
        target, (tap,) = self.pipe.target, self.taps
        inputs = self._inputs(rows)
        length = max(len(row.answer) for row in rows)
        device = target.model.device
        codes = torch.tensor([row.answer + [0] * (length - len(row.answer)) for row in rows], device=device)
        sampler = Sampler(Sampling(), len(rows), device)
        state = target.prefill({**inputs, "max_new_tokens": length}, Needs(taps=(tap,)), sampler)
        states = torch.cat([state.lasts[tap], target.states(state, chain(codes))[tap]], 1)
        beside = torch.cat(states.chunk(state.pairs), -1)  # [B, 1 + L, P * H]
        return [one[: 1 + len(row.answer), None].clone() for one, row in zip(beside, rows, strict=True)]

    def _inputs(self, rows: list[Answered]) -> dict[str, Any]:
        """Model inputs of the captions."""
        return prepare(self.pipe, [self.questions[row.index] for row in rows])


class GuidedLoss(EagleLoss):
    """EAGLE's loss where a feature [P * H] is that of all rows, side by side."""

    def __init__(self, net: Any, target: Any, features: Features, recipe: Any) -> None:
        super().__init__(net, target, features, recipe)
        self.scale = target.guidance()
        self.pairs = 1 if self.scale == 1 else 2

    def __call__(self, position: Tensor, rows: list[Answered]) -> Tensor:
        """See `StepLoss`. Of a prompt only the last token's features are read."""
        return super().__call__(position, [replace(row, prompt=row.prompt[-1:]) for row in rows])

    def estimates(self, batch: Batch) -> list[Tensor]:
        """See `StepLoss`: the head runs on all rows, one below the other."""
        below = torch.cat(batch.features.chunk(self.pairs, -1))
        stacked = replace(batch, features=below, embeddings=batch.embeddings.repeat(self.pairs, 1, 1))
        return [torch.cat(estimate.chunk(self.pairs), -1) for estimate in super().estimates(stacked)]

    def target_logits(self, features: Tensor) -> Tensor:
        """[M, V] float32, guided, of features [M, P * H]."""
        below = torch.cat(features.chunk(self.pairs, -1)).to(self.target.model.dtype)
        return guide(self.target.head(below).float(), len(features), self.scale)


@dataclass(frozen=True, kw_only=True)
class GuidedEagleRecipe(EagleRecipe):
    """A head on both rows, for dynamic trees."""

    steps: int = 300
    batch: int = 8
    unroll: int = 3

    about: ClassVar[str] = (
        "An EAGLE head for a model that draws: one decoder layer that estimates the target's next feature in both rows "
        "of guidance and drafts a dynamic tree from their guided mix (arXiv 2401.15077, 2406.16858, 2410.03355)."
    )
    answers: ClassVar[dict[str, Any]] = {"sampled": 1.0, "max_new_tokens": 1 << 14}
    features_class: ClassVar[type[Features]] = GuidedFeatures
    reads_prompts: ClassVar[bool] = False
    drafter_class: ClassVar[type[Any]] = GuidedEagle
    loss_class: ClassVar[type[Any]] = GuidedLoss


@dataclass(frozen=True, kw_only=True)
class GuidedEagle1Recipe(GuidedEagleRecipe):
    """The same head, for static trees."""

    method: ClassVar[str] = "eagle"
    about: ClassVar[str] = (
        "An EAGLE head for a model that draws: one decoder layer that estimates the target's next feature in both rows "
        "of guidance and drafts a static tree, whose shape was measured, from their guided mix (arXiv 2401.15077, "
        "2410.03355, 2502.06352)."
    )
    drafter_class: ClassVar[type[Any]] = GuidedEagle1


@dataclass(frozen=True, kw_only=True)
class EagleSharingRecipe(GuidedEagleRecipe):
    """The same head, for Jacobi windows."""

    method: ClassVar[str] = "sjd-eagle"
    about: ClassVar[str] = (
        "An EAGLE head for a model that draws, which fills the new places of a Jacobi window; the other places are "
        "drawn again with Gumbel sharing (arXiv 2401.15077, 2410.01699, 2510.24211)."
    )
    drafter_class: ClassVar[type[Any]] = EagleSharing
