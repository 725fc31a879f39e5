"""Compiled verification: an HF model's forward over drafts of a few fixed sizes, on a cache of fixed size.

A draft is padded to the next size with nodes that nobody sees. For every size, number of rows and size of the cache the
forward is compiled once (`torch.compile`, whole graph, no dynamic shapes) and, on CUDA, captured in a graph; all sizes
of a request are made ready with its prompt. Commits and whole drafts are recorded when the first of their size comes.
The prompt itself is read by plain calls: its length is never the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.cache import RowCache
from mmspec.decoder import Decoder, Heard
from mmspec.engine.attention import NAME as TREE_ATTENTION
from mmspec.engine.attention import use_masked_attention, use_tree_attention
from mmspec.engine.cache import AHEAD, FRONT, OVER, Slab, Slabs, StaticRows
from mmspec.engine.compiled import Compiled
from mmspec.engine.fusing import fuse
from mmspec.engine.graphs import Graph
from mmspec.engine.sizes import padded
from mmspec.engine.slots import TreeSlots
from mmspec.engine.steps import WIDTHS, Steps

SIZES = (1, 8, 16, 32, FRONT)
"""Nodes of a draft, node 0 included, for which a target is compiled."""

Taps = tuple[int, ...]


@dataclass
class Lane:
    """The inputs of one size, at constant addresses: tokens, depth [B, N], ancestors [B, N, N].

    graphs: by taps, what runs the forward on them.
    """

    tokens: Tensor
    depth: Tensor
    ancestors: Tensor
    graphs: dict[Taps, Graph] = field(default_factory=dict)

    @classmethod
    @torch.inference_mode(False)  # see `Slab`
    def of(cls, rows: int, size: int, device: torch.device) -> Lane:
        """Empty ones."""
        zeros = torch.zeros(rows, size, dtype=torch.long, device=device)
        above = torch.eye(size, dtype=torch.bool, device=device).expand(rows, -1, -1)
        return cls(zeros, zeros.clone(), above.clone())

    def load(self, tokens: Tensor, depth: Tensor, ancestors: Tensor) -> None:
        """Take over a draft of n nodes; those behind them see only what is committed, and no node sees them."""
        gap = self.tokens.shape[1] - tokens.shape[1]
        if not gap:
            self.tokens.copy_(tokens)
            if tokens.shape[1] > 1:  # a single node always stands at depth 0 and sees itself
                self.depth.copy_(depth)
                self.ancestors.copy_(ancestors)
            return
        for static, given in ((self.tokens, tokens), (self.depth, depth)):
            static.copy_(F.pad(given, (0, gap)))
        self.ancestors.copy_(F.pad(ancestors, (0, gap, 0, gap)))


class Engine:
    """Runs the verifications of a `mmspec.decoder.Decoder`.

    Args: decoder: what is compiled. backend: of `torch.compile`; None for plain calls, with static caches all the same.
        sizes: numbers of nodes that are made ready, ascending. Larger drafts are compiled when they come.
        early: see `mmspec.contract.State`; by default where there is CUDA: elsewhere the round in vain at the end of a
        request is all that would come of it.
    Raises: UnsupportedError, with the first request: the model's forward is none that can be compiled whole.
    """

    def __init__(
        self,
        decoder: Decoder,
        backend: str | None = "inductor",
        sizes: tuple[int, ...] = SIZES,
        early: bool | None = None,
    ) -> None:
        self.decoder, self.sizes = decoder, sizes
        self.early = decoder.device.type == "cuda" if early is None else early
        self.slabs = Slabs()
        self.backend = backend
        use_tree_attention(decoder.model)
        if backend is not None:
            fuse(decoder.language())
        self.compiled = Compiled(self._step, backend, type(decoder.model).__name__)

    def steps(
        self, net: nn.Module, forward: Callable[..., Tensor], name: str, widths: tuple[int, ...] = WIDTHS
    ) -> Steps:
        """The same for a drafter's own layers, those of `net`. Arguments as for `Steps`."""
        use_masked_attention(net)
        if self.backend is not None:
            fuse(net)
        return Steps(forward, self.backend, name, widths)

    def settle(self, cache: RowCache, budget: int, taps: Taps = ()) -> StaticRows:
        """The static cache of a prefilled request. See `mmspec.decoder.Decoder.settle`."""
        room = min(max(cache.lengths) + min(budget, AHEAD), self.decoder.max_length) + OVER * self.early
        rows = StaticRows(cache, self.slabs, room, max(FRONT, self.sizes[-1]))
        for size in self.sizes:
            self._graph(rows.slab, size, taps)
        return rows

    def extend(self, cache: RowCache, tokens: Tensor, depth: Tensor, ancestors: Tensor, taps: Taps = ()) -> Heard:
        """Forward nodes after the committed tokens. See `mmspec.decoder.Decoder.extend`."""
        assert isinstance(cache, StaticRows)
        nodes = tokens.shape[1]
        size = self.padded(nodes)
        if size > cache.slab.front:
            cache.grow(size, cache.slab.room)
        graph = self._graph(cache.slab, size, taps)
        cache.slab.lanes[size].load(tokens, depth, ancestors)
        logits, states = graph()
        return Heard(logits[:, :nodes], {tap: found[:, :nodes] for tap, found in states.items()})

    def padded(self, nodes: int) -> int:
        """The size at which a draft of that many nodes is forwarded."""
        return padded(nodes, self.sizes)

    def _step(
        self, slab: Slab, tokens: Tensor, depth: Tensor, ancestors: Tensor, taps: Taps
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """What is compiled. An attention function of our own is told where the tree stands, and reads no mask."""
        more: dict[str, Any] = {}
        if self.decoder.config._attn_implementation == TREE_ATTENTION:
            more["tree"] = TreeSlots(tokens.shape[1], slab.front, slab.lengths, ancestors, depth)
        heard = self.decoder.step(slab, tokens, depth, ancestors, taps, **more)
        return heard.logits, heard.taps

    def _graph(self, slab: Slab, size: int, taps: Taps) -> Graph:
        """What forwards the nodes of a lane; made, and for new shapes compiled, if it is not there yet."""
        if size not in slab.lanes:
            slab.lanes[size] = Lane.of(slab.form.rows, size, slab.form.device)
        lane = slab.lanes[size]
        if taps not in lane.graphs:
            inputs = slab, lane.tokens, lane.depth, lane.ancestors, taps
            lane.graphs[taps] = self.compiled.graph(slab.form.device, *inputs)
        return lane.graphs[taps]
