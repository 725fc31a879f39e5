"""How every part of the speech checkpoint is trained: a loss, samples, and a folder that remembers how far it came."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import TrainingArguments

from mmspec.training.loop import InOrderTrainer, collate, last_checkpoint


class LossTrainer(InOrderTrainer):
    """Trains a model by a loss that is computed outside of its forward, since it also needs other models.

    Args: loss: batch -> scalar. kwargs: those of `Trainer`.
    """

    def __init__(self, loss: Callable[..., Tensor], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.loss = loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one batch, as `collate` makes it, in the precision that the arguments ask for."""
        with self.accelerator.autocast():
            return self.loss(**inputs)


def fit(net: nn.Module, loss: Callable[..., Any], samples: Dataset[Any], arguments: TrainingArguments) -> None:
    """Train `net` in place on `samples`, from where the run left off."""
    trainer = LossTrainer(loss, model=net, args=arguments, train_dataset=samples, data_collator=collate)
    trainer.train(resume_from_checkpoint=last_checkpoint(Path(arguments.output_dir)))
