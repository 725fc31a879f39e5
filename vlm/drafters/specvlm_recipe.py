"""How SpecVLM is trained (arXiv 2509.11815): by the target's features and laws of the moment, kept on no disk unless
asked for, and with noise in the choice of a way to compress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.layer import head_config
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.recipe import setting
from mmspec.training.steps import Batch, generator_at
from mmspec.vlm.drafters.lessons import SightLoss, SightRecipe
from mmspec.vlm.drafters.sight import Seen, Sight
from mmspec.vlm.drafters.specvlm import SpecVlm, SpecVlmHead


class SpecVlmLoss(SightLoss):
    """The loss of an EAGLE head, cross-entropy and distance to the features."""

    def look(self, sight: Sight, batch: Batch) -> Seen:
        """See `SightLoss`; with noise."""
        return self.net.see(sight, generator_at(self.recipe, batch.position, sight.embeddings.device))


@dataclass(frozen=True, kw_only=True)
class SpecVlmRecipe(SightRecipe):
    """As an EAGLE head's, with pictures that the prompt asks to compress."""

    ratio: int = setting("image slots per vector of a compressed picture", 4)
    queries: int = setting("vectors per picture where learned queries make them", 4)

    method: ClassVar[str] = "specvlm"
    about: ClassVar[str] = (
        "SpecVLM: an EAGLE head that reads a picture pruned, pooled, convolved, resampled or not at all, as the prompt "
        "asks for it (arXiv 2509.11815)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = SpecVlm
    loss_class: ClassVar[type[Any]] = SpecVlmLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, most in (("ratio", self.ratio, 1024), ("queries", self.queries, 64)):
            if not 1 <= value <= most:
                raise InputError(f"SpecVLM takes a {name} of 1 to {most}, got {value}")

    def network(self, target: Any, rows: Sequence[Answered]) -> SpecVlmHead:
        """See `HeadRecipe`."""
        return SpecVlmHead(head_config(target, self.intermediate), self.ratio, self.queries)
