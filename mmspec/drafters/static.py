"""Static trees from measured acceptance: the shape that emits the most tokens for its number of nodes (Sequoia, arXiv
2402.12374).

A node is the path of ranks that leads to it: 0 is its parent's most confident child. If the child of rank k at level d
is the accepted one in a share s[d][k] of the rounds that got to its parent, a path is accepted in the product of its
shares, and a tree emits, on average, the sum of that over its nodes. Since no product grows along a path, taking the
best node that hangs from those taken is optimal; it finds what Sequoia's dynamic programme finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from mmspec.errors import InputError

Shares = tuple[tuple[float, ...], ...]
"""[levels][ranks]; deeper levels are like the last one."""

TYPICAL: Shares = ((0.70, 0.15, 0.055, 0.03, 0.018, 0.012, 0.009, 0.007),)
"""Shares before anything is measured."""


class Node(NamedTuple):
    """Where a node hangs: the index of its parent, its rank among its siblings, its level."""

    parent: int
    rank: int
    level: int


def checked(shares: Sequence[Sequence[float]]) -> Shares:
    """Shares as `best_tree` takes them: in descending order of rank, so that siblings are always the first ranks.

    Raises: InputError: not probabilities, or none.
    """
    rows = tuple(tuple(sorted(map(float, row), reverse=True)) for row in shares)
    if not rows or not all(rows) or not all(0 <= share <= 1 for row in rows for share in row):
        raise InputError("acceptance shares are a list of levels, each a list of ranks, of numbers in [0, 1]")
    return rows


@lru_cache
def best_tree(shares: Shares, total: int, depth: int, width: int) -> tuple[Node, ...]:
    """Every node but node 0, level by level, siblings in the order of their ranks.

    Args: total: nodes, node 0 included. depth: most levels. width: most children of a node.
    """
    heap: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    chosen: list[tuple[int, ...]] = []
    while heap and len(chosen) < total:
        weight, path = heappop(heap)
        chosen.append(path)
        if len(path) < depth:
            row = shares[min(len(path), len(shares) - 1)]
            for rank in range(min(width, len(row))):
                heappush(heap, (weight * row[rank], (*path, rank)))
    chosen.sort(key=lambda path: (len(path), path))
    place = {path: node for node, path in enumerate(chosen)}
    return tuple(Node(place[path[:-1]], path[-1], len(path)) for path in chosen[1:])
