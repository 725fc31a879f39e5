"""Stage 1 of a model that gets a trained decoder: its tower learns to give the image tokens which that decoder reads.

Both models look at the same picture, and the new one follows the known one slot by slot: features are distilled
(FitNets, arXiv 1412.6550), and the decoder can answer before it has been trained with its new tower.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmspec.errors import MismatchError
from mmspec.miniworld import sample
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.known import Known
from mmspec.vlm.pretrain.loop import StageTrainer
from mmspec.vlm.pretrain.smolvlm import SMOLVLM
from mmspec.vlm.pretrain.vision import Sight, word_scale


class TwiceSeen(Dataset[dict[str, Tensor]]):
    """Pictures as a family and as the known model take them, drawn when asked for."""

    def __init__(self, seed: str, length: int, family: Family) -> None:
        self.seed, self.length, self.family = seed, length, family

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        image = sample(self.seed, index).image
        return {"pixels": self.family.pixels(image), "known_pixels": SMOLVLM.pixels(image)}


def begin_as(sight: Sight, finished: Known) -> None:
    """Gives tower and connector the weights of a finished model of the family, but for the size in which words are met.

    Raises: MismatchError: its tower or its connector has other shapes.
    """
    own, weights = sight.state_dict(), Sight(sight.family, finished.model).state_dict()
    if {name: value.shape for name, value in weights.items()} != {name: value.shape for name, value in own.items()}:
        raise MismatchError(f"{finished.name} has a vision tower of other shapes than {sight.family.name}")
    sight.load_state_dict(weights)
    sight.resize(1 / word_scale(finished.model))


class FollowingTrainer(StageTrainer):
    """Trains a `Sight` on `TwiceSeen` pictures to give the image tokens of a known model."""

    def __init__(self, family: Family, known: Known, **more: Any) -> None:
        super().__init__(family, **more)
        self.known = Sight(SMOLVLM, known.model).to(self.args.device)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """The share of the known tokens' variance that is missed."""
        with self.accelerator.autocast():
            with torch.no_grad():
                known = self.known(inputs["known_pixels"])
            tokens = model(inputs["pixels"])
        return unexplained(tokens.float(), known.float())


def unexplained(tokens: Tensor, known: Tensor) -> Tensor:
    """Mean squared distance, relative to the variance of the known ones: 0 when all agree, 1 for their mean.

    Args: tokens, known: [B, slots, D].
    """
    return (tokens - known).square().mean() / (known - known.mean((0, 1))).square().mean()
