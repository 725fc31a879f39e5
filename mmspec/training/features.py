"""The target's hidden states of answered questions, computed when training asks for them.

The feature of a position is the hidden state that enters the target's head (`hidden_states[num_layers]`, after the last
norm), so `target.head(feature)` is the target's law of the next token; drafters may tap further layers. Storing them
for a large target takes terabytes; here they are computed online, once for all drafters that are trained together, and
kept for the epochs that follow only as far as the limits of memory (the computer's, not the device's) and of a store on
disk allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from mmspec.training.answers import Answered
from mmspec.training.asking import prepare
from mmspec.training.kept import Kept, as_in_use
from mmspec.training.questions import Questions
from mmspec.training.store import Store


def head_logits(target: Any, features: Tensor) -> Tensor:
    """[M, V] float32, of features [M, H] by the target's own head."""
    head = target.head
    return head(features.to(head.weight.dtype)).float()  # type: ignore[no-any-return]


def head_law(target: Any, features: Tensor) -> Tensor:
    """[M, V] float32: the target's laws, of its features [M, H]."""
    with as_in_use(features.device):
        return head_logits(target, features).softmax(-1)


class Features(Kept[Tensor]):
    """Hidden states of answers by one target, [T, taps, H] each; without context those from the prompt's last token on.

    Args: pipe: a `mmspec.Pipeline`. questions: where the answers' questions come from. taps: `hidden_states` indices
        that may be asked for, beside the last one. memory: bytes kept, of the computer's memory. store: for what is
        kept on disk. context: whether those of the prompts are read, too (`mmspec.training.recipe.Recipe.context`).
    """

    context = True

    def __init__(
        self,
        pipe: Any,
        questions: Questions,
        taps: Sequence[int] = (),
        memory: int = 4 << 30,
        store: Store | None = None,
        context: bool = True,
    ) -> None:
        self.pipe, self.questions, self.free, self.store, self.context = pipe, questions, memory, store, context
        self.device = pipe.target.model.device
        self.taps = tuple(sorted({*taps, pipe.target.num_layers}))
        self.kept, self.last = {}, {}

    def __call__(self, rows: list[Answered], taps: Sequence[int] = ()) -> Tensor:
        """[B, T, H] float32 features of whole sequences, right-padded with zeros; T is the longest row's length. Where
        there is no context, zeros stand for it.

        Args: taps: other hidden states instead, side by side: [B, T, len(taps) * H].
        """
        columns = [self.taps.index(tap) for tap in taps] or [len(self.taps) - 1]
        states = zip(rows, self.recall(rows), strict=True)
        found = [pad(one[:, columns].flatten(1), (0, 0, self.first(row), 0)) for row, one in states]
        return pad_sequence(found, batch_first=True).float()

    def first(self, row: Answered) -> int:
        """The first position of an answer's sequence whose states are there."""
        return 0 if self.context else row.start - 1

    def size(self, rows: list[Answered]) -> int:
        """Bytes of the states of all rows."""
        target = self.pipe.target
        width: int = target.hidden_size * target.model.dtype.itemsize
        return sum(len(row.ids) - self.first(row) for row in rows) * len(self.taps) * width

    def _packed(self, one: Tensor) -> dict[str, Tensor]:
        """See `Kept`."""
        return {"states": one}

    def _unpacked(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """See `Kept`."""
        return tensors["states"]

    def _compute(self, rows: list[Answered]) -> list[Tensor]:
        target = self.pipe.target
        inputs = prepare(self.pipe, [self.questions[row.index] for row in rows])
        texts = [row.ids for row in rows]
        heard = target.read(inputs, texts, self.taps)[1]
        states = torch.stack([heard.taps[tap] for tap in self.taps], 2)  # [B, T, taps, H]
        return [one[self.first(row) : len(row.ids)].clone() for row, one in zip(rows, states, strict=True)]
