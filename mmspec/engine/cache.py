"""A key/value cache of fixed size and address, whose rows have different lengths: what a compiled target runs on.

One buffer holds all layers whose heads are alike. The nodes of a draft stand in front, always in the same slots, and
the committed tokens of each row behind them; so a forward writes to constant addresses, the tree's part of the mask has
a constant place, and a commit is one gather and one scatter for every buffer. Slots need not be in the order of
positions: rotary positions are in the keys already. Lengths live on the device, and a roll-back is not to advance them.
Layers with a sliding window hold everything, too; the mask applies the window by position. Layers that read an earlier
one's keys are no part of a cache: the model hands them what the cache gave that one, here a whole buffer.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from mmspec.cache import RowCache, additive, visible
from mmspec.contract import Accepted, Draft
from mmspec.engine.graphs import Place, Recorded
from mmspec.engine.sizes import padded
from mmspec.errors import UnsupportedError

FRONT = 64
"""Slots for the nodes of a draft."""
AHEAD = 4096
"""Most tokens for which a cache is made in advance where an answer may end before; a longer one makes it grow."""
OVER = 32
"""Tokens beyond the end of a row that rounds may commit which start before the host knows of it."""
STEP = 256
"""Least step by which sizes grow: every size is compiled by itself."""
FEW = 4
"""With more layers than this, a plain commit indexes whole buffers (two launches for each). A compiled commit always
goes layer by layer, since the compiler would copy a whole buffer."""
KEPT = (1, 8, 16)
"""Lengths of paths for which a commit is recorded; others follow as powers of two."""


class TreeLayer(CacheLayerMixin):
    """One layer's view of the buffer. keys, values: [B, Hkv, S, D]. start: [1] int64, the slot of the next node."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, start: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.start = keys, values, start
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The buffer is there from the beginning."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write nodes [B, Hkv, N, D] to the front; returns the whole buffer."""
        slots = self.start + torch.arange(key_states.shape[-2], device=self.start.device)
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """See HF: the number of slots, and the first one."""
        return self.keys.shape[-2], 0

    def get_seq_length(self) -> int:
        """The number of slots: what is committed differs by row, and masks and positions are given."""
        return self.keys.shape[-2]

    def get_max_length(self) -> int:
        """The number of slots."""
        return self.keys.shape[-2]


class TreeCache(Cache):
    """What a model is given: the layers of a slab, and the slab itself for those who know it."""

    def __init__(self, slab: Slab, layers: list[TreeLayer]) -> None:
        super().__init__(layers=layers)
        self.slab = slab


@dataclass(frozen=True)
class Form:
    """What buffers must be made for: of each layer the key/value heads and the size of a head; rows, dtype, device."""

    layers: tuple[tuple[int, int], ...]
    rows: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, cache: RowCache) -> Form:
        """That of the layers of a prefilled cache. Raises UnsupportedError: one has longer keys than values."""
        layers = cache.hf.layers
        first = layers[0].keys
        if any(layer.keys.shape != layer.values.shape for layer in layers):
            raise UnsupportedError(
                "the layers of this model keep keys that are longer than values, and a compiled target holds both "
                "in one: load it with compile=False"
            )
        kinds = tuple((layer.keys.shape[1], layer.keys.shape[3]) for layer in layers)
        return cls(kinds, len(first), first.dtype, cache.device)


