"""How well a drafter drafts while it is trained: tau by real decoding of held-out questions, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mmspec.contract import Drafter
from mmspec.training.answers import PLAIN

TEMPERATURES = (0, 1)


def measure(pipe: Any, drafter: Drafter, inputs: dict[str, Any], max_new_tokens: int, seed: int) -> dict[str, float]:
    """{"tau_t0": ..., "tau_t1": ...}: tokens per verification over all rows, bonus included, prefill excluded.

    Args: inputs: model inputs of the held-out questions, one batch.
    """
    drafting = pipe.with_drafter(drafter)
    figures = {}
    for temperature in TEMPERATURES:
        options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
        said = drafting.generate(**inputs, **PLAIN, **options)
        said = said if isinstance(said, list) else [said]
        verifications = sum(len(one.stats.accept_lengths) for one in said)
        figures[f"tau_t{temperature}"] = sum(one.stats.new_tokens - 1 for one in said) / max(verifications, 1)
    return figures


class Validation(TrainerCallback):
    """Takes figures every `every` steps and at the end, and notes them in the Trainer's history, an entry each."""

    def __init__(self, figures: Callable[[], list[dict[str, Any]]], every: int) -> None:
        self.figures, self.every = figures, every

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """After an update."""
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            state.log_history += [{"step": state.global_step, **one} for one in self.figures()]
        return control
