"""Output heads of models that do more with their logits: Granite and Cohere scale them, Gemma 2 caps them smoothly.

Drafters borrow the target's head, so it must say the target's law, and not the one at another temperature.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.errors import MismatchError

SEVERAL = ("modernbert-decoder", "gemma3n_text", "gemma3n")
"""Models with more between the last state that they tell and their logits than a head and `ShapedHead`."""


class ShapedHead(nn.Module):
    """cap * tanh(scale * logits / cap) of what a head [.., H] -> [.., V] says; without a cap, scale * logits."""

    def __init__(self, head: nn.Module, scale: float, cap: float | None) -> None:
        super().__init__()
        self.head, self.scale, self.cap = head, scale, cap

    @property
    def weight(self) -> Tensor:
        """[V, H] of the head."""
        return self.head.get_parameter("weight")

    @property
    def bias(self) -> Tensor | None:
        """[V] of the head, if it has one."""
        return getattr(self.head, "bias", None)

    def shape(self, logits: Tensor) -> Tensor:
        """What the model makes of the head's logits, of all words or of some."""
        logits = logits * self.scale
        return logits if self.cap is None else (logits / self.cap).tanh() * self.cap

    def forward(self, features: Tensor) -> Tensor:
        """[.., V] of features [.., H]."""
        return self.shape(self.head(features))


def head_of(model: PreTrainedModel) -> nn.Module:
    """What makes a model's logits of its last hidden state: its own head, unless its class does more with them.

    The settings are the model's own: a class with a language model inside, as LLaVA, passes over those of the latter.
    Raises: MismatchError: it does more than is known here.
    """
    head, config = model.get_output_embeddings(), model.config
    if config.model_type in SEVERAL:
        raise MismatchError(
            f"{type(model).__name__} has more than a head behind its last hidden state, so no drafter on features fits "
            "it: take one that needs no training, or a small language model"
        )
    scale = getattr(config, "logit_scale", None) or 1.0  # Cohere
    scaling = getattr(config, "logits_scaling", None) or 1.0
    scale = scale * scaling if config.model_type == "hyperclovax" else scale / scaling  # Granite divides
    cap = getattr(config, "final_logit_softcapping", None)
    return head if scale == 1 and cap is None else ShapedHead(head, scale, cap)
