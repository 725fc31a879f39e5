"""Static trees, filled with what a drafter says: the same nodes in every round, whatever the confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.ancestry import ancestors
from mmspec.contract import Draft
from mmspec.drafters.children import Choice
from mmspec.drafters.growing import Expand
from mmspec.drafters.static import Node


@dataclass(frozen=True)
class Level:
    """A level of a static tree, on a device.

    inner: [F] the nodes that have children here; origin: [F] the place of each one's parent among those of the level
    before; above: [F, M] bool, as for `Expand`. picks, ranks: [n] of each child its parent's place in `inner` and its
    rank; most: the number of ranks.
    """

    inner: Tensor
    origin: Tensor
    above: Tensor
    picks: Tensor
    ranks: Tensor
    most: int


Plan = tuple[list[Level], Tensor, Tensor]
"""The levels of a static tree; parent and depth of every node, node 0 included: [N, 2]; who stands above whom, [N, N].
"""


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def planned(tree: tuple[Node, ...], device: torch.device) -> Plan:
    """A static tree (see `mmspec.drafters.static.best_tree`), copied to a device once."""

    def listed(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    found, parents = [], {node.parent for node in tree}
    inner, origin = [0], [0]
    above = torch.zeros(1, 0, dtype=torch.bool, device=device)
    for level in range(1, 1 + max((node.level for node in tree), default=0)):
        here = [(index, node) for index, node in enumerate(tree, 1) if node.level == level]
        picks, ranks = [inner.index(node.parent) for _, node in here], [node.rank for _, node in here]
        found.append(Level(listed(inner), listed(origin), above, listed(picks), listed(ranks), 1 + max(ranks)))
        below = [(index, lane) for (index, _), lane in zip(here, picks, strict=True) if index in parents]
        inner, origin = [index for index, _ in below], [lane for _, lane in below]
        itself = torch.eye(len(inner), dtype=torch.bool, device=device)
        above = torch.cat([above[listed(origin)], itself], -1)
    layout = torch.tensor([(-1, 0), *((node.parent, node.level) for node in tree)], device=device)
    return found, layout, ancestors(layout[None, :, 0])[0]


def fill(pending: Tensor, emitted: Tensor, choice: Choice, expand: Expand, plan: Plan) -> Draft:
    """A static tree: the same nodes for every row and round, whatever the confidence. pending, emitted: [B]."""
    batch, tokens, paths = len(pending), pending[:, None], pending[:, None, None]
    parts, layout, above_all = plan
    laws: list[tuple[Tensor, Tensor]] = []
    for level, part in enumerate(parts):
        origin, above = part.origin.expand(batch, -1), part.above.expand(batch, -1, -1)
        if level > 0:
            paths = choice.paths(paths, origin, tokens[:, part.inner])
        law = expand(level, tokens[:, part.inner], origin, lambda above=above: above)  # type: ignore[misc]
        if choice.draws:
            children, scores = choice.drawn(law, emitted, level, part.most, paths, len(parts))
            laws.append((part.inner, scores.softmax(-1)))
        else:
            children = choice.ahead(law, emitted, level, part.most, paths, len(parts))
        tokens = torch.cat([tokens, children[:, part.picks, part.ranks]], 1)
    parents, depth = layout.expand(batch, -1, -1).unbind(2)
    every = above_all.expand(batch, -1, -1)
    draft = Draft(tokens, parents, depth, choice.kind, _ancestors=every, _levels=len(parts))
    if laws:
        draft.q = laws[0][1].new_zeros(batch, draft.size, laws[0][1].shape[-1])
        for nodes, law in laws:
            draft.q[:, nodes] = law
    return draft