class Slab:
    """The device's side of a static cache; an `mmspec.cache.Past` of tensors at constant addresses.

    Args: front: slots for nodes. room: slots for the committed tokens of a row.

    kv: by (Hkv, D), [L, 2, B, Hkv, front + room, D] of the L layers with such heads. lengths: [B] int64 committed
        tokens. shift: see `RowCache`.
    lanes: what an engine keeps beside it, by number of nodes; steps of a drafter by their name, too.
    recorded: functions of tensors that read or write here. place: where they are captured, and whose turn it is.
    """

    beside = None

    @torch.inference_mode(False)  # it outlives a request, and training writes into it without inference mode
    def __init__(self, form: Form, front: int, room: int) -> None:
        self.form, self.front, self.room = form, front, room
        place: dict[str, Any] = {"device": form.device}
        self.kv: dict[tuple[int, int], Tensor] = {}
        for heads, size in dict.fromkeys(form.layers):
            shape = (form.layers.count((heads, size)), 2, form.rows, heads, front + room, size)
            self.kv[heads, size] = torch.zeros(shape, dtype=form.dtype, **place)
        self.lengths = torch.zeros(form.rows, dtype=torch.long, **place)
        self.shift = torch.zeros(form.rows, 1, dtype=torch.long, **place)
        self.lanes: dict[Any, Any] = {}
        self.recorded: dict[Any, Recorded] = {}
        self.place = Place(form.device)
        self.start = torch.zeros(1, dtype=torch.long, **place)
        left = {kind: iter(kv) for kind, kv in self.kv.items()}
        both = (next(left[kind]) for kind in form.layers)
        self.hf: Cache = TreeCache(self, [TreeLayer(keys, values, self.start) for keys, values in both])

    def even(self) -> bool:
        """Slots behind a row's tokens are never empty of numbers, so every forward needs a mask."""
        return False

    def positions(self) -> Tensor:
        """[B, 1] int64: the place of each row's next token, on the device."""
        return self.lengths[:, None]

    def mask(self, ancestors: Tensor, depth: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """See `RowCache.mask`; also says where the new nodes will be written: behind those forwarded before them."""
        new, nodes = ancestors.shape[1:]
        if nodes > self.front:
            raise UnsupportedError(
                f"{nodes} nodes are forwarded in a round, and the compiled target has slots for {self.front}: choose a "
                "smaller draft, or load the target with compile=False"
            )
        self.start.fill_(nodes - new)
        slots = torch.arange(self.room, device=self.form.device)
        past, tree = visible(slots, self.positions(), ancestors, depth, window)
        gap = tree.new_zeros(()).expand(*tree.shape[:2], self.front - nodes)
        return additive(torch.cat([tree, gap, past], -1), dtype)[:, None]

    def keep(self, path: Tensor, count: Tensor) -> None:
        """Commit the first count [B] of the nodes path [B, A] of each row: on the device alone.

        What stands behind the count is not read, and a row that keeps nothing stays as it is.
        """
        self.move(*self.moves(path, count), count)

    def moves(self, path: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """The slots [B, A] from which and to which `keep` copies."""
        place = torch.arange(path.shape[1], device=path.device)
        kept = place < count[:, None]
        return path * kept, (self.front + self.positions() + place) * kept  # the others: node 0 onto itself

    def move(self, source: Tensor, goal: Tensor, count: Tensor) -> None:
        """Copy these slots in all layers; rows are count [B] tokens longer then. source, goal: see `moves`."""
        rows = torch.arange(len(source), device=source.device)[:, None]
        if not torch.compiler.is_compiling() and len(self.hf.layers) > FEW:  # compiled, not even asked: see `FEW`
            for kv in self.kv.values():
                kv[:, :, rows, :, goal] = kv[:, :, rows, :, source]
        else:
            for states in (states for layer in self.hf.layers for states in (layer.keys, layer.values)):
                states[rows, :, goal] = states[rows, :, source]
        self.lengths.add_(count)

    def keep_listed(self, paths: list[list[int]]) -> None:
        """The same for lists."""
        most = max(map(len, paths))
        table = torch.tensor([[len(path), *path, *[0] * (most - len(path))] for path in paths])
        self.keep_at_once(table[:, 1:], table[:, 0])

    def keep_at_once(self, path: Tensor, count: Tensor) -> None:
        """`keep`, where there is CUDA in one launch; path and count may lie on the host."""
        width = padded(path.shape[1], KEPT)
        key = "keep", width
        if key not in self.recorded:
            inputs = path[:, :1].expand(-1, width), count
            self.recorded[key] = Recorded(self.keep, inputs, self.place)
        self.recorded[key](path, count)

    def drop(self) -> None:
        """Let go of what points back here, so that the memory is free at once and not when Python looks for cycles."""
        self.place.hand_back()
        self.lanes.clear()
        self.recorded.clear()
        self.hf = Cache(layers=[])

    def clear(self) -> None:
        """Forget everything. What a mask hides may not be NaN, which damaged or overflowing layers leave behind."""
        for kv in self.kv.values():
            kv.zero_()


class Slabs:
    """Buffers between requests. A request takes one and gives it back when it ends, so that addresses stay the same and
    what was compiled or captured for them serves again. A request on another stream waits for the last one: its final
    round, which was started before the host knew that the answer had ended, may still be running."""

    kept = 2
    """How many are kept at most while nobody uses them."""

    def __init__(self) -> None:
        self.free: list[Slab] = []
        self._lock = RLock()  # the garbage collector may give one back while the same thread takes one

    def take(self, form: Form, front: int, room: int) -> Slab:
        """An empty buffer for `room` committed tokens at least."""
        room = rounded(front + room) - front
        with self._lock:
            fits = (slab for slab in self.free if (slab.form, slab.front, slab.room) == (form, front, room))
            found = next(fits, None)
            self.free = [slab for slab in self.free if slab is not found]
        slab = self._made(form, front, room) if found is None else found
        slab.place.take_turn()
        if found is not None:
            found.clear()
        return slab

    def _made(self, form: Form, front: int, room: int) -> Slab:
        """A new one. Where memory is short, those that nobody uses make room for it: torch cannot know that they are
        idle."""
        try:
            return Slab(form, front, room)
        except torch.OutOfMemoryError:
            if not self.free:
                raise
        self._forget()
        return Slab(form, front, room)

    def _forget(self) -> None:
        with self._lock:
            idle, self.free = self.free, []
        while idle:
            idle.pop().drop()
        torch.cuda.empty_cache()

    def give(self, slab: Slab) -> None:
        """Take one back."""
        with self._lock:
            every = [*self.free, slab]
            self.free = every[-self.kept :]
        for dropped in every[: -self.kept]:
            dropped.drop()


def rounded(slots: int) -> int:
    """The size of a buffer with that many slots or more: a quarter of the next power of two at most is wasted."""
    step = max(STEP, 1 << max(0, (slots - 1).bit_length() - 2))
    return -(-slots // step) * step


class StaticRows(RowCache):
    """The request's side of a static cache. Interface and fields are those of `RowCache`.

    Args: cache: the prefilled rows that it takes over. room: how many tokens a row will hold, as far as is known; more
        make the buffer grow. front: slots for nodes.
    """

    def __init__(self, cache: RowCache, slabs: Slabs, room: int, front: int = FRONT) -> None:
        self.slabs, self.device, self.beside = slabs, cache.device, None
        self._lengths: list[int] = []
        self._unread: deque[tuple[Accepted, int]] = deque()
        self._hold(slabs.take(Form.of(cache), front, max(room, *cache.lengths)))
        self.shift = cache.shift
        self.fill(cache.lengths)
        for own, layer in zip(self.hf.layers, cache.hf.layers, strict=True):
            here = slice(front, front + layer.keys.shape[2])
            own.keys[:, :, here], own.values[:, :, here] = layer.keys, layer.values

    def _hold(self, slab: Slab) -> None:
        self.slab, self.hf = slab, slab.hf
        self._return = weakref.finalize(self, self.slabs.give, slab)

    @property
    def lengths(self) -> list[int]:  # type: ignore[override]
        """See `RowCache`; without what was committed early and the host has not read."""
        while self._unread and self._unread[0][0].paths:
            accepted, _ = self._unread.popleft()
            running = accepted.running or [True] * len(accepted.paths)
            counts = [len(path) * runs for path, runs in zip(accepted.paths, running, strict=True)]
            counts *= len(self._lengths) // len(counts)
            self._lengths = [length + count for length, count in zip(self._lengths, counts, strict=True)]
        return self._lengths

    @lengths.setter
    def lengths(self, value: list[int]) -> None:
        self._lengths = value

    @property
    def most(self) -> int:
        """A number of tokens that no row exceeds."""
        return max(self.lengths) + sum(most for _, most in self._unread)

    @property
    def shift(self) -> Tensor:  # type: ignore[override]
        """See `RowCache`; at a constant address."""
        return self.slab.shift

    @shift.setter
    def shift(self, value: Tensor) -> None:
        self.slab.shift.copy_(value)

    @property
    def width(self) -> int:
        """See `RowCache`: the longest row, as between rounds."""
        return max(self.lengths)

    def even(self) -> bool:
        """See `mmspec.cache.Past`."""
        return self.slab.even()

    def positions(self) -> Tensor:
        """See `mmspec.cache.Past`."""
        return self.slab.positions()

    def mask(self, ancestors: Tensor, depth: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """See `Slab.mask`. The front grows where new nodes, padded to twice their number, would reach behind it."""
        new, nodes = ancestors.shape[1:]
        if nodes + new > self.slab.front:
            self.grow(rounded(nodes + new), self.slab.room)
        return self.slab.mask(ancestors, depth, dtype, window)

    def first(self, count: int) -> RowCache:
        """See `RowCache`. The view writes to the same front slots."""
        return FirstLayers(self, count)

    def fill(self, lengths: list[int]) -> None:
        """Set the lengths, which is all that a roll-back is."""
        self.lengths = list(lengths)
        self.slab.lengths.copy_(torch.tensor(self.lengths))

    def commit(self, nodes: int, paths: list[list[int]]) -> None:
        """Keep each row's path among the nodes of the last forward. See `RowCache`."""
        most = max(map(len, paths))
        if not most:
            return
        self.lengths = [length + len(path) for length, path in zip(self.lengths, paths, strict=True)]
        if max(self.lengths) > self.slab.room:
            self.grow(self.slab.front, max(self.lengths))
        self.slab.keep_listed(paths)

    def commit_early(self, draft: Draft, accepted: Accepted) -> None:
        """Keep what was accepted of a draft, the last forward, from what the device knows."""
        self.note(draft, accepted)
        if self.most > self.slab.room:
            self.grow(self.slab.front, self.most)
        pairs = self.slab.form.rows // len(accepted.path)
        path = accepted.path[:, : accepted.most_committed(draft)]
        self.slab.keep_at_once(path.repeat(pairs, 1), accepted.committed.repeat(pairs))

    def note(self, draft: Draft, accepted: Accepted) -> None:
        """Lengths grow on the device by what is kept of a draft: remember it until the host has read how many."""
        self._unread.append((accepted, accepted.most_committed(draft)))

    def grow(self, front: int, room: int) -> None:
        """Move to a buffer with these sizes, what was forwarded last included."""
        old = self.slab
        release = self._return
        self._hold(self.slabs.take(old.form, max(front, old.front), max(room, old.room)))
        new = self.slab
        for kind, kv in old.kv.items():
            new.kv[kind][..., : old.front, :] = kv[..., : old.front, :]
            new.kv[kind][..., new.front : new.front + old.room, :] = kv[..., old.front :, :]
        new.lengths.copy_(old.lengths)
        new.shift.copy_(old.shift)
        release()


class FirstLayers(RowCache):
    """The first layers of a static cache, for a drafter that runs on them: what it forwards is never committed."""

    def __init__(self, rows: StaticRows, count: int) -> None:
        super().__init__(len(rows.lengths), rows.device)
        self.rows = rows
        self.hf = Cache(layers=rows.hf.layers[:count])
        self.lengths, self.shift = rows.lengths, rows.shift

    def even(self) -> bool:
        """See `mmspec.cache.Past`."""
        return self.rows.even()

    def positions(self) -> Tensor:
        """See `mmspec.cache.Past`."""
        return self.rows.positions()

    def mask(self, ancestors: Tensor, depth: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """See `Slab.mask`. Here the front cannot grow: the view has its layers already."""
        return self.rows.slab.mask(ancestors, depth, dtype, window)

    def commit(self, nodes: int, paths: list[list[int]]) -> None:
        """Nothing to take back: the next forward writes to the same slots."""
        assert not any(paths)
