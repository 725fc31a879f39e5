"""Muon for hidden matrices, AdamW for the rest, as one optimizer that a Trainer can drive and save.

Sources: Keller Jordan, Muon (github KellerJordan/Muon, MIT), orthogonalised momentum; Loshchilov and Hutter, decoupled
weight decay. Matrices of one shape are orthogonalised together, in float32, which is what a CPU without bfloat16 wants.
`torch.optim.Muon` is not used because it orthogonalises in bfloat16, and one matrix at a time.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalized(matrices: Tensor, steps: int = 5) -> Tensor:
    """Roughly U V^T for each matrix U S V^T of [N, rows, columns]."""
    a, b, c = NEWTON_SCHULZ
    flip = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if flip else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if flip else x


class MuonAdamW(torch.optim.Optimizer):
    """Groups with `muon=True` hold matrices; all others are updated by AdamW."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(
            groups, {"lr": 1e-3, "muon": False, "weight_decay": 0.0, "momentum": 0.95, "betas": (0.9, 0.95)}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            (self._muon if group["muon"] else self._adamw)(group, parameters)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            shapes[parameter.shape].append(parameter)
        for shape, members in shapes.items():
            gradients = torch.stack([_gradient(parameter) for parameter in members])
            buffers = [self._momentum(parameter) for parameter in members]
            momentum = torch.stack(buffers).lerp_(gradients, 1 - group["momentum"])
            update = orthogonalized(gradients.lerp_(momentum, group["momentum"]))
            rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
            for index, parameter in enumerate(members):
                buffers[index].copy_(momentum[index])
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update[index], alpha=rate)

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        """That of a matrix so far, zero at first."""
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]

    def _adamw(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        low, high = group["betas"]
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
            state["step"] += 1
            gradient = _gradient(parameter)
            state["mean"].lerp_(gradient, 1 - low)
            state["square"].lerp_(gradient.square(), 1 - high)
            scale = (state["square"] / (1 - high ** state["step"])).sqrt_().add_(1e-8)
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.addcdiv_(state["mean"], scale, value=-group["lr"] / (1 - low ** state["step"]))


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def build_optimizer(model: nn.Module, rate: float, decay: float = 0.01) -> MuonAdamW:
    """Muon for the weight matrices of linear layers; AdamW for embeddings, norms and biases.

    Args: model: what stands under a module with a number `pace` learns at that multiple of the rates. rate: of
    matrices; of everything else it is 0.15 of that. decay: weight decay of matrices.
    An output head that says `table` is a row per word, and learns as embeddings do.
    """
    modules: list[Any] = list(model.modules())
    tables = {id(one.weight) for one in modules if isinstance(one, nn.Embedding) or getattr(one, "table", False)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    paced = [(module, getattr(module, "pace", None)) for module in model.modules()]
    pace = {id(one): factor for module, factor in paced if factor is not None for one in module.parameters()}
    small = 0.15 * rate
    groups: list[dict[str, Any]] = []
    for factor in sorted({1.0, *pace.values()}, reverse=True):
        own = [parameter for parameter in trained if pace.get(id(parameter), 1.0) == factor]
        matrices = [parameter for parameter in own if parameter.ndim == 2 and id(parameter) not in tables]
        chosen = {id(parameter) for parameter in matrices}
        rest = [parameter for parameter in own if id(parameter) not in chosen]
        groups += [
            {"params": matrices, "lr": factor * rate, "muon": True, "weight_decay": decay},
            {"params": rest, "lr": factor * small, "muon": False, "weight_decay": 0.0},
        ]
    return MuonAdamW(groups)
