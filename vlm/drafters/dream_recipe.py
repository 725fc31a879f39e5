"""How DREAM is trained (arXiv 2505.19201): on the target's last features, its laws, and the features of a middle
layer.

Which middle layer depends on the answer: the one among the first two fifths whose attention is sharpest, by the mean
entropy of its weights over heads and positions. The second block's output learns its hidden states (adaptive
intermediate feature distillation). To find it, each answer is read once more, with all these layers watched; that
reading also says which image slots the target looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence

from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.layer import head_config
from mmspec.errors import InputError
from mmspec.focus import Focus, watching
from mmspec.training.answers import Answered, prepare
from mmspec.training.features import Features
from mmspec.training.steps import drafted_slots
from mmspec.training.unroll import unroll
from mmspec.vlm.drafters.dream import Dream, DreamNet
from mmspec.vlm.drafters.lessons import Reader, SightLoss, SightRecipe, check_share
from mmspec.vlm.drafters.sight import Seen, Sight


@dataclass(frozen=True)
class Insight:
    """What was seen while the target read an answer. focus: [T]. layer: whose attention was sharpest, counted from 1.
    middle: [T, H] what left that layer."""

    focus: Tensor
    layer: int
    middle: Tensor


class Insights:
    """Insights of answers, kept as far as the memory of `features` allows; else seen again in every epoch."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self.kept: dict[int, Insight] = {}

    def __call__(self, rows: list[Answered]) -> list[Insight]:
        """Those of some answers; the missing ones are read in one batch."""
        missing = [row for row in rows if row.index not in self.kept]
        fresh = dict(zip((row.index for row in missing), self._look(missing), strict=True)) if missing else {}
        found = [fresh.get(row.index) or self.kept[row.index] for row in rows]
        for index, insight in fresh.items():
            if self.features.free >= insight.middle.nbytes:
                self.features.free -= insight.middle.nbytes
                self.kept[index] = insight
        return found

    @torch.no_grad()
    def _look(self, rows: list[Answered]) -> list[Insight]:
        pipe = self.features.pipe
        target, texts = pipe.target, [row.ids for row in rows]
        layers = list(range(early(target.num_layers)))
        focus, sharpness = Focus([row.start for row in rows]), Sharpness([len(text) for text in texts])
        inputs = prepare(pipe, [self.features.questions[row.index] for row in rows])
        last = target.num_layers - 1

        def note(layer: int, weights: Tensor) -> None:
            if layer == last:
                focus.note(layer, weights)
            if layer in layers:
                sharpness.note(layer, weights)

        with watching(target.model, sorted({*layers, last}), note):
            _, heard = target.read(inputs, texts, tuple(layer + 1 for layer in layers))
        chosen = sharpness.sharpest()
        middles = [heard.taps[layer + 1][row, : len(texts[row])].clone() for row, layer in enumerate(chosen)]
        looks = [one[: len(text)] for one, text in zip(focus.mean(), texts, strict=True)]
        return [Insight(look, layer + 1, middle) for look, layer, middle in zip(looks, chosen, middles, strict=True)]


class Sharpness:
    """The mean entropy of each row's attention, layer by layer. lengths: positions per row."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.entropy: dict[int, Tensor] = {}  # layer -> [B], summed over heads and positions
        self.read: dict[int, int] = {}

    def note(self, layer: int, weights: Tensor) -> None:
        """See `mmspec.focus.watching`."""
        start = self.read.get(layer, 0)
        place = start + torch.arange(weights.shape[2], device=weights.device)
        real = place < torch.tensor(self.lengths, device=weights.device)[:, None]
        entropy = -torch.special.xlogy(weights.float(), weights.float()).sum(-1)  # [B, heads, N]
        self.entropy[layer] = self.entropy.get(layer, 0) + (entropy * real[:, None]).sum((1, 2))
        self.read[layer] = start + weights.shape[2]

    def sharpest(self) -> list[int]:
        """The layer of least entropy, for each row; all layers count the same heads and positions."""
        layers = sorted(self.entropy)
        best = torch.stack([self.entropy[layer] for layer in layers]).argmin(0)
        return [layers[index] for index in best.tolist()]


def early(num_layers: int) -> int:
    """How many layers are asked for their entropy: the first two fifths."""
    return max(1, num_layers * 2 // 5)


class DreamLoss(SightLoss):
    """The loss of an EAGLE head, with the distance to the middle layer's hidden states."""

    def __init__(self, net: DreamNet, target: Any, features: Features, recipe: Any) -> None:
        super().__init__(net, target, features, recipe)
        self.insights = Insights(features)
        self.middle: Tensor | None = None  # of the batch at hand

    def focus(self, rows: list[Answered]) -> list[Tensor]:
        """See `SightLoss`."""
        return [insight.focus for insight in self.insights(rows)]

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
    """keep: share of the image slots that the drafter reads. middle_weight: of the distance to the sharpest early
    layer's hidden states."""

    unroll: int = 3
    feature_weight: float = 0.2
    middle_weight: float = 0.2
    keep: float = 0.75

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

    def network(self, target: Any, rows: Sequence[Answered]) -> DreamNet:  # type: ignore[override]
        """See `HeadRecipe`."""
        return DreamNet(head_config(target, self.intermediate), self.keep)
