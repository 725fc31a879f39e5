"""How every part of the speech checkpoint is trained: a loss, samples, and a folder that remembers how far it came."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset
from transformers import TrainingArguments

from mmspec.training.loop import LossTrainer, collate, last_checkpoint


def fit(net: nn.Module, loss: Callable[..., Any], samples: Dataset[Any], arguments: TrainingArguments) -> None:
    """Train `net` in place on `samples`, from where the run left off."""
    trainer = LossTrainer(loss, model=net, args=arguments, train_dataset=samples, data_collator=collate)
    trainer.train(resume_from_checkpoint=last_checkpoint(Path(arguments.output_dir)))
