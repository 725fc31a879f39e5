"""How MSD, ViSpec and HiViS are trained (`mmspec train drafter`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.layer import head_config
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.recipe import setting
from mmspec.training.steps import Batch
from mmspec.vlm.drafters.hivis import HiVis
from mmspec.vlm.drafters.lessons import SightLoss, SightRecipe, check_share, first_stage
from mmspec.vlm.drafters.msd import Msd
from mmspec.vlm.drafters.sight import Seen, Sight
from mmspec.vlm.drafters.vispec import ViSpec, ViSpecHead


class MsdLoss(SightLoss):
    """In the first stage only words are read, then pictures more and more often (see `MsdRecipe`)."""

    def look(self, sight: Sight, batch: Batch) -> Seen:
        """See `SightLoss`."""
        seen = super().look(sight, batch)
        run, places = self.recipe.steps * self.recipe.batch, range(batch.position, batch.position + len(batch.rows))
        blind = [not shows(place, run, self.recipe.text_share, self.recipe.seed) for place in places]
        hidden = sight.image & torch.tensor(blind, device=sight.image.device)[:, None]
        return replace(seen, kept=seen.kept & ~hidden)


def shows(place: int, run: int, text_share: float, seed: int) -> bool:
    """Whether the sample at a place of a run shows its picture: never in the first stage, then ever more often."""
    done = min(place / run, 1.0)
    chance = (done - text_share) / (1 - text_share) if text_share < 1 else 0.0
    return random.Random(f"{seed}/{place}").random() < chance if text_share else True


@dataclass(frozen=True, kw_only=True)
class MsdRecipe(SightRecipe):
    """MSD's curriculum: after a share of the run that shows no picture, the chance that a sample shows its own rises
    from 0 to 1.

    The paper's first stage takes other data, dialogues without pictures. Here it is the same answers with the image
    slots hidden from the drafter. The loss is another one, too: that of EAGLE heads here, mostly the target's laws and
    over several steps on own estimates. The paper's is `MsdRecipe(feature_weight=1.0, law_weight=0.1, unroll=1)`.
    """

    text_share: float = setting("share of the run that shows no pictures; 0: they are shown from the start", 0.5)

    method: ClassVar[str] = "msd"
    about: ClassVar[str] = (
        "MSD: an EAGLE head whose image slots hold the target's embeddings of the picture, past its fusion layer; it "
        "learned from words first, then from pictures, too (arXiv 2505.14260)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Msd
    loss_class: ClassVar[type[Any]] = MsdLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("text_share", self.text_share)

    def settled(self) -> int:
        """See `Recipe`: those that show no picture."""
        return first_stage(self.text_share, self.steps)


@dataclass(frozen=True, kw_only=True)
class ViSpecRecipe(SightRecipe):
    """The loss is that of EAGLE heads here, over several steps on own estimates, and there is one stage, not two."""

    queries: int = setting("vectors per picture, the global feature among them; 0 leaves the adaptor out", 2)
    global_feature: bool = setting("whether that feature is told to all later slots", True)

    method: ClassVar[str] = "vispec"
    about: ClassVar[str] = (
        "ViSpec: an EAGLE head that reads a few vectors in place of a picture, one of them in every later slot (arXiv "
        "2509.15235)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = ViSpec
    loss_class: ClassVar[type[Any]] = SightLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.queries <= 64:
            raise InputError(f"ViSpec takes 0 to 64 queries, got {self.queries}")
        if self.queries == 1 and not self.global_feature:
            raise InputError("ViSpec with one query has the global feature alone: without it take queries=0")

    def network(self, target: Any, rows: Sequence[Answered]) -> ViSpecHead:
        """See `HeadRecipe`."""
        return ViSpecHead(head_config(target, self.intermediate), self.queries, self.global_feature)


@dataclass(frozen=True, kw_only=True)
class HiVisRecipe(SightRecipe):
    """An EAGLE head's, without image slots, and with a correction per step."""

    method: ClassVar[str] = "hivis"
    about: ClassVar[str] = (
        "HiViS: an EAGLE head that reads no image slots, since the target's features of the words have seen the "
        "picture, with a learned correction for each step of a draft (arXiv 2509.23928)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = HiVis
    loss_class: ClassVar[type[Any]] = SightLoss
