"""Draft trees from a drafter that says what follows a node: dynamic ones (EAGLE-2, arXiv 2406.16858) and static ones.

The drafter is asked level by level, for all nodes that get children at once, or only once if it guesses all levels
together. Which children they get depends on the kind of proposal:

    point    log q, plain top-k.
    coupled  top-k of c log q + g with the target's noise g; the confidence is their softmax. c above 1 pays where the
             target is surer than the drafter, whose q is a mean of the laws that the target may have. A drafter may
             judge node by node how much its law counts, and how sure the outcome is (`Judged`).
    sampled  drawn without replacement, with noise of the draft's own. The tree is then always a static one, because a
             shape that looked at the draws would change the law of the ratio rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.contract import Draft, Kind, Shape
from mmspec.drafters.host import plant, surer, surest
from mmspec.drafters.static import Node
from mmspec.placeholders import listed, rule_out
from mmspec.sampling import Sampler
from mmspec.tree import best

MANY, PART = 8192, 128
"""From which vocabulary on it is searched in parts, and of how many words."""
LEVEL, SURE = 3, 0.5
"""Nodes that cost a CPU as much to verify as one more level costs to draft; confidence in a path below which one more
level is drafted in any case."""


class Judged(NamedTuple):
    """Laws of nodes, and what their drafter thinks of them: positive factors, each [B, F, 1]. Children that are drawn
    from a law, and plain ones above temperature 0, do not ask for them.

    logits: [B, F, V]. trust, sharpness: of `Choice.trust` and `Choice.sharpness`, where the target's noise decides.
    greedy: of the sharpness at temperature 0.
    """

    logits: Tensor
    trust: Tensor
    sharpness: Tensor
    greedy: Tensor


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


@dataclass(frozen=True)
class Choice:
    """How children are chosen on one request.

    placeholders: ids that are never proposed. trust: c, what log q counts beside the target's noise.
    sharpness: exponent of the confidence, coupled or greedy. barred: the placeholders on the sampler's device.
    """

    sampler: Sampler
    kind: Kind
    placeholders: Collection[int] = ()
    trust: float = 1.0
    sharpness: float = 1.0
    barred: Tensor | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "barred", listed(tuple(self.placeholders), self.sampler.device))

    @property
    def draws(self) -> bool:
        """Whether children are drawn from a law that the draft must declare."""
        return self.kind == "sampled" and not self.sampler.greedy

    @property
    def races(self) -> bool:
        """Whether the target's noise decides with them."""
        return self.kind == "coupled" and not self.sampler.greedy

    @property
    def personal(self) -> bool:
        """Whether nodes with the same law may have other children."""
        return self.draws or self.sampler.remembers

    def children(
        self, law: Tensor | Judged, emitted: Tensor, level: int, k: int, paths: Tensor, levels: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Children of nodes with a law in logits: tokens and log-confidence [B, F, k], and the law [B, F, V].

        Args: paths: [B, F, L] the tokens from the pending one down to each node, which a law with a memory looks at.
            levels: how many the tree will have, as far as is known: their noise is made at once, which little of it
            costs as well.
        """
        logits, judged = (law.logits, law) if isinstance(law, Judged) else (law, None)
        scores = self._scores(rule_out(logits, self.barred), paths)
        if self.draws:
            raced = scores + self.sampler.draft_noise(emitted, level, scores.shape[1], scores.shape[-1])
        elif self.races:
            # the rule asks for one more
            noise = self.sampler.noise_ahead(emitted, max(level, levels) + 1, scores.shape[-1])
            raced = self._raced(scores, noise[:, level : level + 1], judged)
        else:
            raced = self._sharpened(scores, judged)
        return (*_first(raced, k), scores)

    def children_of_levels(self, logits: Tensor, emitted: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Children of every node of a level, from the level's logits [B, levels, V]: tokens and log-confidence
        [B, levels, k]. Not for a `personal` choice."""
        scores = self.sampler.shape(rule_out(logits, self.barred))
        if not self.races:
            return _first(self._sharpened(scores), k)
        levels = scores.shape[1]
        noise = self.sampler.noise_ahead(emitted, levels + 1, scores.shape[-1])
        return _first(self._raced(scores, noise[:, :levels]), k)

    def _sharpened(self, scores: Tensor, judged: Judged | None = None) -> Tensor:
        if not self.sampler.greedy:
            return scores
        return scores * (self.sharpness if judged is None else judged.greedy * self.sharpness)

    def _raced(self, scores: Tensor, noise: Tensor, judged: Judged | None = None) -> Tensor:
        if judged is not None:
            return race(scores, noise, judged.trust * self.trust, judged.sharpness * self.sharpness)
        raced = torch.add(noise, scores, alpha=self.trust)
        return raced if self.sharpness == 1 else raced * self.sharpness

    def _scores(self, logits: Tensor, paths: Tensor) -> Tensor:
        """Warped log-scores [B, F, V], as the target's are."""
        if not self.sampler.remembers:
            return self.sampler.shape(logits)
        each = zip(paths.unbind(1), logits.unbind(1), strict=True)
        return torch.stack([self.sampler.after(path, law) for path, law in each], 1)

    def paths(self, above: Tensor, origin: Tensor, tokens: Tensor) -> Tensor:
        """Those to nodes [B, F] from those [B, M, L] to the nodes of the level before; origin: [B, F] parents there."""
        if not self.sampler.remembers:
            return above
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        return torch.cat([above[rows, origin], tokens[..., None]], -1)


def race(scores: Tensor, noise: Tensor, trust: Tensor, sharpness: Tensor) -> Tensor:
    """Log-confidence [.., V], not normalised, that a token wins the target's race.

    Args: scores: [.., V] log q. noise: [.., V] the target's. trust, sharpness: [.., 1] whole, as in `Choice`.
    """
    return torch.addcmul(noise, scores, trust) * sharpness


def _first(raced: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k tokens ahead in a race [B, F, V], and their log-confidence: both [B, F, k]."""
    confidence, token = best_of_many(raced.log_softmax(-1), min(k, raced.shape[-1]))
    # where fewer tokens than children have a chance, the first child stands again: it was not ruled out
    token = torch.where(confidence == -torch.inf, token[..., :1], token)
    # sorting puts NaN first, and a node must not stand before its parent
    return token, confidence.masked_fill(confidence.isnan(), -torch.inf)


def best_of_many(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` of [.., V]: of a large vocabulary only the parts with the k highest maxima are searched, which
    takes a GPU a few small launches instead of many."""
    size = scores.shape[-1]
    if size < MANY or k * PART > size:
        return scores.topk(k, dim=-1)
    parts = F.pad(scores, (0, -size % PART), value=-torch.inf).unflatten(-1, (-1, PART))
    highest = parts.amax(-1).topk(k, dim=-1).indices  # [.., k]
    values, place = parts.gather(-2, highest[..., None].expand(*highest.shape, PART)).flatten(-2).topk(k, dim=-1)
    index = highest.gather(-1, place // PART) * PART + place % PART
    return values, index.clamp(max=size - 1)  # a padded place can win only where fewer than k scores are numbers


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
    score = torch.zeros(batch, 1, device=device)
    lineage = Lineage(batch, device)
    paths = pending[:, None, None]
    grown: list[tuple[Tensor, ...]] = []  # tokens, parents, scores and depth of each level's candidates
    count, worth = 0, (least, min(LEVEL * least, max(least, SURE)))  # of a node, and of one more level
    floor, deeper = (math.log(part) if least else -math.inf for part in worth)
    for level in range(shape.depth):
        if guessed is None:
            law = expand(level, tokens, origin, lineage.above)  # type: ignore[operator]
            children, confidence, _ = choice.children(law, emitted, level, top_k, paths, shape.depth)
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


Plan = tuple[list[Level], Tensor]
"""The levels of a static tree; parent and depth of every node, node 0 included: [N, 2]."""


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
    return found, torch.tensor([(-1, 0), *((node.parent, node.level) for node in tree)], device=device)


def fill(pending: Tensor, emitted: Tensor, choice: Choice, expand: Expand, plan: Plan) -> Draft:
    """A static tree: the same nodes for every row and round, whatever the confidence. pending, emitted: [B]."""
    batch, tokens, paths = len(pending), pending[:, None], pending[:, None, None]
    parts, layout = plan
    laws: list[tuple[Tensor, Tensor]] = []
    for level, part in enumerate(parts):
        origin, above = part.origin.expand(batch, -1), part.above.expand(batch, -1, -1)
        if level > 0:
            paths = choice.paths(paths, origin, tokens[:, part.inner])
        law = expand(level, tokens[:, part.inner], origin, lambda above=above: above)  # type: ignore[misc]
        children, _, scores = choice.children(law, emitted, level, part.most, paths, len(parts))
        tokens = torch.cat([tokens, children[:, part.picks, part.ranks]], 1)
        if choice.draws:
            laws.append((part.inner, scores.softmax(-1)))
    parents, depth = layout.expand(batch, -1, -1).unbind(2)
    draft = Draft(tokens, parents, depth, choice.kind, _levels=len(parts))
    if laws:
        draft.q = torch.zeros(batch, draft.size, laws[0][1].shape[-1], device=pending.device)
        for nodes, law in laws:
            draft.q[:, nodes] = law
    return draft
