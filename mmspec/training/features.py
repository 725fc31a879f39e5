"""The target's features of answered questions, computed when training asks for them.

The feature of a position is the hidden state that enters the target's head (`hidden_states[num_layers]`, after the last
norm), so `target.head(feature)` is the target's law of the next token. Storing features of a large target takes
terabytes; here they are computed online, and kept in memory only as far as `memory` allows, for the epochs that
follow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.training.answers import Answered, prepare
from mmspec.training.data import Questions


class Features:
    """Features of answers by one target.

    Args: pipe: a `mmspec.Pipeline`. questions: where the answers' questions come from. memory: bytes of features kept.
    """

    def __init__(self, pipe: Any, questions: Questions, memory: int = 4 << 30) -> None:
        self.pipe, self.questions, self.free = pipe, questions, memory
        self.kept: dict[int, Tensor] = {}

    def __call__(self, rows: list[Answered]) -> Tensor:
        """[B, T, H] float32 features of whole sequences, right-padded with zeros; T is the longest row's length."""
        missing = [row for row in rows if row.index not in self.kept]
        fresh = dict(zip((row.index for row in missing), self._compute(missing), strict=True)) if missing else {}
        found = [self.kept[row.index] if row.index in self.kept else fresh[row.index] for row in rows]
        for index, feature in fresh.items():
            if self.free >= feature.nbytes:
                self.free -= feature.nbytes
                self.kept[index] = feature
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True).float()

    @torch.no_grad()
    def _compute(self, rows: list[Answered]) -> list[Tensor]:
        target = self.pipe.target
        inputs = prepare(self.pipe, [self.questions[row.index] for row in rows])
        texts = [row.ids for row in rows]
        lengths = [len(text) for text in texts]
        tap = target.num_layers
        _, heard = target.read(inputs, texts, (tap,))
        return [feature[:length].clone() for feature, length in zip(heard.taps[tap], lengths, strict=True)]
