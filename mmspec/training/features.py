"""The target's hidden states of answered questions, computed when training asks for them.

The feature of a position is the hidden state that enters the target's head (`hidden_states[num_layers]`, after the last
norm), so `target.head(feature)` is the target's law of the next token; drafters may tap further layers. Storing them
for a large target takes terabytes; here they are computed online, once for all drafters that are trained together, and
kept for the epochs that follow only as far as the limits of memory (the computer's, not the device's) and of a store on
disk allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mmspec.training.answers import Answered
from mmspec.training.asking import prepare
from mmspec.training.questions import Questions
from mmspec.training.store import Store


@contextmanager
def as_in_use(device: torch.device) -> Iterator[None]:
    """What a frozen target computes here is what it computes in use: without gradients, and in its own precision,
    whatever that of the drafter's forwards is. device: the target's."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def head_logits(target: Any, features: Tensor) -> Tensor:
    """[M, V] float32, of features [M, H] by the target's own head."""
    head = target.head
    return head(features.to(head.weight.dtype)).float()  # type: ignore[no-any-return]


def head_law(target: Any, features: Tensor) -> Tensor:
    """[M, V] float32: the target's laws, of its features [M, H]."""
    with as_in_use(features.device):
        return head_logits(target, features).softmax(-1)


class Features:
    """Hidden states of answers by one target.

    Args: pipe: a `mmspec.Pipeline`. questions: where the answers' questions come from. taps: `hidden_states` indices
        that may be asked for, beside the last one. memory: bytes kept, of the computer's memory. store: for what is
        kept on disk.
    device: where states are used, whatever keeps them.
    """

    store: Store | None = None

    def __init__(
        self,
        pipe: Any,
        questions: Questions,
        taps: Sequence[int] = (),
        memory: int = 4 << 30,
        store: Store | None = None,
    ) -> None:
        self.pipe, self.questions, self.free, self.store = pipe, questions, memory, store
        self.device: torch.device = pipe.target.model.device
        self.taps = tuple(sorted({*taps, pipe.target.num_layers}))
        self.kept: dict[int, Tensor] = {}  # index -> [T, taps, H], on the CPU
        self.last: dict[int, Tensor] = {}  # of the batch that was asked for last, whatever the memory, on the device

    def __call__(self, rows: list[Answered], taps: Sequence[int] = ()) -> Tensor:
        """[B, T, H] float32 features of whole sequences, right-padded with zeros; T is the longest row's length.

        Args: taps: other hidden states instead, side by side: [B, T, len(taps) * H].
        """
        known = {**self.kept, **self.last}  # what is on the device is not moved there again
        fresh = self._read([row for row in rows if row.index not in known])
        known |= fresh
        self.last = {row.index: known[row.index].to(self.device) for row in rows}
        for index, states in fresh.items():
            if self.free >= states.nbytes:
                self.free -= states.nbytes
                self.kept[index] = states.cpu()
        columns = [self.taps.index(tap) for tap in taps] or [len(self.taps) - 1]
        found = [self.last[row.index][:, columns].flatten(1) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True).float()

    def size(self, rows: list[Answered]) -> int:
        """Bytes of the states of all rows."""
        target = self.pipe.target
        width: int = target.hidden_size * target.model.dtype.itemsize
        return sum(len(row.ids) for row in rows) * len(self.taps) * width

    def _read(self, rows: list[Answered]) -> dict[int, Tensor]:
        """The states of rows, from the store where it has them; the others are computed, in one batch, and stored."""
        store = self.store
        stored = {row.index: store.get(row.index) for row in rows} if store else {}
        found = {index: states for index, states in stored.items() if states is not None}
        missing = [row for row in rows if row.index not in found]
        computed: dict[int, Tensor] = {}
        if missing:
            with as_in_use(self.pipe.target.model.device):
                computed = dict(zip((row.index for row in missing), self._compute(missing), strict=True))
        if store:
            for index, states in computed.items():
                store.put(index, states)
        return found | computed

    def _compute(self, rows: list[Answered]) -> list[Tensor]:
        target = self.pipe.target
        inputs = prepare(self.pipe, [self.questions[row.index] for row in rows])
        texts = [row.ids for row in rows]
        _, heard = target.read(inputs, texts, self.taps)
        states = torch.stack([heard.taps[tap] for tap in self.taps], 2)  # [B, T, taps, H]
        return [row[: len(text)].clone() for row, text in zip(states, texts, strict=True)]
