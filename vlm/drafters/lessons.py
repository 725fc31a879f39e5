"""What the training of drafters with a `SightHead` has in common.

Rows of a batch have pictures of different sizes at different places, so nothing is cut here: slots that the drafter
leaves out are hidden by the mask, which is the same thing. The steps on the head's own estimates are those of
`mmspec.training.unroll`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.cache import additive
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.eagle import EagleLoss, EagleRecipe
from mmspec.training.features import Features
from mmspec.training.steps import Batch
from mmspec.training.unroll import unroll
from mmspec.vlm.drafters.insights import Insights
from mmspec.vlm.drafters.sight import Seen, Sight, SightHead, check_sees


class SightLoss(EagleLoss):
    """EAGLE's loss, on slots with pictures in place. sharpest: see `Insights`."""

    sharpest: ClassVar[bool] = False

    def __init__(self, net: Any, target: Any, features: Features, recipe: Any) -> None:
        super().__init__(net, target, features, recipe)
        self.insights = Insights(features, self.sharpest)

    def estimates(self, batch: Batch) -> list[Tensor]:
        """See `StepLoss`."""
        sight = self.sight(batch)
        sight = replace(sight, features=sight.features + self._noise(batch.position, sight.features))
        return self.unrolled(self.look(sight, batch), sight, batch.first)

    def unrolled(self, seen: Seen, sight: Sight, first: int) -> list[Tensor]:
        """Estimates of every step, of the slots from `first` on."""
        return unroll(
            Reader(self.net, seen).head, sight.embeddings, sight.features, first, self.recipe.unroll, self.fed
        )

    def look(self, sight: Sight, batch: Batch) -> Seen:
        """What is read of the slots."""
        return self.net.see(sight)

    def sight(self, batch: Batch) -> Sight:
        """The slots of a batch."""
        slots = batch.slots
        embeddings = self.features(batch.rows, (0,))[:, 1 : slots + 1]
        device = embeddings.device
        focus = None
        if self.net.focuses:
            looks = [insight.focus for insight in self.insights(batch.rows)]
            focus = pad_sequence(looks, batch_first=True)[:, 1 : slots + 1].to(device)
        image = image_slots(batch.rows, self.target.placeholders, slots).to(device)
        prompt = torch.tensor([row.start - 1 for row in batch.rows], device=device)
        return Sight(embeddings, batch.features[:, :slots], image, prompt, focus)


@dataclass
class Reader:
    """A network as `unroll` calls a head. step: the next one."""

    net: SightHead
    seen: Seen
    step: int = 0

    def head(self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        """Step 0 reads the whole text, the others the estimates of the one before."""
        content = self.seen.content
        if self.step:
            content = self.net.content(embeddings, features, self.seen.context, self.step)
        seen = see(self.seen.kept) if mask is None else (mask == 0) & shown(self.seen.kept, mask.shape[-1])
        self.step += 1
        return self.forward(content, positions, additive(seen, content.dtype), cache)

    def forward(self, content: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """The network's own."""
        return self.net(content, positions, mask, cache)


def see(kept: Tensor) -> Tensor:
    """[B, 1, T, T] bool: a slot sees itself and what is kept before it. kept: [B, T]."""
    size = kept.shape[1]
    causal = torch.ones(size, size, dtype=torch.bool, device=kept.device).tril()
    itself = torch.eye(size, dtype=torch.bool, device=kept.device)  # a row of a softmax must not be empty
    return ((causal & kept[:, None]) | itself)[:, None]


def shown(kept: Tensor, width: int) -> Tensor:
    """[B, 1, 1, width] bool: which keys are kept; those behind the text's own are. kept: [B, T]."""
    return torch.nn.functional.pad(kept, (0, width - kept.shape[1]), value=True)[:, None, None]


def image_slots(rows: Sequence[Answered], placeholders: Sequence[int], slots: int) -> Tensor:
    """[B, slots] bool: slot t holds an image slot x_{t+1} of the prompt."""
    image = torch.zeros(len(rows), slots, dtype=torch.bool)
    for row, one in enumerate(rows):
        inside = [place - 1 for place, token in enumerate(one.prompt) if token in placeholders and place]
        image[row, [place for place in inside if place < slots]] = True
    return image


def check_share(name: str, value: float) -> None:
    """Raise InputError unless a setting is a share."""
    if not 0 <= value <= 1:
        raise InputError(f"{name}={value} is not valid: it is a share, 0 to 1")


def first_stage(share: float, steps: int) -> int:
    """How many of the updates are that share of them; the last one never is."""
    return min(int(share * steps), steps - 1)


@dataclass(frozen=True, kw_only=True)
class SightRecipe(EagleRecipe):
    """How a head that sees is trained: as an EAGLE head, with the target's embeddings of the pictures beside it."""

    steps: int = 400
    unroll: int = 4

    def check(self, target: Any) -> None:
        """See `Recipe`."""
        super().check(target)
        check_sees(target, self.method)

    def taps(self, net: Any) -> tuple[int, ...]:
        """See `Recipe`: the embeddings."""
        return (0,)

    def beside(self, target: Any) -> int:
        """See `Recipe`: of insights, where the loss asks for any."""
        net: Any = self.drafter_class.net_class
        sharpest = self.loss_class.sharpest
        middle: int = target.hidden_size * target.model.dtype.itemsize if sharpest else 0
        return torch.float32.itemsize + middle if sharpest or net.focuses else 0
