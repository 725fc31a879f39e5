"""How often the child of each rank is the accepted one, measured by decoding: what shapes a static tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.contract import Accepted, Draft, Drafter
from mmspec.drafters.static import Shares
from mmspec.drafters.watched import Watched
from mmspec.training.validation import measure

PRIOR = 4.0
"""How many observations the shares that a drafter had before are worth."""


class Counting(Watched):
    """A drafter whose rounds are counted.

    hits, tries: [levels][ranks], how often the child of a rank was accepted, and how often there was one whose parent
    was.
    """

    def __init__(self, drafter: Drafter, levels: int, ranks: int) -> None:
        super().__init__(drafter)
        self.hits, self.tries = ([[0] * ranks for _ in range(levels)] for _ in range(2))

    def look(self, draft: Draft, accepted: Accepted) -> None:
        """See `Watched`."""
        for parents, path, emitted in zip(draft.parents.tolist(), accepted.paths, accepted.emitted, strict=True):
            if emitted:
                self.count(parents, path)

    def count(self, parents: list[int], path: list[int]) -> None:
        """Take note of one row's round: the parents of all nodes, and the accepted path from node 0 on."""
        siblings: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            siblings.setdefault(parent, []).append(node)
        for level, node in enumerate(path[: len(self.tries)]):
            following = path[level + 1] if level + 1 < len(path) else None
            for rank, child in enumerate(siblings.get(node, [])[: len(self.tries[level])]):
                self.tries[level][rank] += 1
                self.hits[level][rank] += child == following


def measured_shares(
    pipe: Any, drafter: Any, inputs: Sequence[Mapping[str, Any]], max_new_tokens: int, seed: int
) -> Shares:
    """The shares of a drafter's ranks by level, greedy and sampled together (of what is always sampled, sampled alone),
    with its own draft size.

    Args: inputs: model inputs of held-out questions, in batches. Where little was seen, what the drafter assumed so far
        weighs in.
    """
    levels, ranks = min(drafter.depth, drafter.most), len(drafter.shares[0])
    counting = Counting(drafter, levels, ranks)
    measure(pipe, counting, inputs, max_new_tokens, seed)
    assumed = [drafter.shares[min(level, len(drafter.shares) - 1)] for level in range(levels)]
    return tuple(
        tuple((hit + PRIOR * share) / (seen + PRIOR) for hit, seen, share in zip(*three, strict=True))
        for three in zip(counting.hits, counting.tries, assumed, strict=True)
    )
