"""What the stages share: a Trainer with the optimizer of this model."""

from collections import defaultdict
from typing import Any

import torch
from torch import nn

from mmspec.training.cost import Cost
from mmspec.training.loop import InOrderTrainer
from mmspec.training.muon import MuonAdamW
from mmspec.vlm.pretrain.family import Family


class StageTrainer(InOrderTrainer):
    """Trains a vision-language model; `args.learning_rate` is the rate of the decoder's matrices.

    rest_share: rate of everything that is not a matrix, relative to that. vision_share: factor on the rates of the
    vision tower, below 1 where it comes pretrained.
    """

    rest_share = 0.15
    vision_share = 1.0

    def __init__(self, family: Family, **more: Any) -> None:
        super().__init__(**more)
        self.family = family
        self.add_callback(Cost(self.args.device))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Muon for the weight matrices of linear layers between embeddings and heads; AdamW for everything else."""
        if self.optimizer is None:
            groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
            for name, parameter in self.model.named_parameters():
                inner = ".layers." in name or f"{self.family.connector}." in name
                groups[f"{self.family.tower}." in name, inner and parameter.ndim == 2].append(parameter)
            rate, decay = self.args.learning_rate, self.args.weight_decay
            self.optimizer = MuonAdamW([
                {
                    "params": parameters,
                    "lr": rate * (1.0 if muon else self.rest_share) * (self.vision_share if vision else 1.0),
                    "muon": muon,
                    "weight_decay": decay if muon else 0.0,
                }
                for (vision, muon), parameters in groups.items()
            ])  # fmt: skip
        return self.optimizer
