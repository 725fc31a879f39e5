"""Networks and their losses as one module, so that what wraps a module sees the whole step.

A loss of a drafter also needs the target, so it is no forward of a network. Where several processes train together, the
gradients are averaged by a wrapper around a module's forward: here that forward is the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.training.loop import InOrderTrainer
from mmspec.training.recipe import Loss


class Learner(nn.Module):
    """Args: nets: what is trained, by name. losses: those of the nets, which are added."""

    def __init__(self, nets: Mapping[str, nn.Module], losses: Sequence[Loss]) -> None:
        super().__init__()
        self.nets = nn.ModuleDict(nets)
        self.losses = list(losses)

    def forward(self, position: Tensor, rows: list[Any]) -> Tensor:
        """A scalar, of a batch as `mmspec.training.loop.collate` makes it."""
        return torch.stack([loss(position=position, rows=rows) for loss in self.losses]).sum()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """As of any module, but a weight that has several names is there once, as files of safetensors want it."""
        once = {name for name, _ in [*self.named_parameters(), *self.named_buffers()]}
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if name in once}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The counterpart: a weight comes back under all of its names."""
        first = {id(weight): name for name, weight in self.named_parameters()}
        names = {name: first[id(weight)] for name, weight in self.named_parameters(remove_duplicate=False)}
        other = {name: state_dict[once] for name, once in names.items() if once in state_dict}
        return super().load_state_dict({**state_dict, **other}, *args, **kwargs)


class LearnerTrainer(InOrderTrainer):
    """Trains a `Learner`."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one batch, in the precision that the arguments ask for, through the module as it is wrapped."""
        with self.accelerator.autocast():
            return model(**inputs)
