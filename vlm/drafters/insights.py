"""What the target looks at while it reads an answer: which image slots, and, for those who ask, how sharply in its
early layers.

To find out, each answer is read once more, with the last layer watched, and these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.focus import Focus, watching
from mmspec.training.answers import Answered
from mmspec.training.asking import prepare
from mmspec.training.features import Features
from mmspec.training.kept import Kept


@dataclass(frozen=True)
class Insight:
    """What was seen while the target read an answer. focus: [T]. layer: whose attention was sharpest, counted from 1.
    middle: [T, H] what left that layer. Where early layers were not watched they are 0 and [T, 0]."""

    focus: Tensor
    layer: int
    middle: Tensor

    @property
    def nbytes(self) -> int:
        """Of its tensors."""
        return self.focus.nbytes + self.middle.nbytes

    def to(self, device: torch.device) -> Insight:
        """The same on a device."""
        return Insight(self.focus.to(device), self.layer, self.middle.to(device))


class Insights(Kept[Insight]):
    """Insights of answers, in the memory and the store of `features`.

    Args: sharpest: whether early layers are watched, too, and the states of the sharpest one kept.
    """

    def __init__(self, features: Features, sharpest: bool) -> None:
        self.features, self.sharpest = features, sharpest
        self.kept, self.last, self.device = {}, {}, features.device

    @property
    def pool(self) -> Features:
        """See `Kept`."""
        return self.features

    def __call__(self, rows: list[Answered]) -> list[Insight]:
        """Those of some answers."""
        return self.recall(rows)

    def _name(self, index: int) -> str:
        return f"{index}-{'sharpest' if self.sharpest else 'focus'}"

    def _packed(self, one: Insight) -> dict[str, Tensor]:
        return {"focus": one.focus, "layer": torch.tensor(one.layer), "middle": one.middle}

    def _unpacked(self, tensors: Mapping[str, Tensor]) -> Insight:
        return Insight(tensors["focus"], int(tensors["layer"]), tensors["middle"])

    def _compute(self, rows: list[Answered]) -> list[Insight]:
        pipe = self.features.pipe
        target, texts = pipe.target, [row.ids for row in rows]
        layers = list(range(early(target.num_layers))) if self.sharpest else []
        focus, sharpness = Focus([row.start for row in rows]), Sharpness([len(text) for text in texts])
        inputs = prepare(pipe, [self.features.questions[row.index] for row in rows])
        last = target.num_layers - 1

        def note(layer: int, weights: Tensor) -> None:
            if layer == last:
                focus.note(layer, weights)
            if layer in layers:
                sharpness.note(layer, weights)

        with watching(target.model, sorted({*layers, last}), note):
            heard = target.read(inputs, texts, tuple(layer + 1 for layer in layers))[1]
        looks = [one[: len(text)].clone() for one, text in zip(focus.mean(), texts, strict=True)]
        if not self.sharpest:
            return [Insight(look, 0, look.new_empty(len(look), 0)) for look in looks]
        chosen = sharpness.sharpest()
        middles = [heard.taps[layer + 1][row, : len(texts[row])].clone() for row, layer in enumerate(chosen)]
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
        shares = weights.float()  # once: as large as attention itself
        entropy = -torch.special.xlogy(shares, shares).sum(-1)  # [B, heads, N]
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
