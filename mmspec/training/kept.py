"""What the target says of answers, kept for the epochs that follow as far as the computer's memory and a store on disk
allow; what is kept nowhere is computed again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mmspec.training.answers import Answered
from mmspec.training.store import Store

T = TypeVar("T", bound=Any)
TOGETHER = 8
"""So many answers are read in one forward, beside which lie its caches; a drafter's batch may have many more."""


@contextmanager
def as_in_use(device: torch.device) -> Iterator[None]:
    """What a frozen target computes here is what it computes in use: without gradients, and in its own precision,
    whatever that of the drafter's forwards is. device: the target's."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


class Kept(ABC, Generic[T]):
    """Something of each answer: a tensor, or what has its `nbytes` and its `to`.

    kept: by the answer's index, on the CPU. last: of the batch that was asked for last, whatever the memory, on the
    device. device: where it is used, whatever keeps it. free: bytes of memory that are left. store: on disk.
    """

    kept: dict[int, T]
    last: dict[int, T]
    device: torch.device
    free: int
    store: Store | None = None

    @property
    def pool(self) -> Any:
        """The features whose target, memory and store it shares."""
        return self

    @abstractmethod
    def _compute(self, rows: list[Answered]) -> list[T]:
        """That of some answers, in one batch."""

    @abstractmethod
    def _packed(self, one: T) -> dict[str, Tensor]:
        """What a store keeps of it."""

    @abstractmethod
    def _unpacked(self, tensors: Mapping[str, Tensor]) -> T:
        """The counterpart."""

    def _name(self, index: int) -> str:
        """What a store calls it."""
        return str(index)

    def recall(self, rows: list[Answered]) -> list[T]:
        """That of some answers, on the device."""
        known = {**self.kept, **self.last}  # what is on the device is not moved there again
        fresh = self._read([row for row in rows if row.index not in known])
        known |= fresh
        self.last = {row.index: known[row.index].to(self.device) for row in rows}
        for index, one in fresh.items():
            if self.pool.free >= one.nbytes:
                self.pool.free -= one.nbytes
                self.kept[index] = one.to(torch.device("cpu"))
        return [self.last[row.index] for row in rows]

    def _read(self, rows: list[Answered]) -> dict[int, T]:
        """That of some answers, from the store where it has it; the others are computed, and stored."""
        store = self.pool.store
        stored = {row.index: store.get(self._name(row.index)) for row in rows} if store else {}
        found = {index: self._unpacked(tensors) for index, tensors in stored.items() if tensors is not None}
        missing = [row for row in rows if row.index not in found]
        for start in range(0, len(missing), TOGETHER):
            some = missing[start : start + TOGETHER]
            with as_in_use(self.pool.pipe.target.model.device):
                computed = dict(zip((row.index for row in some), self._compute(some), strict=True))
            if store:
                for index, one in computed.items():
                    store.put(self._name(index), self._packed(one))
            found |= computed
        return found
