"""Image tokens of a language model with one vocabulary for texts and pictures: its rows, in the order of the codes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.errors import InputError, shorten


class ImageWords(nn.Module):
    """Embeds ids of the image vocabulary by the language model's own embedding: [..] -> [.., H].

    Args: words: the language model's id of every id of the image vocabulary.
    """

    def __init__(self, embedding: nn.Module, words: Sequence[int]) -> None:
        super().__init__()
        self.embedding = embedding
        place = next(embedding.parameters()).device  # a captured forward may copy nothing from the host
        self.register_buffer("words", torch.tensor(words, device=place), persistent=False)
        self.words: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """See the class."""
        return self.embedding(self.words.to(ids.device)[ids])


class ImageLogits(nn.Module):
    """The language model's output head, for the image vocabulary alone: [.., H] -> [.., V].

    Where the model's ids are a run, its weights are used as they lie; else their rows are copied once.
    """

    def __init__(self, head: nn.Linear, words: Sequence[int]) -> None:
        super().__init__()
        self.head, self.words = head, list(words)
        self.run = self.words == list(range(self.words[0], self.words[0] + len(self.words)))
        self.rows: Tensor | None = None

    def forward(self, states: Tensor) -> Tensor:
        """See the class."""
        weight = self.head.weight
        if self.run:
            return nn.functional.linear(states, weight[self.words[0] : self.words[0] + len(self.words)])
        if self.rows is None or self.rows.device != weight.device or self.rows.dtype != weight.dtype:
            with torch.inference_mode(False):  # else no drafter could learn through a head that was used before
                self.rows = weight[torch.tensor(self.words, device=weight.device)].detach()
        return nn.functional.linear(states, self.rows)


def check_known(text: str, ids: Sequence[int], tokenizer: Any) -> None:
    """Raise InputError for a prompt with words that a tokenizer of whole words has no ids for.

    Args: ids: of the text.
    """
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        known = tokenizer.get_vocab()
        strange = [word for word in re.findall(r"\w+|[^\w\s]", text) if word not in known]
        raise InputError(f"the prompt has words that the model was never told: {shorten(strange)}")
