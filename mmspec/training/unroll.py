"""Running a head on its own estimates while it is trained, as drafting does: EAGLE-3's training-time test (arXiv
2503.01840, section 3.2), and with gradients that stop between the steps HASS's context alignment (arXiv 2408.15766).

While drafting, only the slots up to the pending token carry true features; level s of the tree has estimates in its
last s slots. So step s feeds each slot the estimate that step s - 1 made one slot earlier, and lets it see what it will
see then: true slots up to t - s, then one slot of each of the steps 1 to s. The tokens are the true ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from mmspec.cache import additive
from mmspec.errors import InputError
from mmspec.training.recipe import setting
from mmspec.training.steps import HeadRecipe


@dataclass(frozen=True, kw_only=True)
class UnrolledRecipe(HeadRecipe):
    """How a head that runs on its own estimates is trained."""

    unroll: int = setting("steps, of which all but the first run on estimates; best as many as the tree has levels", 5)
    intermediate: int | None = setting("width of the layer's MLP; none: the target's", None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.unroll <= 16:
            raise InputError(f"an unroll has 1 to 16 steps, got {self.unroll}")
        if self.intermediate is not None and self.intermediate < 1:
            raise InputError(f"the MLP of {self.method} needs a positive width, got {self.intermediate}")


def unroll(
    head: Any,
    embeddings: Tensor,
    features: Tensor,
    first: int,
    steps: int,
    fed: Callable[[Tensor], Tensor] = lambda estimate: estimate,
) -> list[Tensor]:
    """Estimates of the slots from `first` on, one tensor per step.

    Args:
        head: called as `mmspec.drafters.eagle.EagleHead` is. embeddings: [B, T, H] of x_1 .. x_T.
        features: [B, T, H] f_0 .. f_{T-1}. first: at least 1. fed: what the next step gets of an estimate.
    Returns: `steps` tensors [B, T - first, H]. In step s the first s slots have no estimates to start from: do not
    use them.
    """
    width, device = features.shape[1], features.device
    positions = torch.arange(width, device=device)[None]
    cache = DynamicCache()
    whole = head(embeddings, features, positions, None, cache)
    found = [whole[:, first:]]
    before = whole[:, first - 1 : -1]
    for step in range(1, steps):
        mask = unrolled_mask(width, first, step, features.dtype, device)
        found.append(head(embeddings[:, first:], fed(before), positions[:, first:], mask, cache))
        before = pad(found[-1], (0, 0, 1, 0))[:, :-1]
    return found


def unrolled_mask(width: int, first: int, step: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[1, 1, R, width + step * R] additive mask of step `step` over the keys of all steps so far, R = width - first."""
    slots = torch.arange(first, width, device=device)[:, None]
    true = torch.arange(width, device=device) <= slots - step
    own = [slots - (step - earlier) == slots.T for earlier in range(1, step + 1)]
    return additive(torch.cat([true, *own], -1)[None, None], dtype)
