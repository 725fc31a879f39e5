"""Groups of tokens that sound alike: for each token, those whose embeddings point the same way (arXiv 2511.13732).

G(k) holds the tokens t with cos(E_k, E_t) > theta, and k itself. Groups overlap: a token belongs to all its owners
S(t) = {k : t in G(k)} with the weight 1 / |S(t)|. The law of groups that a law of tokens makes is

    P(k) = sum over t in G(k) of p(t) / |S(t)|

which sums to 1. Only pairs that are alike are stored: a group may hold thousands of tokens where most hold one. Groups
by cosines are symmetric, so each pair is compared once, and the owners of a token are the members of its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.errors import InputError

CHUNK = 256  # rows of the cosine table that are in memory at once
STEPS = 2**20  # thresholds between 0 and 1: a power of 2, so that cosines are compared with them without rounding


@dataclass
class Groups:
    """The groups of V tokens, one behind the other; group k holds the tokens that own k, too.

    starts: [V + 1], group k lies from k's start to that of k + 1. items: [E].
    """

    starts: Tensor
    items: Tensor

    @classmethod
    def of(cls, pairs: Tensor, count: int) -> Groups:
        """Those of `count` tokens from pairs [E, 2] of group and member, each in both orders; members ascend."""
        keys = (pairs[:, 0] * count + pairs[:, 1]).sort().values
        ends = torch.bincount(keys // count, minlength=count).cumsum(0)
        return cls(torch.cat([ends.new_zeros(1), ends]), keys % count)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, token: int) -> Tensor:
        return self.items[self.starts[token] : self.starts[token + 1]]

    @cached_property
    def sizes(self) -> Tensor:
        """[V] tokens of each group, and owners of each token, |S(t)|."""
        return self.starts.diff()

    @cached_property
    def longest(self) -> int:
        """Tokens of the largest group."""
        return int(self.sizes.max())

    @property
    def mean_size(self) -> float:
        """Tokens of a group, on average."""
        return len(self.items) / len(self)

    def sums(self, values: Tensor) -> Tensor:
        """[.., V] values of tokens -> [.., V] their sum over each group."""
        out = values.new_empty(values.shape)
        rows = zip(values.reshape(-1, len(self)), out.view(-1, len(self)), strict=True)
        for row, place in rows:  # one by one, since [.., E] may be too large
            place.copy_(torch.segment_reduce(row[self.items], "sum", offsets=self.starts, axis=0))
        return out

    def masses(self, law: Tensor) -> Tensor:
        """[.., V] a law of tokens -> [.., V] the law of groups that it makes."""
        return self.sums(law / self.sizes)

    def mass(self, law: Tensor, group: Tensor) -> Tensor:
        """The same for one group of each law. law: [B, V]. group: [B]. Returns: [B]."""
        place = self.starts[group][:, None] + torch.arange(self.longest, device=group.device)
        within = place < self.starts[group + 1][:, None]
        members = self.items[place.clamp(max=len(self.items) - 1)]
        return torch.where(within, law.gather(1, members) / self.sizes[members], 0.0).sum(-1)

    def spread(self, law: Tensor, groups: Tensor) -> Tensor:
        """The law of tokens [.., V] when a group is drawn from `groups` [.., V], and a token of it by `law`."""
        within = self.masses(law)
        inside = torch.where(within > 0, groups / within.clamp(min=torch.finfo(law.dtype).tiny), 0.0)
        # the weight is divided by the group's mass first, so that a group of one token gives exactly its own share
        return law / self.sizes * self.sums(inside)


def alike(embeddings: Tensor, theta: float, alone: Sequence[int] = ()) -> Groups:
    """Groups by the cosine of embeddings [V, H] above `theta`; tokens in `alone` are groups of their own."""
    ids = in_company(embeddings, alone)
    itself = torch.arange(len(embeddings), device=ids.device)
    found = [(cosines > theta).nonzero() + start for start, cosines in blocks(embeddings[ids])]
    above = torch.cat([ids.new_zeros(0, 2), *found])
    pairs = torch.cat([itself[:, None].expand(-1, 2), ids[above], ids[above.flip(1)]])  # [E, 2] group, member
    return Groups.of(pairs, len(embeddings))


def by_size(embeddings: Tensor, size: float, alone: Sequence[int] = ()) -> Groups:
    """Groups with about `size` tokens on average, no more: theta follows from it, as its scale differs between models.

    Raises: InputError: a size below 1, or above the number of tokens that may have company.
    """
    ids = in_company(embeddings, alone)
    free = len(ids)
    if not 1 <= size <= max(free, 1):
        raise InputError(f"groups of {size} tokens on average cannot be made of {free} tokens: give 1 to {free}")
    if size == 1:  # every token is a group of its own, however alike they are
        return alike(embeddings, 1.0, range(len(embeddings)))
    return alike(embeddings, threshold(embeddings[ids], (size - 1) * len(embeddings)), alone)


def threshold(embeddings: Tensor, most: float) -> float:
    """The lowest theta, in steps, that the cosines of at most `most` pairs of different embeddings exceed."""
    counts = torch.zeros(2 * STEPS + 1, dtype=torch.long, device=embeddings.device)
    for _, cosines in blocks(embeddings):
        steps = (cosines * STEPS).ceil().clamp(-STEPS, STEPS).long()  # above a step exactly if the cosine is
        counts += torch.bincount(steps.flatten() + STEPS, minlength=len(counts))
    above = counts.flip(0).cumsum(0).flip(0) - counts
    return (int((2 * above > most).sum()) - STEPS) / STEPS  # `above` falls, and each pair stands for both orders


def in_company(embeddings: Tensor, alone: Sequence[int]) -> Tensor:
    """The tokens that are not in `alone`."""
    free = torch.ones(len(embeddings), dtype=torch.bool, device=embeddings.device)
    free[list(alone)] = False
    return free.nonzero()[:, 0]


def blocks(embeddings: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Some rows of the table of cosines at a time, from the column of the first one on, with its number: each pair
    once, and -inf in the places that are left."""
    directions = torch.nn.functional.normalize(embeddings.float(), dim=-1)
    for start in range(0, len(directions), CHUNK):
        cosines = directions[start : start + CHUNK] @ directions[start:].T
        square = cosines[:, : len(cosines)]
        square.masked_fill_(torch.ones_like(square, dtype=torch.bool).tril(), -torch.inf)
        yield start, cosines
