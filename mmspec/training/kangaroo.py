"""Training of Kangaroo's adapter: the target's law of the next token, from its shallow features (arXiv 2404.18911).

What the adapter sees while drafting is what it sees here, since the shallow layers give true features of drafted
tokens, too; one step is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.kangaroo import Adapter, Kangaroo, check_layers
from mmspec.drafters.layer import head_config
from mmspec.errors import InputError
from mmspec.training.answers import Answered
from mmspec.training.recipe import setting
from mmspec.training.steps import Batch, HeadRecipe, StepLoss


class KangarooLoss(StepLoss):
    """Cross-entropy of the adapter's law to the target's."""

    def estimates(self, batch: Batch) -> Iterator[Tensor]:
        """See `StepLoss`: the token of slot t stands at position t + 1, where its shallow feature is read."""
        shallow = self.features(batch.rows, (self.net.settings["exit_layer"],))[:, : batch.slots + 1]
        positions = torch.arange(batch.slots + 1, device=shallow.device)[None]
        yield self.net(shallow, positions, None)[:, batch.first + 1 :]


@dataclass(frozen=True, kw_only=True)
class KangarooRecipe(HeadRecipe):
    """How an adapter is trained."""

    exit_layer: int | None = setting("layers of the target that draft; none: one in fifteen, at least one", None)

    method: ClassVar[str] = "kangaroo"
    about: ClassVar[str] = (
        "Kangaroo: the target's own first layers and one attention block draft a dynamic tree with the target's own "
        "output head (arXiv 2404.18911)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Kangaroo
    loss_class: ClassVar[type[Any]] = KangarooLoss

    def check(self, target: Any) -> None:
        """See `Recipe`."""
        super().check(target)
        check_layers(target)
        if not 0 < self._layers(target) < target.num_layers:
            raise InputError(
                f"the target has {target.num_layers} layers: Kangaroo cannot leave after {self._layers(target)}"
            )

    def _layers(self, target: Any) -> int:
        return max(1, round(target.num_layers / 15)) if self.exit_layer is None else self.exit_layer

    def network(self, target: Any, rows: Sequence[Answered]) -> Adapter:
        """See `HeadRecipe`."""
        return Adapter(head_config(target), self._layers(target))

    def taps(self, net: Adapter) -> tuple[int, ...]:
        """See `Recipe`."""
        return (net.settings["exit_layer"],)
