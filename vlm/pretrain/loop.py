"""What the stages share: a Trainer with the optimizer of this model, and its schedule."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from mmspec.training.loop import InOrderTrainer, training_arguments
from mmspec.training.muon import MuonAdamW


class StageTrainer(InOrderTrainer):
    """Trains a vision-language model; `args.learning_rate` is the rate of the decoder's matrices.

    rest_share: rate of everything that is not a matrix, relative to that. vision_share: factor on the rates of the
    vision tower, below 1 where it comes pretrained.
    """

    rest_share = 0.15
    vision_share = 1.0

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Muon for the weight matrices of linear layers between embeddings and heads; AdamW for everything else."""
        if self.optimizer is None:
            groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
            for name, parameter in self.model.named_parameters():
                inner = ".layers." in name or "modality_projection" in name
                groups["vision_model." in name, inner and parameter.ndim == 2].append(parameter)
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


def stage_arguments(
    folder: Path, steps: int, batch: int, rate: float, seed: int, falling: int, **more: Any
) -> TrainingArguments:
    """Arguments of a stage: linear warm-up, then flat, then a linear fall to zero over the last `falling` steps.

    Args: more: further fields of `TrainingArguments`, or other values for those set here.
    """
    values: dict[str, Any] = {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": falling, "decay_type": "linear"},
        "warmup_steps": max(10, steps * 3 // 100),
        "weight_decay": 0.05,
        "logging_steps": 10,
        "save_steps": 100,
        "dataloader_num_workers": 1,
        "dataloader_prefetch_factor": 8,
        "dataloader_persistent_workers": True,
    }
    return training_arguments(
        folder,
        steps=steps,
        batch=batch,
        rate=rate,
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        **{**values, **more},
    )
