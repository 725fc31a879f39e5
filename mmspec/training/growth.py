"""How deep decoders are started: quiet layers, and a shallow decoder that becomes a deep one that computes the same.

A shallow model learns where to look in a fraction of the time. The layers put between its own pass on what they get,
until training finds a use for them (arXiv 1511.05641, function-preserving deepening).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

Model = TypeVar("Model", bound=PreTrainedModel)


@torch.no_grad()
def quiet(layers: Iterable[nn.Module], depth: int) -> None:
    """Scales what each sublayer adds, so that 2 `depth` of them do not drown the embeddings (GPT-2's start)."""
    for layer in layers:
        _scale(layer, (2 * depth) ** -0.5)


def places(layers: int, deep: int) -> list[int]:
    """Where each of the `layers` lies among `deep` of them: evenly, the last one last."""
    return [(index + 1) * deep // layers - 1 for index in range(layers)]


def deepened(model: Model, layers: int, stack: str) -> Model:
    """A model of `layers` decoder layers with the outputs of `model`; new layers add nothing yet.

    Args: stack: name of the module list in the model, as "model.language_model.layers"; its length is
        `config.text_config.num_hidden_layers`.
    """
    config = copy.deepcopy(model.config)
    kept = places(config.text_config.num_hidden_layers, layers)
    config.text_config.num_hidden_layers = layers
    deep = type(model)(config)
    for layer in deep.get_submodule(stack):  # type: ignore[attr-defined]  # a ModuleList
        _scale(layer, 0.0)
    weights = {}
    for name, value in model.state_dict().items():
        before, found, after = name.partition(f"{stack}.")
        index, _, rest = after.partition(".")
        weights[f"{found}{kept[int(index)]}.{rest}" if found and not before else name] = value
    deep.load_state_dict(weights, strict=False)
    return deep


@torch.no_grad()
def _scale(layer: Any, factor: float) -> None:
    """Scales what the two sublayers of a layer add."""
    for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
        matrix.weight.mul_(factor)
