"""What targets that see or hear share: it is encoded once, and its features fill slots of the prompt."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from mmspec.errors import InputError, one_line, out_of_memory
from mmspec.targets import CausalTarget


class PerceivingTarget(CausalTarget):
    """Base of them. A modality adds how it encodes, and how features enter the model's forward (`piece`)."""

    perceives: str
    """What it does, in messages: pictures, recordings."""
    sense: str
    """What messages, and the configuration, call the slots: image, audio."""
    optional: tuple[str, ...] = ()
    """Those of `extra_inputs` that a caller may leave out."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.slot: int = getattr(model.config, f"{self.sense}_token_id")
        self.placeholders = (self.slot,)

    @abstractmethod
    def features(self, given: dict[str, Any]) -> Any:
        """What the model makes of the `extra_inputs`, for the slots in their order."""

    def vectors(self, features: Any) -> Tensor:
        """[slots, H] of them."""
        found: Tensor = features
        return found

    def arrange(self, inputs: dict[str, Any], rows: list[list[int]]) -> dict[str, Any]:
        """Model inputs, those that are perceived replaced by their `features`.

        Raises: InputError: for tensors that a caller made: one is missing, the model cannot encode them, or they do not
            fill the slots.
        """
        for name in self.extra_inputs:
            if name in inputs and not isinstance(inputs[name], Tensor):
                raise InputError(f"{name} must be a tensor, not {type(inputs[name]).__name__}")
        known = ("features", *self.extra_inputs) if "features" in inputs else ()  # the others are of no more use then
        arranged = super().arrange({name: value for name, value in inputs.items() if name not in known}, rows)
        given = {name: arranged.pop(name) for name in self.extra_inputs if name in arranged}
        slots = int((arranged["input_ids"] == self.slot).sum())
        if "features" in inputs:  # a drafter may come with those of its target
            arranged["features"] = inputs["features"]
        elif given or slots:
            missing = [name for name in self.extra_inputs if name not in given and name not in self.optional]
            if missing:
                whose = f"{self.perceives} came" if given else f"the prompt has {slots} {self.sense} slots and comes"
                raise InputError(f"{whose} without {missing[0]}: pass on all that the processor returns")
            arranged["features"] = self._encoded(given)
            found = len(self.vectors(arranged["features"]))
            if found != slots:
                raise InputError(f"{self.misfit}: they fill {found}, the prompt has {slots}")
        return arranged

    @property
    def misfit(self) -> str:
        """What to say of inputs that do not fill the slots."""
        return f"the {self.perceives} do not fit the prompt's {self.sense} slots"

    def _encoded(self, given: dict[str, Any]) -> Any:
        try:
            return self.features(given)
        except (IndexError, RuntimeError, ValueError) as error:
            if out_of_memory(error):
                raise
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in given.items())
            told = f"the model cannot read {self.perceives} of these shapes: {shapes} ({one_line(error)})"
            raise InputError(told) from error
