"""Draft trees that grow with the confidence of a drafter (EAGLE-2, arXiv 2406.16858).

The drafter is asked what follows a node level by level, for all nodes that get children at once, or only once if it
guesses all levels together. Which children they get is told in `mmspec.drafters.children`. Drawn ones need a tree that
is the same in every round (`mmspec.drafters.filling`): a shape that looked at the draws would change the law of the
ratio rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.contract import Draft, Shape
from mmspec.drafters.children import Choice, Judged
from mmspec.drafters.host import plant, surer, surest
from mmspec.tree import best

LEVEL, SURE = 3, 0.5
"""Nodes that cost a CPU as much to verify as one more level costs to draft; confidence in a path below which one more
level is drafted in any case."""

Above = Callable[[], Tensor]
Expand = Callable[[int, Tensor, Tensor, Above], Tensor | Judged]
"""expand(level, tokens, origin, above) -> logits [B, F, V] of what follows F nodes at this level, perhaps judged.

tokens: [B, F] of the nodes; at level 0 the pending token. origin: [B, F] which of the nodes of the call before is the
parent. above: gives [B, F, M] bool, which of the M nodes of all calls from level 1 on lie on the path to each node,
itself included.
"""


@dataclass(frozen=True)
class Guess:
    """What networks say that guess all levels at once: the same law under every node of a level.

    logits: how many levels are wanted -> [B, levels, V]; asked once per tree.
    """

    logits: Callable[[int], Tensor]

    def level_by_level(self, levels: int) -> Expand:
        """The same, for trees that are built in this way all the same."""
        laws = self.logits(levels)
        return lambda level, tokens, origin, above: laws[:, level, None].expand(-1, tokens.shape[1], -1)


class Lineage:
    """Who stands above the nodes of a growing tree: what `Expand` is told. Nothing is made of it unless it is asked."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self.seen = torch.zeros(batch, 1, 0, dtype=torch.bool, device=device)
        self.rows = torch.arange(batch, device=device)[:, None]
        self.waiting: list[Tensor] = []

    def descend(self, origin: Tensor) -> None:
        """To the nodes of the next level, with their parents [B, F] among those of this one."""
        self.waiting.append(origin)

    def above(self) -> Tensor:
        """[B, F, M] bool, see `Expand`."""
        for origin in self.waiting:
            itself = torch.eye(origin.shape[1], dtype=torch.bool, device=origin.device)
            inherited = self.seen[self.rows, origin]
            self.seen = torch.cat([inherited, itself.expand(len(origin), -1, -1)], -1)
        self.waiting = []
        return self.seen


def grow(
    pending: Tensor,
    emitted: Tensor,
    choice: Choice,
    expand: Expand | Guess,
    shape: Shape,
    top_k: int,
    least: float = 0.0,
) -> Draft:
    """A dynamic tree: every level keeps the `width` most confident nodes, the best `total - 1` of all are verified.

    Args: pending, emitted: [B]. shape: at least one level deep. top_k: children proposed per node. least: confidence in
        a node's path below which it is left out; what a node costs in tokens, so that a deeper level is asked for only
        below a path of `LEVEL` times as much, or of `SURE`: above 0 the host decides, and rows may differ in size.

    Of a guess nothing is asked node by node, so it costs nothing to keep all nodes that may be among the best.
    """
    batch, device, width = len(pending), pending.device, shape.width
    guessed: tuple[Tensor, Tensor] | None = None
    if isinstance(expand, Guess) and choice.personal:
        expand = expand.level_by_level(shape.depth)
    elif isinstance(expand, Guess):
        guessed = choice.children_of_levels(expand.logits(shape.depth), emitted, top_k)  # [B, levels, k]
        width = shape.total - 1
    tokens, origin = pending[:, None], torch.zeros(batch, 1, dtype=torch.long, device=device)
    parent = torch.full((batch, 1), -1, device=device)  # candidate index of each frontier node
    score = torch.zeros(batch, 1, dtype=torch.float32, device=device)
    lineage = Lineage(batch, device)
    paths = pending[:, None, None]
    grown: list[tuple[Tensor, ...]] = []  # tokens, parents, scores and depth of each level's candidates
    count, worth = 0, (least, min(LEVEL * least, max(least, SURE)))  # of a node, and of one more level
    floor, deeper = (math.log(part) if least else -math.inf for part in worth)
    for level in range(shape.depth):
        if guessed is None:
            law = expand(level, tokens, origin, lineage.above)  # type: ignore[operator]
            children, confidence = choice.children(law, emitted, level, top_k, paths, shape.depth)
        else:
            children, confidence = (each[:, level, None].expand(-1, tokens.shape[1], -1) for each in guessed)
        token, sums = children.flatten(1), (score[..., None] + confidence).flatten(1)
        grown.append((token, parent[..., None].expand_as(children).flatten(1), sums, torch.full_like(token, level + 1)))
        if level + 1 == shape.depth or (least and float(sums.max()) < deeper):
            break
        score, chosen = sums.topk(min(width, token.shape[1]), dim=-1)
        parent, origin = chosen + count, chosen // children.shape[-1]
        count += token.shape[1]
        lineage.descend(origin)
        tokens = token.gather(1, chosen)
        paths = choice.paths(paths, origin, tokens)
    found, parents, scores, depth = (torch.cat(part, 1) for part in zip(*grown, strict=True))
    if least:
        rows = zip(pending.tolist(), found.tolist(), parents.tolist(), scores.tolist(), strict=True)
        trees = [surer(root, some, above, sure, shape.total, floor) for root, some, above, sure in rows]
        return plant(trees, device, choice.kind)
    draft = best(found, parents, scores, depth, pending, shape.total, choice.kind)
    draft._levels = shape.depth
    return draft


def grow_at_once(
    pending: Sequence[int], emitted: Tensor, choice: Choice, guess: Guess, shape: Shape, top_k: int
) -> Draft:
    """The tree of the `total - 1` most confident nodes, if all levels are guessed at once: no level has to wait for the
    one above it, and what decides is small enough for the host.

    Args: pending: of every row. emitted: [B]. choice: not a `personal` one. shape: its width is not asked for.
    """
    tokens, confidence = choice.children_of_levels(guess.logits(shape.depth), emitted, top_k)
    rows = zip(pending, tokens.tolist(), confidence.tolist(), strict=True)
    return plant([surest(first, some, sure, shape.total) for first, some, sure in rows], tokens.device, choice.kind)
