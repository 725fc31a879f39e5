"""Groups of tokens that sound alike: for each token, those whose embeddings point the same way (arXiv 2511.13732).

G(k) holds the tokens t with cos(E_k, E_t) > theta, and k itself. Groups overlap: a token belongs to all its owners
S(t) = {k : t in G(k)} with the weight 1 / |S(t)|. The law of groups that a law of tokens makes is

    P(k) = sum over t in G(k) of p(t) / |S(t)|

which sums to 1. Stored as two padded tables instead of a V x V matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.errors import InputError

CHUNK = 1024  # rows of the cosine table that are in memory at once


@dataclass
class Groups:
    """members: [V, M] the tokens of each group. owners: [V, O] the groups of each token. Both are padded with V."""

    members: Tensor
    owners: Tensor

    @property
    def shares(self) -> Tensor:
        """[V] number of owners of each token, |S(t)|."""
        return (self.owners < len(self.owners)).sum(-1)

    @property
    def mean_size(self) -> float:
        """Tokens of a group, on average."""
        return float((self.members < len(self.members)).sum(-1).float().mean())

    def masses(self, law: Tensor) -> Tensor:
        """[.., V] a law of tokens -> [.., V] the law of groups that it makes."""
        weighted = torch.cat([law / self.shares, law.new_zeros(*law.shape[:-1], 1)], -1)
        return weighted[..., self.members].sum(-1)

    def mass(self, law: Tensor, group: Tensor) -> Tensor:
        """The same for one group of each law. law: [B, V]. group: [B]. Returns: [B]."""
        weighted = torch.cat([law / self.shares, law.new_zeros(len(law), 1)], -1)
        return weighted.gather(1, self.members[group]).sum(-1)

    def spread(self, law: Tensor, groups: Tensor) -> Tensor:
        """The law of tokens [.., V] when a group is drawn from `groups` [.., V], and a token of it by `law`."""
        within = self.masses(law)
        inside = torch.where(within > 0, groups / within.clamp(min=torch.finfo(law.dtype).tiny), 0.0)
        # the weight is divided by the group's mass first, so that a group of one token gives exactly its own share
        parts = torch.cat([law / self.shares, law.new_zeros(*law.shape[:-1], 1)], -1)[..., : len(self.owners)]
        padded = torch.cat([inside, inside.new_zeros(*inside.shape[:-1], 1)], -1)
        return parts * padded[..., self.owners].sum(-1)


def alike(embeddings: Tensor, theta: float, alone: Sequence[int] = ()) -> Groups:
    """Groups by the cosine of embeddings [V, H] above `theta`; tokens in `alone` are groups of their own."""
    directions = torch.nn.functional.normalize(embeddings.float(), dim=-1)
    count = len(directions)
    lonely = torch.zeros(count, dtype=torch.bool, device=directions.device)
    lonely[list(alone)] = True
    rows = []
    for start in range(0, count, CHUNK):
        near = directions[start : start + CHUNK] @ directions.T > theta
        near &= ~lonely & ~lonely[start : start + CHUNK, None]
        near[torch.arange(len(near)), torch.arange(start, start + len(near))] = True
        rows.append(near.nonzero() + torch.tensor([start, 0], device=near.device))
    pairs = torch.cat(rows)  # [E, 2] group, member
    return Groups(_table(pairs, count), _table(pairs.flip(1), count))


def by_size(embeddings: Tensor, size: float, alone: Sequence[int] = ()) -> Groups:
    """Groups with about `size` tokens on average: theta is searched for, since its scale differs between models.

    Raises: InputError: a size below 1, or above the number of tokens that may have company.
    """
    free = len(embeddings) - len(set(alone))
    if not 1 <= size <= max(free, 1):
        raise InputError(f"groups of {size} tokens on average cannot be made of {free} tokens: give 1 to {free}")
    if size == 1:
        return alike(embeddings, 2.0, alone)
    low, high = -1.0, 1.0
    for _ in range(24):
        theta = (low + high) / 2
        low, high = (theta, high) if alike(embeddings, theta, alone).mean_size > size else (low, theta)
    return alike(embeddings, high, alone)


def _table(pairs: Tensor, count: int) -> Tensor:
    """[E, 2] pairs of row and entry -> [count, most] the entries of each row, padded with `count`."""
    pairs = pairs[pairs[:, 0].sort(stable=True).indices]
    sizes = torch.bincount(pairs[:, 0], minlength=count)
    starts = sizes.cumsum(0) - sizes
    place = torch.arange(len(pairs), device=pairs.device) - starts[pairs[:, 0]]
    table = torch.full((count, int(sizes.max())), count, device=pairs.device)
    table[pairs[:, 0], place] = pairs[:, 1]
    return table
