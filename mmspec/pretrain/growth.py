"""How deep decoders are started: quiet layers, and a shallow decoder that becomes a deep one that does nearly the same.

A shallow model learns where to look in a fraction of the time. Then every layer is repeated: its copies, put behind it,
look for the same things once more and add a little, until training finds other uses for them (arXiv 2405.15319). New
layers that begin at random and add nothing never find any: of 24 layers grown so from 8, the 16 new ones could be left
out of a finished model for 0.4 % of the words that it gets right.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from mmspec.errors import InputError

Model = TypeVar("Model", bound=PreTrainedModel)
ECHO = 0.3  # share of what a repeated layer added


@torch.no_grad()
def quiet(layers: Iterable[nn.Module], depth: int) -> None:
    """Scales what each sublayer adds, so that 2 `depth` of them do not drown the embeddings (GPT-2's start)."""
    for layer in layers:
        _scale(layer, (2 * depth) ** -0.5)


def deepened(model: Model, layers: int, stack: str) -> Model:
    """A model of `layers` decoder layers that does nearly what `model` does.

    Args: stack: name of the module list in the model, as "model.language_model.layers"; its length is
        `config.text_config.num_hidden_layers`.
    """
    depth = model.config.text_config.num_hidden_layers
    return _arranged(model, [slot * depth // layers for slot in range(layers)], stack)


def regrown(model: Model, busy: int, stack: str) -> Model:
    """A model as deep as `model`, grown from those of its layers that add most. busy: how many these are.

    Raises: InputError: it has not more layers than that.
    """
    layers = model.get_submodule(stack)
    depth = len(layers)  # type: ignore[arg-type]  # a ModuleList
    if not 0 < busy < depth:
        raise InputError(f"{busy} busy layers are not possible: the decoder has {depth}, and some have to be idle")
    adds = [_adds(layer) for layer in layers]  # type: ignore[union-attr]
    kept = sorted(sorted(range(depth), key=lambda index: -adds[index])[:busy])
    return _arranged(model, [kept[slot * busy // depth] for slot in range(depth)], stack)


def _arranged(model: Model, order: Sequence[int], stack: str) -> Model:
    """A model with copies of the layers `order` of a model; a layer that is repeated adds ECHO of what it did."""
    config = copy.deepcopy(model.config)
    config.text_config.num_hidden_layers = len(order)
    deep = type(model)(config)
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith(f"{stack}.")}
    for slot, source in enumerate(order):
        layer = model.get_submodule(f"{stack}.{source}")
        weights |= {f"{stack}.{slot}.{name}": value for name, value in layer.state_dict().items()}
    deep.load_state_dict(weights)
    for slot in range(1, len(order)):
        if order[slot] == order[slot - 1]:
            _scale(deep.get_submodule(f"{stack}.{slot}"), ECHO)
    return deep


@torch.no_grad()
def _adds(layer: Any) -> float:
    """How large the matrices are through which a layer adds."""
    return sum(float(matrix.weight.norm()) for matrix in _last(layer))


@torch.no_grad()
def _scale(layer: Any, factor: float) -> None:
    """Scales what the two sublayers of a layer add."""
    for matrix in _last(layer):
        matrix.weight.mul_(factor)


def _last(layer: Any) -> tuple[nn.Linear, nn.Linear]:
    return layer.self_attn.o_proj, layer.mlp.down_proj
