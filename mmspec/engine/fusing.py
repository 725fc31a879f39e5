"""One product in the place of several that read the same input: q, k, v of an attention, gate and up of an MLP.

For one or a few rows a small product leaves most of a GPU idle. The weights of a group are laid into one buffer, of
which each layer's own weight is a view: nothing is kept twice, names and values in `state_dict` stay as they are.
While a graph is traced, the first layer of a group that is asked computes the product of all; outside of compiled
graphs every layer is what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass
class Shared:
    """The product of a group in one forward. weight: [sum of rows, in]. given, made: the input at hand and its product;
    left: how many layers have not asked for their part yet.
    """

    weight: Tensor
    members: int
    given: Tensor | None = None
    made: Tensor | None = None
    left: int = 0

    def part(self, x: Tensor, start: int, end: int) -> Tensor:
        """Columns of the product with x."""
        if self.given is not x or self.made is None:
            self.given, self.made, self.left = x, F.linear(x, self.weight), self.members
        out = self.made[..., start:end]
        self.left -= 1
        if not self.left:
            self.given = self.made = None  # nothing of a forward outlives it
        return out


class Part(nn.Linear):
    """A linear layer of a group: rows start to start + out_features of the shared weight."""

    def __init__(self, layer: nn.Linear, shared: Shared, start: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.shared, self.start = shared, start
        self.weight = nn.Parameter(self._rows(), requires_grad=layer.weight.requires_grad)
        self.bias = layer.bias

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

    def forward(self, input: Tensor) -> Tensor:
        """[.., out] of [.., in]."""
        if not torch.compiler.is_compiling():
            return super().forward(input)
        out = self.shared.part(input, self.start, self.start + self.out_features)
        return out if self.bias is None else out + self.bias


def fuse(net: nn.Module) -> None:
    """Let the groups of all layers share their products, where their layers are plain ones."""
    for module in net.modules():
        for names in GROUPS:
            found = [getattr(module, name, None) for name in names]
            layers = [layer for layer in found if type(layer) is nn.Linear]
            if len(layers) == len(names) and len({layer.weight.dtype for layer in layers}) == 1:
                _fuse(module, names, layers)


@torch.inference_mode(False)  # weights that could not be trained or loaded anew would be left behind
@torch.no_grad()
def _fuse(module: nn.Module, names: tuple[str, ...], layers: list[nn.Linear]) -> None:
    shared = Shared(torch.cat([layer.weight for layer in layers]), len(layers))
    start = 0
    for name, layer in zip(names, layers, strict=True):
        setattr(module, name, Part(layer, shared, start).train(layer.training))
        start += layer.out_features
