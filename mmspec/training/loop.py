"""What every training run shares: a Hugging Face Trainer that resumes exactly, its arguments, and where it left off."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import Trainer, TrainingArguments

from mmspec.errors import missing_extra
from mmspec.training.muon import build_optimizer

T = TypeVar("T")


class InOrderTrainer(Trainer):
    """A Trainer that takes the samples in order, so that a resumed run sees what an unbroken one would have seen."""

    optimizer: torch.optim.Optimizer | None

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Muon and AdamW over the model's parameters; `args.learning_rate` is the rate of the matrices."""
        if self.optimizer is None:
            self.optimizer = build_optimizer(self.model, self.args.learning_rate, decay=self.args.weight_decay)
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        samples: Any = train_dataset if train_dataset is not None else self.train_dataset
        return SequentialSampler(samples)


def collate(samples: list[tuple[int, T]]) -> dict[str, Any]:
    """A batch of `Epochs`: the samples' positions [B] in the run, and the samples."""
    return {"position": torch.tensor([position for position, _ in samples]), "rows": [row for _, row in samples]}


class Epochs(Dataset[tuple[int, T]]):
    """Samples over and over, each epoch in an order of its own, up to a fixed number of them.

    Item i is (i, sample): the position tells a training step apart from all others, whatever it does with randomness.
    """

    def __init__(self, samples: Sequence[T], length: int, seed: int) -> None:
        self.samples, self.length, self.seed = samples, length, seed
        self.epoch, self.order = 0, self.order_of(0)

    def __len__(self) -> int:
        return self.length

    def order_of(self, epoch: int) -> list[int]:
        """The samples of an epoch, in their order: shuffled; the first as they come (neighbours share a picture)."""
        order = list(range(len(self.samples)))
        if epoch:
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order

    def __getitem__(self, position: int) -> tuple[int, T]:
        epoch, place = divmod(position, len(self.samples))
        if epoch != self.epoch:
            self.epoch, self.order = epoch, self.order_of(epoch)
        return position, self.samples[self.order[place]]


def training_arguments(
    folder: Path, *, steps: int, batch: int, rate: float, seed: int, use_cpu: bool, **more: Any
) -> TrainingArguments:
    """Arguments of a run: float32, linear warm-up, then a cosine down to a fiftieth of the rate.

    Args: folder: for checkpoints. steps: updates. batch: samples per update. rate: peak learning rate of the matrices.
        more: further fields of `TrainingArguments`, or other values for those set here.
    """
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": batch,
        "learning_rate": rate,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.02},
        "warmup_steps": max(1, min(100, steps * 5 // 100)),
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "seed": seed,
        "logging_steps": max(1, min(10, steps // 20)),
        "save_strategy": "steps",
        "save_steps": 50,
        "save_total_limit": 2,
        "remove_unused_columns": False,
        "report_to": "none",
        "use_cpu": use_cpu,
    }
    arguments = TrainingArguments(**{**values, **more})
    # a process has one GPU (several take accelerate launch); with more, the Trainer would wrap models in DataParallel
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def stage_arguments(
    folder: Path, steps: int, batch: int, rate: float, seed: int, falling: int, **more: Any
) -> TrainingArguments:
    """Arguments of one stage of several: linear warm-up, then flat, then a linear fall to zero over `falling` steps.

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
        "use_cpu": not torch.cuda.is_available(),
    }
    return training_arguments(
        folder,
        steps=steps,
        batch=batch,
        rate=rate,
        seed=seed,
        **{**values, **more},
    )


def made_anew(name: str, seed: int, make: Callable[[], T]) -> T:
    """What `make` makes with random numbers of its own: a run that goes on, where finished stages draw none, makes the
    same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random.Random(f"{name}/{seed}").getrandbits(63))
        return make()


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint in `folder` that was written to its end (the Trainer writes its state last)."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    for path in sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return str(path)
    return None


def require_training() -> None:
    """Raises MissingExtraError unless what the Trainer stands on is installed."""
    if find_spec("accelerate") is None:
        raise missing_extra("accelerate", "train")
