"""A drafter's own linear layers in a smaller number format than its target's: less to read for a draft, less memory.

A draft decides nothing, so coarser weights cost acceptance (tau) and never an output: tokens are held against what the
target says, and where a rule divides by q, that is the law of the coarser network, from which the draft was drawn.

A converted layer takes and gives numbers of the dtype of its input. So all around it stays as it was, in the target's
dtype: norms, attention and its cache, and the embeddings and the output head that a drafter borrows from its target.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from mmspec.drafters.vocabulary import WordRows
from mmspec.engine.fusing import Part
from mmspec.errors import InputError, MismatchError, shorten
from mmspec.sampling import float32_at_least

FORMATS = {
    "int8": torch.int8,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
Net = TypeVar("Net", bound=nn.Module)
MOST = 127
"""The largest number of a row of int8 weights; -128 is not used."""


class Int8Linear(nn.Module):
    """A linear layer with weights q [O, I] of eight bits and a scale s per output row: s q is at most s / 2 off.

    Products are computed in the dtype of the input. What is scaled is the product, which is small beside the matrix;
    but for float16, whose range a product without its scale may leave.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        whole, scale = rounded(weight.detach())
        self.register_buffer("weight", whole)
        self.register_buffer("scale", scale)  # [O, 1]
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[.., I] -> [.., O]."""
        if x.dtype == torch.float16:
            return linear(x, (self.weight * self.scale).to(x.dtype), self.bias)
        out = (linear(x, self.weight.to(x.dtype)) * self.scale[:, 0]).to(x.dtype)
        return out if self.bias is None else out + self.bias


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [.., O, I] as int8 and a scale per row [.., O, 1], at least float32; their product is at most half a
    scale off."""
    exact = float32_at_least(weight)  # float16 has too few small scales
    scale = exact.abs().amax(-1, keepdim=True) / MOST
    return (exact / scale.where(scale > 0, 1.0)).round().to(torch.int8), scale


class CastLinear(nn.Module):
    """A linear layer with weights [O, I] of another dtype, in which products are computed."""

    weight: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().to(dtype))
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """[.., I] -> [.., O]."""
        out = linear(x.to(self.weight.dtype), self.weight).to(x.dtype)
        return out if self.bias is None else out + self.bias


def placed(net: Net, device: torch.device, dtype: torch.dtype) -> Net:
    """A network on a device, with its parameters in a dtype. Buffers keep theirs: rotary frequencies in half precision
    would turn far positions by whole radians.
    """
    for parameter in net.to(device).parameters():
        parameter.data = parameter.data.to(dtype)
    return net


def read_format(dtype: Any) -> torch.dtype | None:
    """The format that a user means by a dtype or its name; None for None. Raises InputError: there is no such one."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in FORMATS:
        raise InputError(f"drafter_dtype={shorten(dtype)} is not valid: {', '.join(FORMATS)}")
    return FORMATS[name]


def lower(drafter: Any, target: Any, dtype: torch.dtype) -> None:
    """Convert the linear layers of a drafter, in place; those that are its target's stay as they are.

    Args: drafter: bound to the target; `net` is its network. dtype: of `FORMATS`.
    Raises: MismatchError: it has no layers of its own to convert.
    """
    net = drafter.net
    theirs = {weight.data_ptr() for weight in target.model.parameters()}
    if net is None or not convert(net, dtype, theirs):
        raise MismatchError(
            f"the drafter {type(drafter).__name__} has no linear layers of its own, so drafter_dtype has nothing to "
            "convert: leave it out, or choose a trained drafter"
        )


def convert(net: nn.Module, dtype: torch.dtype, theirs: Collection[int] = ()) -> int:
    """Put a converted layer in the place of each linear layer of a network; returns how many it has.

    Args: theirs: addresses of weights that are another's, and stay.
    """
    made: dict[nn.Module, nn.Module] = {}
    for name, layer in list(net.named_modules(remove_duplicate=False)):  # some have one layer in two places
        if type(layer) not in (nn.Linear, WordRows, Part) or layer.get_parameter("weight").data_ptr() in theirs:
            continue
        if layer not in made:
            made[layer] = converted(layer, dtype)
        net.set_submodule(name, made[layer])
    return len(made)


def converted(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A linear layer in another format, or as it is, if it is of that dtype already."""
    weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    if weight.dtype == dtype:
        return layer
    return Int8Linear(weight, bias) if dtype == torch.int8 else CastLinear(weight, bias, dtype)


def is_lowered(drafter: Any) -> bool:
    """Whether some layers of a drafter were converted."""
    parts = () if drafter.net is None else drafter.net.modules()
    return any(isinstance(part, Int8Linear | CastLinear) for part in parts)


def weight_bytes(net: nn.Module) -> int:
    """The memory of a network's parameters and buffers; what stands in two places counts once."""
    return sum(tensor.nbytes for tensor in {*net.parameters(), *net.buffers()})
