"""How well a drafter drafts while it is trained: tau by real decoding of held-out questions, greedy and sampled, or, of
what is always sampled, sampled alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mmspec.contract import Drafter
from mmspec.training.answers import manner, served


def measure(
    pipe: Any,
    drafter: Drafter,
    inputs: Sequence[Mapping[str, Any]],
    max_new_tokens: int,
    seed: int,
) -> dict[str, float]:
    """{"tau_t0": ..., "tau_t1": ...}: tokens per verification over all rows, bonus included, prefill excluded; of
    targets that are always sampled the second alone.

    Args: inputs: model inputs of the held-out questions, in batches, which change no figure: row i of them all is drawn
        with `seed + i`.
    """
    drafting = pipe.with_drafter(drafter)
    figures = {}
    for temperature in (1,) if served(pipe.target) else (0, 1):
        rows = emitted = verifications = 0
        for batch in inputs:
            how = manner(pipe.target, temperature)
            said = drafting.generate(**batch, max_new_tokens=max_new_tokens, **how, seed=seed + rows)
            made = said if isinstance(said, list) else [said]
            rows += len(made)
            emitted += sum(one.stats.new_tokens - 1 for one in made)
            verifications += sum(len(one.stats.accept_lengths) for one in made)
        figures[f"tau_t{temperature}"] = emitted / max(verifications, 1)
    return figures


class Validation(TrainerCallback):
    """Takes figures every `every` steps and at the end, and notes them in the Trainer's history, an entry each.

    Args: patience: how many times in a row they may fail to be the best ones before training stops; 0 is never.
        keep: called when they are the best so far. settled: see `best_step`.
    """

    def __init__(
        self,
        figures: Callable[[], list[dict[str, Any]]],
        every: int,
        patience: int = 0,
        keep: Callable[[], None] = lambda: None,
        settled: int = 0,
    ) -> None:
        self.figures, self.every, self.patience, self.keep, self.settled = figures, every, patience, keep, settled

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """After an update."""
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            state.log_history += [{"step": state.global_step, **one} for one in self.figures()]
            if best_step(state.log_history, self.settled) == state.global_step:
                self.keep()
            if exhausted(state.log_history, self.patience, self.settled):
                control.should_training_stop = control.should_save = True
        return control


def best_step(history: Sequence[dict[str, Any]], settled: int = 0) -> int:
    """The first step at which tau, averaged over methods and temperatures, was highest; 0 if none was measured.

    Args: settled: up to this step, measurements do not count.
    """
    means = {step: mean for step, mean in mean_taus(history).items() if step > settled}
    return max(means, key=lambda step: (means[step], -step), default=0)


def exhausted(history: Sequence[dict[str, Any]], patience: int, settled: int = 0) -> bool:
    """Whether the last `patience` measurements were none better than those before; never with a patience of 0. settled:
    see `best_step`."""
    later = [step for step in mean_taus(history) if step > max(settled, best_step(history, settled))]
    return 0 < patience <= len(later)


def mean_taus(history: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Step -> mean over methods and temperatures."""
    taus: dict[int, list[float]] = {}
    for entry in history:
        taus.setdefault(entry.get("step", 0), []).extend(value for name, value in entry.items() if name[:4] == "tau_")
    return {step: sum(values) / len(values) for step, values in taus.items() if values}
