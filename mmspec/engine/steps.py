"""Compiled drafting: the steps of a drafter's own layer, on a cache of fixed size.

A drafter that runs on its own estimates (`mmspec.drafters.eagle`) forwards a few nodes per level, and what was accepted
since; one that guesses a block at once (`mmspec.drafters.dflash`), that block. Steps are padded to a few widths; which
level it is, is data. The prompt is read by plain calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.cache import RowCache
from mmspec.engine.cache import AHEAD, FRONT, OVER, Slab, Slabs, StaticRows, TreeCache
from mmspec.engine.compiled import Compiled
from mmspec.engine.graphs import Graph, Recorded
from mmspec.engine.sizes import padded

WIDTHS = (1, 4, 8)
"""Numbers of nodes that are made ready; others follow as powers of two. None is more than double of what it serves, so
that padding never reaches behind the front."""


@dataclass
class StepLane:
    """The inputs of one width, at constant addresses: tokens [B, N], features [B, N, H], positions [B, N], mask
    [B, 1, N, S]. graph: what runs a step on them.
    """

    tokens: Tensor
    features: Tensor
    positions: Tensor
    mask: Tensor
    graph: Graph | None = None

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All of them, as a step takes them."""
        return self.tokens, self.features, self.positions, self.mask

    @classmethod
    @torch.inference_mode(False)  # see `Slab`
    def of(cls, slab: Slab, width: int, features: Tensor) -> StepLane:
        """Empty ones; features: [B, .., H] of the size and type that will come."""
        rows, slots = slab.form.rows, slab.front + slab.room
        ids = slab.lengths.new_zeros(rows, width)
        hidden = features.new_zeros(rows, width, features.shape[-1])
        return cls(ids, hidden, ids.clone(), features.new_zeros(rows, 1, width, slots))

    def load(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor) -> None:
        """Take over n nodes; those behind them are computed and never seen."""
        nodes, width = tokens.shape[1], self.tokens.shape[1]
        given = (tokens, 1), (features, 1), (positions, 1), (mask, 2)
        for static, (new, axis) in zip(self.inputs, given, strict=True):
            static.narrow(axis, 0, nodes).copy_(new)
            static.narrow(axis, nodes, width - nodes).zero_()


class Steps:
    """Runs `forward(tokens, features, positions, mask, cache)`, see `mmspec.drafters.slots.Forward`.

    Args: forward: what is compiled. backend: of `torch.compile`; None for plain calls. name: of the drafter's step; no
        other step on the same cache has it. widths: numbers of nodes that are made ready, ascending.

    front: slots for nodes in the caches of requests that follow.
    """

    def __init__(
        self, forward: Callable[..., Tensor], backend: str | None, name: str, widths: tuple[int, ...] = WIDTHS
    ) -> None:
        self.forward, self.name, self.widths = forward, name, widths
        self.compiled = Compiled(forward, backend, name)
        self.slabs = Slabs()
        self.front = FRONT

    @property
    def most(self) -> int:
        """Nodes of the widest step that is made ready."""
        return self.widths[-1]

    def settle(self, cache: RowCache, features: Tensor, budget: int) -> RowCache:
        """A static cache in the place of a dynamic one; a static one, another step's, as it is. Makes all widths ready.

        Args: features: [B, .., H], of the size and type of those that follow. budget: how many tokens may follow.
        """
        rows = cache
        if not isinstance(rows, StaticRows):
            rows = StaticRows(cache, self.slabs, max(cache.lengths) + min(budget, AHEAD) + OVER, self.front)
        for width in self.widths:
            self._graph(self._lane(rows.slab, width, features), rows.slab)
        return rows

    def uncaptured(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, cache: TreeCache) -> Tensor:
        """The same on a static cache by a compiled call, for functions that are captured as a whole."""
        lane = self._lane(cache.slab, self.padded(tokens.shape[1]), features)
        lane.load(tokens, features, positions, mask)
        return self.compiled(*lane.inputs, cache)[:, : tokens.shape[1]]

    def padded(self, nodes: int) -> int:
        """The width at which that many nodes are forwarded."""
        return padded(nodes, self.widths)

    def recorded(
        self, function: Callable[..., Any], inputs: Sequence[Tensor], device: torch.device, compiled: bool
    ) -> Recorded:
        """A function that calls this step among others: compiled as a whole, when it calls `forward`, or as it is, when
        it calls `uncaptured`. Arguments as for `Recorded`."""
        run = Compiled(function, self.compiled.backend, f"drafting of {self.name}") if compiled else function
        return Recorded(run, inputs, self.compiled.place(device))

    def __call__(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """[B, N, H] of nodes; compiled on a static cache, by a plain call on another."""
        if not isinstance(cache, TreeCache):
            return self.forward(tokens, features, positions, mask, cache)
        lane = self._lane(cache.slab, self.padded(tokens.shape[1]), features)
        lane.load(tokens, features, positions, mask)
        return self._graph(lane, cache.slab)()[:, : tokens.shape[1]]

    def _lane(self, slab: Slab, width: int, features: Tensor) -> StepLane:
        key = self.name, width
        if key not in slab.lanes:
            slab.lanes[key] = StepLane.of(slab, width, features)
        lane: StepLane = slab.lanes[key]
        return lane

    def _graph(self, lane: StepLane, slab: Slab) -> Graph:
        if lane.graph is None:
            lane.graph = self.compiled.graph(slab.form.device, *lane.inputs, slab.hf)
        return lane.graph
