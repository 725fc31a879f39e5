"""A smaller vocabulary for drafts: an output head of the words that answers use most (FR-Spec, arXiv 2502.14856).

Where a vocabulary is large, most of what a small drafter reads is the target's output head, V x H numbers per level,
and some thousand words make nearly all of a text. A draft that holds these alone ends where the target says another
one, and nothing else changes: q is the law over them, 0 for all others, and rules that ask for q are told so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from mmspec.errors import CheckpointError
from mmspec.head import ShapedHead

LEAST = 8
"""Fewest words of a draft vocabulary: as many as a node has children at most."""


def widened(own: Tensor, ids: Tensor, vocabulary: int) -> Tensor:
    """Logits [.., words] of the words `ids` [words] as those [.., vocabulary] of all: -inf for the others."""
    return own.new_full((*own.shape[:-1], vocabulary), -torch.inf).index_copy(-1, ids, own)


def first_difference(one: Any, other: Any, size: int) -> int | None:
    """The first id below `size` that two tokenizers have different words for; None if there is none. What is a control
    token to one of them may have another name, as between a model and its release that chats."""
    mine, theirs = ({index: word for word, index in each.get_vocab().items()} for each in (one, other))
    control = one.added_tokens_decoder.keys() | other.added_tokens_decoder.keys()
    shared = (mine.keys() & theirs.keys()) - control
    return min((i for i in shared if i < size and mine[i] != theirs[i]), default=None)


class NarrowHead(nn.Module):
    """An output head's rows for some words.

    Args: head: [.., H] -> [.., V], with a `weight` [V, H] and perhaps a `bias` [V]. ids: [words] int64, ascending.

    places: [V] which of the words an id is; behind the last one for ids that are none.
    """

    def __init__(self, head: nn.Module, ids: Tensor) -> None:
        super().__init__()
        weight, bias = head.get_parameter("weight"), getattr(head, "bias", None)
        self.vocabulary = len(weight)
        self.ids = ids.to(weight.device)
        self.weight = weight.detach()[self.ids]
        self.bias = None if bias is None else bias.detach()[self.ids]
        self.shape: Callable[[Tensor], Tensor] = head.shape if isinstance(head, ShapedHead) else nn.Identity()
        words = torch.arange(len(ids), device=weight.device)
        self.places = torch.full((self.vocabulary,), len(ids), device=weight.device).index_copy(0, self.ids, words)

    def forward(self, features: Tensor) -> Tensor:
        """[.., V] of features [.., H]: -inf for ids that are not drafted."""
        own = self.shape(linear(features, self.weight, self.bias))
        if torch.compiler.is_compiling():  # fused with what reads it; by plain calls it would take far longer
            return pad(own, (0, 1), value=-torch.inf)[..., self.places]
        return widened(own, self.ids, self.vocabulary)


class WordRows(nn.Embedding):
    """An output head of a drafter's own: a row per word. No linear layer, because it is trained as a table is."""

    def forward(self, features: Tensor) -> Tensor:
        """[.., words] logits of features [.., H]."""
        return linear(features, self.weight)


def check_words(ids: Tensor, vocabulary: int, source: object) -> None:
    """Raise CheckpointError unless `ids` are different ids of a vocabulary, in ascending order."""
    if ids.dtype != torch.int64 or ids.dim() != 1 or not len(ids) or ids[0] < 0 or ids[-1] >= vocabulary:
        raise CheckpointError(
            f"the draft vocabulary in {source} is damaged, or of a larger vocabulary: it must be ids from 0 to "
            f"{vocabulary - 1}"
        )
    if not (ids[1:] > ids[:-1]).all():
        raise CheckpointError(f"the draft vocabulary in {source} is damaged: its ids must ascend")
