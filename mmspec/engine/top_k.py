"""The highest scores of a large vocabulary in Triton: two short launches in the place of a sort.

Each program takes one part of a row and gives away its maximum k times; one more program per row does the same to what
the parts gave. `torch.topk`, which serves everywhere else, is its twin, but for equal scores and for NaN, which counts
as -inf here.
"""

# No postponed annotations here: torch reads the schema of the operator from them. Kernels are written in Triton's
# language, whose arguments have no Python types.
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

PART = 1024
"""Scores that a program looks at."""
MOST = 32
"""Largest k."""


def serves(scores: Tensor, k: int) -> bool:
    """Whether the kernels find them: scores in float32, and few of many are wanted."""
    return scores.dtype == torch.float32 and k <= MOST <= scores.shape[-1]


@triton.jit
def _best(scores, names, values, places, size, parts, NAMED: tl.constexpr, K: tl.constexpr, PART: tl.constexpr):
    """The K highest of one part of a row; a place stands for itself, or with names for the name at that place."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    lane = tl.arange(0, PART)
    place = part * PART + lane
    left = tl.load(scores + row * size + place, mask=place < size, other=float("-inf"))
    left = tl.where(left == left, left, float("-inf"))
    for rank in range(K):
        top, at = tl.max(left, 0, return_indices=True)
        goal = (row * parts + part) * K + rank
        found = tl.minimum(part * PART + at, size - 1)  # behind the end only where fewer than K scores are left
        tl.store(values + goal, top)
        tl.store(places + goal, tl.load(names + row * size + found) if NAMED else found.to(tl.int64))
        left = tl.where(lane == at, float("-inf"), left)


@torch.library.custom_op("mmspec::top_k", mutates_args=())
def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores and their places, both [.., k], in descending order.

    Args: scores: [.., V] float32. Where fewer than k are above -inf, what stands behind these is any place.
    """
    scores = scores.contiguous()
    size = scores.shape[-1]
    rows, parts = scores.numel() // size, triton.cdiv(size, PART)
    values = scores.new_empty(rows, parts * k)
    places = torch.empty(rows, parts * k, dtype=torch.long, device=scores.device)
    with torch.cuda.device_of(scores):  # Triton launches on the current device
        _best[(rows, parts)](scores, places, values, places, size, parts, NAMED=False, K=k, PART=PART)
        if parts > 1:
            best, found = values.new_empty(rows, k), places.new_empty(rows, k)
            wide = triton.next_power_of_2(parts * k)
            _best[(rows, 1)](values, places, best, found, parts * k, 1, NAMED=True, K=k, PART=wide)
            values, places = best, found
    shape = (*scores.shape[:-1], k)
    return values.view(shape), places.view(shape)


@top_k.register_fake
def _shape_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    shape = (*scores.shape[:-1], k)
    return scores.new_empty(shape), scores.new_empty(shape, dtype=torch.long)
