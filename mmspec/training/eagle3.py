"""Training of an EAGLE-3 head: only the laws count, on outputs that it was fed itself (arXiv 2503.01840)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmspec.drafters.eagle3 import Eagle3, Eagle3Head, usual_taps
from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.layer import head_config
from mmspec.drafters.vocabulary import LEAST
from mmspec.errors import InputError, MismatchError
from mmspec.training.answers import Answered
from mmspec.training.recipe import setting
from mmspec.training.steps import Batch, StepLoss
from mmspec.training.unroll import UnrolledRecipe, unroll
from mmspec.training.words import common_words


class Eagle3Loss(StepLoss):
    """Cross-entropy to the target's law within the draft vocabulary, where its likeliest token is one of them."""

    def estimates(self, batch: Batch) -> list[Tensor]:
        """See `StepLoss`."""
        taps = self.net.settings["taps"]
        heard = self.features(batch.rows, taps)[:, : batch.slots]
        return unroll(self.net, batch.embeddings, self.net.fuse(heard), batch.first, self.recipe.unroll)

    def judge(self, estimate: Tensor, goal: Tensor, law: Tensor) -> Tensor:
        """See `StepLoss`."""
        known = torch.isin(law.argmax(-1), self.net.ids)
        within = law[known][:, self.net.ids]
        return cross_entropy(
            self.net.own_logits(estimate[known]), within / within.sum(-1, keepdim=True), reduction="none"
        )


@dataclass(frozen=True, kw_only=True)
class Eagle3Recipe(UnrolledRecipe):
    """How an EAGLE-3 head is trained."""

    draft_vocabulary: int | None = setting("how many words, in the place of the setting words", None)
    words: int = setting("size of the head's own vocabulary, the tokens that the answers use most", 32_000)

    method: ClassVar[str] = "eagle3"
    about: ClassVar[str] = (
        "An EAGLE-3 head: one decoder layer over hidden states of three depths of the target, with an output head of "
        "its own over the words that answers use most; it drafts a dynamic tree (arXiv 2503.01840)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Eagle3
    loss_class: ClassVar[type[Any]] = Eagle3Loss

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.words < LEAST:
            raise InputError(f"a draft vocabulary has {LEAST} words or more, got {self.words}")

    def network(self, target: Any, rows: Sequence[Answered]) -> Eagle3Head:
        """See `HeadRecipe`."""
        ids = common_words(rows, self.draft_vocabulary or self.words, target.vocab_size)
        net = Eagle3Head(head_config(target, self.intermediate), usual_taps(target.num_layers), len(ids))
        give_words(net, ids, target)
        return net

    def suit(self, net: Eagle3Head, target: Any, rows: Sequence[Answered]) -> Eagle3Head:
        """See `HeadRecipe`."""
        if net.foreign:
            give_words(net, common_words(rows, len(net.ids), target.vocab_size), target)
        return net

    def begin(self, start: Any, target: Any) -> Eagle3Head:
        """See `Recipe`."""
        net: Eagle3Head = super().begin(start, target)
        last = int(net.ids.max())
        if last >= target.vocab_size:
            raise MismatchError(
                f"training of {self.method} cannot start with that drafter: its words are ids up to {last}, the target "
                f"has {target.vocab_size}"
            )
        if self.draft_vocabulary not in (None, len(net.ids)):
            raise MismatchError(
                f"training of {self.method} starts with a drafter of {len(net.ids)} words, which have rows of their "
                f"own, and not of {self.draft_vocabulary}: leave --draft-vocabulary out"
            )
        return net


@torch.no_grad()
def give_words(net: Eagle3Head, ids: Tensor, target: Any) -> None:
    """Let a head draft these words [words]: its output head begins as the target's rows for them."""
    net.ids.copy_(ids)
    net.words.weight.copy_(target.head.weight[ids.to(target.head.weight.device)])
