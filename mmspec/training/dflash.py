"""Training of DFlash's block drafter: blocks from random places of an answer, all in one forward (arXiv 2602.06036).

Block j starts at its anchor, a token of the answer, sees the context before the anchor and its own slots, and slot i
learns the target's law of the token i places behind the anchor. Slots count less the later they are: a slot is only of
use if all before it were accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from mmspec.cache import additive
from mmspec.drafters.dflash import BlockNet, DFlash, spread_taps
from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.layer import block_config
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.chunks import in_chunks
from mmspec.training.features import Features, as_in_use, head_law, head_logits
from mmspec.training.recipe import setting
from mmspec.training.steps import HeadRecipe, generator_at


class DFlashLoss:
    """The loss of a batch. Arguments as for `mmspec.training.steps.StepLoss`."""

    def __init__(self, net: BlockNet, target: Any, features: Features, recipe: DFlashRecipe) -> None:
        self.net, self.target, self.features, self.recipe = net, target, features, recipe

    def __call__(self, position: Tensor, rows: list[Answered]) -> Tensor:
        """A scalar. position: [B] of the samples in the training run, the source of the anchors."""
        taps = self.net.settings["taps"]
        final = self.features(rows)  # [B, n, H]
        context = self.net.fuse(self.features(rows, taps))
        device = final.device
        tokens = pad_sequence([torch.tensor(row.ids, device=device) for row in rows], batch_first=True)
        anchors, real = (part.to(device) for part in self._anchors(int(position[0]), rows))  # [B, J]
        with as_in_use(device):
            embeddings = self.target.embed(tokens.gather(1, anchors)).float()
        hidden = several_blocks(self.net, context, embeddings, anchors)[:, :, 1:]

        places = anchors[..., None] + torch.arange(1, self.net.settings["block"], device=device)
        ends = torch.tensor([len(row.ids) for row in rows], device=device)
        drafted = real[..., None] & (places < ends[:, None, None])
        before = tokens.gather(1, (places - 1).clamp(max=tokens.shape[1] - 1).flatten(1)).view_as(places)
        row, _, slot = drafted.nonzero(as_tuple=True)
        goal = final[row, places[drafted] - 1]
        weights = self.recipe.decay ** slot.to(goal.dtype)
        return (self.losses(hidden, before, drafted, goal) * weights).sum() / weights.sum()

    def losses(self, hidden: Tensor, before: Tensor, drafted: Tensor, goal: Tensor) -> Tensor:
        """[M] of the slots that draft.

        Args: hidden: [B, J, slots, H] what the block gives for the slots. before: [B, J, slots] the answer's tokens in
            front of them. drafted: [B, J, slots] bool, M of them. goal: [M, H] the features that they stand for.
        """
        return in_chunks(self.guessed, self.target.vocab_size, hidden[drafted], goal)

    def guessed(self, estimate: Tensor, goal: Tensor) -> Tensor:
        """The losses [M] of what enters the output head, [M, H], in the place of features `goal` [M, H]."""
        return cross_entropy(head_logits(self.target, estimate), head_law(self.target, goal), reduction="none")

    def _anchors(self, position: int, rows: list[Answered]) -> tuple[Tensor, Tensor]:
        """[B, J] positions of answer tokens that another one follows, and which of them are real."""
        generator = generator_at(self.recipe, position)
        chosen = [
            row.start + torch.randperm(len(row.answer) - 1, generator=generator)[: self.recipe.anchors] for row in rows
        ]
        padded = pad_sequence(chosen, batch_first=True, padding_value=-1)
        return padded.clamp(min=0), padded >= 0


def several_blocks(net: BlockNet, context: Tensor, embeddings: Tensor, anchors: Tensor) -> Tensor:
    """[B, J, block, H] what enters the output head for the slots of blocks that start at anchors [B, J].

    Args: context: [B, n, H] of whole texts. embeddings: [B, J, H] of the anchors' tokens.
    """
    width, block, device = context.shape[1], net.settings["block"], context.device
    cache = DynamicCache()
    net.absorb(context, torch.arange(width, device=device)[None], cache)
    places = anchors[..., None] + torch.arange(block, device=device)
    mask = block_mask(anchors, width, block, context.dtype)
    hidden = net(net.blocks(embeddings).flatten(1, 2), places.flatten(1), mask, cache)
    return hidden.unflatten(1, (-1, block))


def block_mask(anchors: Tensor, width: int, block: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, J * block, width + J * block] additive: a block sees the context before its anchor and its own slots.

    Args: anchors: [B, J]. width: slots of context.
    """
    batch, count = anchors.shape
    past = torch.arange(width, device=anchors.device) < anchors.repeat_interleave(block, 1)[..., None]
    number = torch.arange(count, device=anchors.device).repeat_interleave(block)
    own = (number[:, None] == number).expand(batch, -1, -1)
    return additive(torch.cat([past, own], -1)[:, None], dtype)


@dataclass(frozen=True, kw_only=True)
class DFlashRecipe(HeadRecipe):
    """How a block drafter is trained."""

    layers: int | None = setting("layers of the drafter; none: one in eight of the target's, 1 to 5", None)
    block: int = setting("slots of a block, drafted in one pass, the pending token's included", 8)
    anchors: int = setting("blocks per answer and update", 16)
    intermediate: int | None = setting("width of the MLPs; none: the target's", None)

    method: ClassVar[str] = "dflash"
    about: ClassVar[str] = (
        "DFlash: a few layers over hidden states of several depths of the target guess a block of tokens in one pass "
        "(arXiv 2602.06036)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = DFlash
    loss_class: ClassVar[type[Any]] = DFlashLoss
    net_class: ClassVar[type[BlockNet]] = BlockNet

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.block <= 64 or self.anchors < 1:
            raise InputError(
                f"a block has 2 to 64 slots and an answer 1 anchor or more, got {self.block}, {self.anchors}"
            )
        if min(1 if value is None else value for value in (self.layers, self.intermediate)) < 1:
            raise InputError(f"DFlash needs layers and intermediate >= 1, got {self.layers} and {self.intermediate}")

    def network(self, target: Any, rows: Sequence[Answered]) -> BlockNet:
        """See `HeadRecipe`."""
        layers = min(5, max(1, round(target.num_layers / 8))) if self.layers is None else self.layers
        config = block_config(target, layers, self.intermediate)
        return self.net_class(config, spread_taps(target.num_layers, 5), self.block)
