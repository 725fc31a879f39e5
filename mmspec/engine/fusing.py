"""One product in the place of several that read the same input: q, k, v of an attention, gate and up of an MLP.

For one or a few rows a small product leaves most of a GPU idle. The weights of a group are laid into one buffer, of
which each layer's own weight is a view: nothing is kept twice, names and values in `state_dict` stay as they are.
While a graph is traced, the first layer of a group computes the product of all; outside of compiled graphs every layer
is what it was, and so is its copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that stand side by side, in the order in which models ask them."""


@dataclass
class Shared:
    """The product of a group in the forward at hand. weight: [sum of rows, in].

    given, made: input and product, from the first layer's call to the last one's: nothing of a forward outlives it.
    """

    weight: Tensor
    given: Tensor | None = None
    made: Tensor | None = None


class Part(nn.Linear):
    """A linear layer of a group.

    Args: layer: whose weight it takes over. shared: of the group. start: the first of its rows in the shared weight.
    """

    def __init__(self, layer: nn.Linear, shared: Shared, start: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.shared, self.start = shared, start
        self.weight = nn.Parameter(self._rows(), requires_grad=layer.weight.requires_grad)
        self.bias = layer.bias

    def forward(self, input: Tensor) -> Tensor:
        """[.., out] of [.., in]."""
        shared, end = self.shared, self.start + self.out_features
        if not torch.compiler.is_compiling():
            return super().forward(input)
        if self.start == 0:
            shared.given, shared.made = input, F.linear(input, shared.weight)
        if shared.made is None or shared.given is not input:  # the first layer was not asked
            return super().forward(input)
        out = shared.made[..., self.start : end]
        if end == len(shared.weight):
            shared.given = shared.made = None
        return out if self.bias is None else out + self.bias

    def intact(self) -> bool:
        """Whether the weight is still a view of the shared one: `weight.data = ...` makes it another."""
        return self.weight.data_ptr() == self._rows().data_ptr()

    def _rows(self) -> Tensor:
        return self.shared.weight[self.start : self.start + self.out_features]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Part:
        """What `to`, `float` and others do to the weight, the shared one goes along with."""
        super()._apply(fn, recurse)
        whole = self.shared.weight
        if (whole.device, whole.dtype) != (self.weight.device, self.weight.dtype):  # the first of the group
            self.shared.weight = fn(whole)
        self.weight.data = self._rows()
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        """A plain layer: copies share nothing."""
        device, dtype = self.weight.device, self.weight.dtype
        copied = nn.Linear(self.in_features, self.out_features, self.bias is not None, device, dtype)
        copied.load_state_dict(self.state_dict())
        memo[id(self)] = copied.requires_grad_(self.weight.requires_grad).train(self.training)
        return copied


def fuse(net: nn.Module) -> None:
    """Let the groups of all layers share their products, where these are plain layers of one size of input."""
    for module in net.modules():
        for names in GROUPS:
            layers = [getattr(module, name, None) for name in names]
            if not all(map(_plain, layers)) or len({_kind(layer) for layer in layers}) > 1:
                continue
            if not all(isinstance(layer, Part) and layer.intact() for layer in layers):
                _fuse(module, names, layers)


def _plain(layer: Any) -> bool:
    """Whether a layer can be laid into a group: a linear one on which nothing hangs."""
    return type(layer) in (nn.Linear, Part) and not (layer._forward_hooks or layer._forward_pre_hooks)


def _kind(layer: Any) -> tuple[Any, ...]:
    return layer.in_features, layer.weight.dtype, layer.weight.device


@torch.inference_mode(False)  # weights that could not be trained or loaded anew would be left behind
@torch.no_grad()
def _fuse(module: nn.Module, names: tuple[str, ...], layers: list[Any]) -> None:
    shared = Shared(torch.cat([layer.weight for layer in layers]))
    start = 0
    for name, layer in zip(names, layers, strict=True):
        setattr(module, name, Part(layer, shared, start).train(layer.training))
        start += layer.out_features
