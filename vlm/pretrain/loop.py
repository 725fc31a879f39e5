"""What both stages share: a Trainer with our optimizer and a data order that resumes exactly where it stopped."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import Trainer, TrainingArguments

from mmspec.vlm.pretrain.muon import build_optimizer


class StageTrainer(Trainer):
    """A Trainer that takes the samples in order, so that a resumed run sees what an unbroken one would have seen."""

    rest_share = 0.15
    vision_share = 1.0

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Muon and AdamW over the model's parameters; `args.learning_rate` is the rate of the matrices."""
        if self.optimizer is None:
            rate = self.args.learning_rate
            self.optimizer = build_optimizer(
                self.model, rate, self.rest_share * rate, self.args.weight_decay, self.vision_share
            )
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)


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


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint in `folder` that was written to its end (the Trainer writes its state last)."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), reverse=True)
    for path in found:
        try:
            json.loads((path / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        return str(path)
    return None
