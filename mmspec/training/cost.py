"""What a training run takes: its time, and the most memory that its process held, for the drafter's card."""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Cost(TrainerCallback):
    """Notes seconds and bytes with every checkpoint, those of an interrupted run included.

    An entry of the history: {"step", "seconds", "peak_bytes", "device"}. What a killed run did after its last
    checkpoint is done again, and not counted twice.

    Args: device: on which it trains.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.begun, self.before = device, time.perf_counter(), 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """At the start, or where an earlier run left off."""
        self.begun, self.before = time.perf_counter(), last_cost(state.log_history).get("seconds", 0.0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After an update."""
        if control.should_save or control.should_training_stop:
            seconds = self.before + time.perf_counter() - self.begun
            peak = max(peak_bytes(self.device), last_cost(state.log_history).get("peak_bytes", 0))
            note = {
                "step": state.global_step,
                "seconds": seconds,
                "peak_bytes": peak,
                "device": device_name(self.device),
            }
            state.log_history.append(note)


def last_cost(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The latest entry of `Cost`; empty if there is none."""
    return next((entry for entry in reversed(history) if "peak_bytes" in entry), {})


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process held so far: of a GPU, else of the computer."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_name(device: torch.device) -> str:
    """What computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' if threads > 1 else ''} of a CPU ({platform.machine()})"
