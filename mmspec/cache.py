"""The key/value cache of a batch whose rows have different lengths: the one place that commits and rolls back.

Every forward appends its nodes after the longest row; a commit moves each row's accepted nodes to that row's own next
slots and crops to the longest row, so there are no holes and nothing to compact. What lies between a row's end and the
longest row is hidden by the mask and overwritten later. Rotary positions are already in the keys, so moving is safe.
Windows are applied by position in the mask, and layers with one let go only of what no row will see again; HF's own
sliding layers would drop what the shortest row sees, hence `DynamicCache()` without a config. All layers end at the
same slot, so what is moved is counted from there. `crop` takes minus the number of slots to drop (transformers >=
5.15).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from mmspec.running import Running


class Past(Protocol):
    """What a forward has to know of the committed tokens of every row. See `RowCache`."""

    hf: Cache
    shift: Tensor
    beside: Any

    def even(self) -> bool:
        """Whether every slot of every row is a committed token, so that a single node needs no mask."""

    def positions(self) -> Tensor:
        """[B, 1] int64: the slot of each row's next token."""

    def mask(self, ancestors: Tensor, depth: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """[B, 1, N, slots] the additive attention mask for forwarding N nodes."""


class RowCache:
    """An HF `DynamicCache` and the committed length of every row.

    lengths: host list, tokens of each row whose keys and values are committed.
    shift: [B, 1] int64, what is added to a slot to get the position of a later token: 0, or less where pictures take
        fewer positions than slots (M-RoPE). Windows and masks count slots.
    beside: what a family keeps for the whole request (what an encoder heard), as `spread` takes it.
    window, sliding: the sliding window of these layers, in slots; None where every layer keeps all that it has.
    cut: how many of their first slots the sliding layers have let go of.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.hf: Cache = DynamicCache()
        self.lengths = [0] * batch
        self.device = device
        self.shift = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.beside: Any = None
        self.window: int | None = None
        self.sliding: Collection[int] = ()
        self.cut = 0

    @property
    def width(self) -> int:
        """Number of slots, the longest row's length between rounds."""
        return self.hf.get_seq_length() + (self.cut if 0 in self.sliding else 0)  # HF counts those of layer 0

    def even(self) -> bool:
        """See `Past`."""
        return min(self.lengths) == self.width

    def positions(self) -> Tensor:
        """[B, 1] int64: the slot of each row's next token."""
        return torch.tensor(self.lengths, device=self.device)[:, None]

    def mask(self, ancestors: Tensor, depth: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """The additive attention mask for forwarding nodes: a node sees its row's committed slots and its ancestors.

        Args:
            ancestors: [B, N, M] bool; the last N columns are the new nodes, the M - N before them nodes that were
                forwarded earlier in this round and not committed.
            depth: [B, M] (only read with a window). window: sliding window in positions, or None.
        Returns: [B, 1, N, width + N], with a window without the slots that were cut; 0 or the lowest finite number.
            Float, because a bool mask is added, silently wrong, under eager attention.
        """
        new, nodes = ancestors.shape[1:]
        slots = torch.arange(0 if window is None else self.cut, self.width + new - nodes, device=self.device)
        return additive(torch.cat(visible(slots, self.positions(), ancestors, depth, window), -1), dtype)[:, None]

    def first(self, count: int) -> RowCache:
        """The same tokens, as the first `count` layers have read them: a view, for a model of these layers alone."""
        view = RowCache(len(self.lengths), self.device)
        view.hf.layers = self.hf.layers[:count]
        view.lengths, view.shift = self.lengths, self.shift
        view.sliding, view.cut = self.sliding, self.cut  # and no window: a view lets go of nothing
        return view

    def fill(self, lengths: list[int]) -> None:
        """Take over a prefill of right-padded rows with these lengths, or take rows back to them (see `forget`); layers
        that keep a running state go back to where they were marked."""
        self.lengths = list(lengths)
        self._crop(max(lengths))
        self.forget()
        for layer in self._running():
            if layer.marked:
                layer.begin(layer.marked)

    def mark(self) -> None:
        """Remember the running states as they are now, see `fill`."""
        for layer in self._running():
            layer.marked = layer.states

    def spread(self, n: int) -> None:
        """Be n rows of each, one after the other, as if every one of them had been read. See `spread`."""
        self.lengths = [length for length in self.lengths for _ in range(n)]
        self.hf, self.shift, self.beside = spread((self.hf, self.shift, self.beside), n)

    def forget(self) -> None:
        """Let sliding layers go of what no later node of any row sees. No row may be taken back behind where it is now.

        The slices are views: what is let go of is freed by the next forward, which copies what a layer holds anyway.
        """
        gone = 0 if self.window is None else min(self.lengths) + 1 - self.window - self.cut
        if gone > 0:
            self.cut += gone
            for layer in (layer for index, layer in enumerate(self.hf.layers) if index in self.sliding):
                layer.keys, layer.values = layer.keys[:, :, gone:], layer.values[:, :, gone:]

    def commit(self, nodes: int, paths: list[list[int]]) -> None:
        """Keep each row's path among the last `nodes` slots and drop the rest.

        Args: paths: node indices of every row, in order; an empty path keeps nothing.
        """
        start = self.width - nodes
        kept = max(map(len, paths))
        at_home = all(path == list(range(len(path))) for path in paths) and all(n == start for n in self.lengths)
        if kept and not at_home:
            self._move(nodes, [path + [0] * (kept - len(path)) for path in paths])
        self.lengths = [length + len(path) for length, path in zip(self.lengths, paths, strict=True)]
        self._crop(max(self.lengths))
        self.keep([len(path) for path in paths])

    def keep(self, kept: list[int]) -> None:
        """Take running states back to the first of the nodes that are not committed. kept: how many, of every row."""
        for layer in self._running():
            layer.keep(kept)

    def _move(self, nodes: int, paths: list[list[int]]) -> None:
        """Copy each row's path among the last `nodes` slots to the slots after the row's length, in every layer."""
        path = torch.tensor(paths, device=self.device)
        if len(paths) == 1:
            place = self.lengths[0] - self.width
            for states in (states for layer in self._attending() for states in (layer.keys, layer.values)):
                states.narrow(2, place, len(path[0])).copy_(states[:, :, -nodes:].index_select(2, path[0]))
            return
        source, goal = path - nodes, self.positions() - self.width + torch.arange(path.shape[1], device=self.device)
        rows = torch.arange(len(paths), device=self.device)[:, None]
        for states in (states for layer in self._attending() for states in (layer.keys, layer.values)):
            states[rows, :, goal] = states[rows, :, source]  # the gather copies, so overlap is safe

    def _running(self) -> Iterator[Running]:
        """The layers that keep a running state."""
        return (layer for layer in self.hf.layers if isinstance(layer, Running))

    def _attending(self) -> Iterator[DynamicLayer]:
        """The layers that hold keys and values."""
        return (layer for layer in self.hf.layers if isinstance(layer, DynamicLayer))

    def _crop(self, keep: int) -> None:
        if self.width > keep:
            self.hf.crop(keep - self.width)


def spread(held: Any, n: int) -> Any:
    """Each row n times, one after the other: of a tensor [B, ..], of a cache (in place), of all in a tuple.

    Of a single row they are views, all of the same memory, so nothing may write into them. No cache does: what a
    forward adds to a layer makes a new tensor of it.
    """
    if isinstance(held, Tensor):
        return held[:, None].expand(-1, n, *held.shape[1:]).flatten(0, 1)
    if isinstance(held, tuple):
        return tuple(spread(one, n) for one in held)
    if isinstance(held, Cache):
        for layer in held.layers:
            if isinstance(layer, Running):
                layer.begin([spread(state, n) for state in layer.states])
            else:
                layer.keys, layer.values = spread((layer.keys, layer.values), n)
    return held


def visible(
    slots: Tensor, lengths: Tensor, ancestors: Tensor, depth: Tensor, window: int | None
) -> tuple[Tensor, Tensor]:
    """Which committed tokens, [B, N, slots], and which nodes, [B, N, M] bool, each of N new nodes sees.

    Args: slots: [S] places of committed tokens. lengths: [B, 1] of the rows. ancestors, depth, window: see
        `RowCache.mask`.
    """
    new, nodes = ancestors.shape[1:]
    past = (slots < lengths)[:, None].expand(-1, new, -1)
    if window is None:
        return past, ancestors
    own = depth[:, nodes - new :, None]
    return past & (lengths[:, :, None] + own - slots < window), ancestors & (own - depth[:, None, :] < window)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention adds, in the shape of `seen`: 0 where something is seen (True), else the lowest finite number."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
