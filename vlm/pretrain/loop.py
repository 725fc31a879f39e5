"""What the stages share: a Trainer with the optimizer of this model, and its schedule."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from mmspec.training.loop import InOrderTrainer
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


def stage_arguments(folder: Path, steps: int, batch: int, rate: float, seed: int, **more: Any) -> TrainingArguments:
    """Arguments of a stage: float32 on two threads, linear warm-up, then flat, then a linear fall to zero."""
    falling = more.pop("falling", steps // 2)
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": batch,
        "learning_rate": rate,
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": falling, "decay_type": "linear"},
        "warmup_steps": max(10, steps * 3 // 100),
        "weight_decay": 0.05,
        "max_grad_norm": 1.0,
        "seed": seed,
        "logging_steps": 10,
        "save_strategy": "steps",
        "save_steps": 100,
        "save_total_limit": 2,
        "dataloader_num_workers": 1,
        "dataloader_prefetch_factor": 8,
        "dataloader_persistent_workers": True,
        "remove_unused_columns": False,
        "report_to": "none",
        "use_cpu": not torch.cuda.is_available(),
    }
    return TrainingArguments(**{**values, **more})
