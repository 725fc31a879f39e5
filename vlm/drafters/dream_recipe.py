"""How DREAM is trained (arXiv 2505.19201): on the target's last features, its laws, and the features of a middle
layer.

Which middle layer depends on the answer: the one among the first two fifths whose attention is sharpest, by the mean
entropy of its weights over heads and positions. The second block's output learns its hidden states (adaptive
intermediate feature distillation). `insights` finds that layer, and the image slots that the target looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence

from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.layer import head_config
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.features import Features
from mmspec.training.recipe import setting
from mmspec.training.steps import drafted_slots
from mmspec.training.unroll import unroll
from mmspec.vlm.drafters.dream import Dream, DreamNet
from mmspec.vlm.drafters.lessons import Reader, SightLoss, SightRecipe, check_share
from mmspec.vlm.drafters.sight import Seen, Sight


class DreamLoss(SightLoss):
    """The loss of an EAGLE head, with the distance to the middle layer's hidden states."""

    sharpest: ClassVar[bool] = True

    def __init__(self, net: DreamNet, target: Any, features: Features, recipe: Any) -> None:
        super().__init__(net, target, features, recipe)
        self.middle: Tensor | None = None  # of the batch at hand

    def unrolled(self, seen: Seen, sight: Sight, first: int) -> list[Tensor]:
        """See `SightLoss`."""
        reader = Halfway(self.net, seen)
        found = unroll(reader.head, sight.embeddings, sight.features, first, self.recipe.unroll, self.fed)
        self.middle = reader.middle
        return found

    def __call__(self, position: Tensor, rows: list[Answered]) -> Tensor:
        """See `StepLoss`."""
        total = super().__call__(position, rows)
        assert self.middle is not None
        slots = self.middle.shape[1]
        goal = pad_sequence([insight.middle for insight in self.insights(rows)], batch_first=True)[:, 1 : slots + 1]
        drafted = drafted_slots(rows, 0, slots, 0).to(goal.device)
        return total + self.recipe.middle_weight * smooth_l1_loss(self.middle[drafted], goal[drafted].float())


@dataclass
class Halfway(Reader):
    """A reader that keeps what the second block said of the true slots. middle: [B, T, H]."""

    middle: Tensor | None = None

    def forward(self, content: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """See `Reader`."""
        assert isinstance(self.net, DreamNet)
        out, middle = self.net.both(content, positions, mask, cache)
        if self.middle is None:
            self.middle = middle
        return out


@dataclass(frozen=True, kw_only=True)
class DreamRecipe(SightRecipe):
    """As an EAGLE head's, with the hidden states of a middle layer to learn from, too."""

    unroll: int = 3
    feature_weight: float = 0.2
    middle_weight: float = setting("weight of the distance to the sharpest early layer's hidden states", 0.2)
    keep: float = setting("share of a prompt's image slots that the drafter reads", 0.75)

    method: ClassVar[str] = "dream"
    about: ClassVar[str] = (
        "DREAM: two decoder layers around a gated block that looks across at the target's features; of the picture it "
        "reads the image slots that the target looks at most (arXiv 2505.19201)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Dream
    loss_class: ClassVar[type[Any]] = DreamLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("keep", self.keep)
        if self.middle_weight < 0:
            raise InputError(f"middle_weight={self.middle_weight} is not valid: it is 0 or more")

    def network(self, target: Any, rows: Sequence[Answered]) -> DreamNet:
        """See `HeadRecipe`."""
        return DreamNet(head_config(target, self.intermediate), self.keep)
