"""Trees that are decided on the host, row by row, and then planted into one draft.

For drafters that look things up: they read ids and write lists, and the device sees one small tensor per round. What
is common to them is here: a tree without twins, the tree of the likeliest among many observed continuations, and that
of the surest paths through levels that were guessed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import torch

from mmspec.contract import Draft, Kind


class HostTree:
    """One row's tree under its pending token.

    tokens, parents, depth: lists of length N, as in `mmspec.contract.Draft`.
    """

    def __init__(self, pending: int) -> None:
        self.tokens, self.parents, self.depth = [pending], [-1], [0]
        self._nodes: dict[tuple[int, int], int] = {}

    def child(self, parent: int, token: int) -> int:
        """The node of `token` under `parent`, made if it is not there: siblings are never equal."""
        node = self._nodes.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self.depth.append(self.depth[parent] + 1)
        return node

    def add(self, run: Iterable[int]) -> None:
        """A path of these tokens, sharing its beginning with what is there."""
        node = 0
        for token in run:
            node = self.child(node, token)


def plant(trees: Sequence[HostTree], device: torch.device, kind: Kind = "point") -> Draft:
    """One draft from a tree per row; rows with fewer nodes are padded with invalid ones."""
    sizes = [len(tree.tokens) for tree in trees]
    gaps = [max(sizes) - size for size in sizes]
    fields = [
        [
            tree.tokens + tree.tokens[:1] * gap,
            tree.parents + [0] * gap,
            tree.depth + [1] * gap,
            [1] * len(tree.tokens) + [0] * gap,
        ]
        for tree, gap in zip(trees, gaps, strict=True)
    ]
    tokens, parents, depth, real = torch.tensor(fields, device=device).unbind(1)  # four times [B, N]
    levels = max(max(tree.depth) for tree in trees)
    return Draft(tokens, parents, depth, kind, valid=real.bool() if any(gaps) else None, _levels=max(levels, any(gaps)))


def commonest(pending: int, runs: Sequence[Sequence[int]], total: int, share: float = 0.0) -> HostTree:
    """The tree of the `total - 1` beginnings that most of the observed continuations have.

    Args: runs: continuations, the ones to prefer among equals first. total: nodes, node 0 included.
        share: least share of the runs that a node must lie on, 0 to 1: its estimated probability.

    A beginning is never less frequent than a longer one, and is pushed before it, so parents always come first.
    """
    tree = HostTree(pending)
    heap: list[tuple[int, int, int, int, int, list[Sequence[int]]]] = []

    def offer(node: int, level: int, members: Sequence[Sequence[int]]) -> None:
        groups: dict[int, list[Sequence[int]]] = {}
        for run in members:
            if len(run) > level:
                groups.setdefault(run[level], []).append(run)
        for token, group in groups.items():
            if len(group) >= share * len(runs):
                offers.append(token)
                heappush(heap, (-len(group), len(offers), node, token, level, group))

    offers: list[int] = []
    offer(0, 0, runs)
    while heap and len(tree.tokens) < total:
        _, _, parent, token, level, group = heappop(heap)
        offer(tree.child(parent, token), level + 1, group)
    return tree


def surer(
    pending: int, tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], total: int, least: float
) -> HostTree:
    """The tree of the best candidates that are as sure as `least`, at most `total - 1`; the best one in any case.

    Args: tokens, parents, scores: of the candidates, as for `mmspec.tree.best`, whose choice this is but for `least`.
    """
    tree = HostTree(pending)
    order = sorted(range(len(tokens)), key=scores.__getitem__, reverse=True)[: total - 1]  # stable: parents come first
    nodes = {-1: 0}
    for place in sorted(place for rank, place in enumerate(order) if rank == 0 or scores[place] >= least):
        nodes[place] = tree.child(nodes[parents[place]], tokens[place])
    return tree


def surest(
    pending: int, tokens: Sequence[Sequence[int]], confidence: Sequence[Sequence[float]], total: int
) -> HostTree:
    """The tree of the `total - 1` surest paths, where every node of a level has the same children.

    Args: tokens, confidence: of each level the children, and their logarithms of confidence, the surest first.

    A path is never surer than its beginning, nor than the one whose last token is a rank better: whatever comes next is
    one token longer than a path that was taken, or a rank worse.
    """
    tree = HostTree(pending)
    heap = [(-confidence[0][0], 0, 0, 0, 0)]
    pushed = 0
    while heap and len(tree.tokens) < total:
        cost, _, parent, level, rank = heappop(heap)
        if cost == math.inf:
            break
        node = tree.child(parent, tokens[level][rank])
        if level + 1 < len(tokens):
            pushed += 1
            heappush(heap, (cost - confidence[level + 1][0], pushed, node, level + 1, 0))
        if rank + 1 < len(tokens[level]):
            pushed += 1
            step = confidence[level][rank] - confidence[level][rank + 1]
            heappush(heap, (cost + step, pushed, parent, level, rank + 1))
    return tree
