"""Synthetic acceptance: complete rounds of a model with random weights, of which only the accepted count is made up.

The exact rule does all its work; then the path becomes that of the first node at a depth that a table tells by row and
round, on the device. What is emitted means nothing, and every figure made with it is labelled synthetic. Two laws, both
with an exact mean of tau - 1 over the table:

- `geometric`: truncated geometric over 0 .. depth, each value in its due share, in any stretch of rounds;
- `even`: the lowest variance that the mean allows: its floor, or one more, evenly spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.acceptance.exact import Exact, choices
from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.errors import InputError
from mmspec.sampling import Sampler
from mmspec.tree import path_to, reached

ROUNDS = 1024
GOLDEN = (math.sqrt(5) - 1) / 2


def geometric(tau: float, depth: int) -> list[float]:
    """Probabilities of accepting 0 .. depth tokens: p^a (1 - p), and p^depth for all; p such that the mean is tau - 1.

    Raises: InputError: no such draft emits that many tokens.
    """
    check(tau, depth)
    low, high = 0.0, 1.0
    for _ in range(100):
        p = (low + high) / 2
        low, high = (p, high) if math.fsum(p**level for level in range(1, depth + 1)) < tau - 1 else (low, p)
    p = (low + high) / 2
    return [*(p**level * (1 - p) for level in range(depth)), p**depth]


def geometric_table(tau: float, depth: int, rows: int, rounds: int = ROUNDS) -> Tensor:
    """[rows, rounds] int64: accepted tokens; each count in its share, in few rounds, too: places in the law go on by
    the golden ratio, every row from another one."""
    edges = torch.tensor(geometric(tau, depth), dtype=torch.float64).cumsum(0)
    places = (torch.arange(rounds, dtype=torch.float64) * GOLDEN + torch.arange(rows)[:, None] / rows) % 1
    return torch.bucketize(places, edges[:-1], right=True)


def even_table(tau: float, depth: int, rows: int, rounds: int = ROUNDS) -> Tensor:
    """[rows, rounds] int64: accepted tokens, floor(tau) - 1 or one more, as evenly as possible."""
    check(tau, depth)
    ends = ((torch.arange(rounds + 1, dtype=torch.float64)) * (tau - 1) + 1e-9).floor().long()
    return ends.diff().expand(rows, -1).clone()


def check(tau: float, depth: int) -> None:
    """Raise InputError unless drafts of that depth can emit tau tokens per round."""
    if not 1 <= tau <= depth + 1:
        raise InputError(f"tau={tau} is not possible with drafts of depth {depth}: it must lie in [1, {depth + 1}]")


TABLES: dict[str, Callable[[float, int, int], Tensor]] = {"geometric": geometric_table, "even": even_table}


class Synthetic(Rule):
    """An acceptance rule whose counts come from a table.

    Args: table: [B, R] accepted tokens by row and round; after R rounds it begins again. Recording a round takes a few
        of them.
    """

    lossless = False
    invariant = False
    on_device = True
    takes: tuple[Kind, ...] = Exact.takes

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.round = torch.full((1,), -1, device=table.device)  # on the device, as a recorded round counts it

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """The path to the first node as deep as the table says, or as deep as there is one. See `Rule`."""
        choice = choices(draft, scores, sampler, emitted)
        end = reached(draft, choice)
        wanted = self.table[: len(emitted)].index_select(1, self.round.add_(1) % self.table.shape[1])
        depth = draft.depth if draft.valid is None else draft.depth.masked_fill(~draft.valid, 0)
        last = torch.where(depth <= wanted, depth, -1).argmax(-1)
        return path_to(draft, last, choice.gather(1, end[:, None])[:, 0])
