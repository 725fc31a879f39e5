"""Prompt lookup: copy what followed the last occurrence of the most recent n-gram, in the prompt or the output.

Source: prompt lookup decoding (A. Saxena, github.com/apoorvumang/prompt-lookup-decoding), also `generate` of
transformers. Differences: the longest n-gram is tried first, its most recent occurrence wins, and a copy never contains
a placeholder id (an image slot is not text). A host drafter: it reads the ids, not the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.control import COPIES
from mmspec.errors import InputError
from mmspec.placeholders import before
from mmspec.sampling import Sampler
from mmspec.tree import chain


class PromptLookup(Drafter):
    """Drafts by copying.

    Args: length: most tokens copied per round. ngram: longest n-gram that is looked up.
    """

    kinds: frozenset[Kind] = frozenset({"point"})
    shapes = COPIES
    drafts_chains = True
    source = "prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding"

    def __init__(self, length: int = 6, ngram: int = 3) -> None:
        if length < 1 or ngram < 1:
            raise InputError(f"prompt lookup needs length >= 1 and ngram >= 1, got {length} and {ngram}")
        self.length, self.ngram = length, ngram

    def bind(self, target: Any) -> None:
        """Learn which ids must not be copied."""
        self.placeholders = target.placeholders

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Copying:
        """Index the prompts."""
        return Copying(self, [Index(self.ngram) for _ in state.ids])


class Index:
    """The last two places where each n-gram of a growing text ended (the last one may be the text's own end)."""

    def __init__(self, ngram: int) -> None:
        self.ngram = ngram
        self.ends: dict[tuple[int, ...], tuple[int, int]] = {}
        self.read = 0

    def update(self, ids: list[int]) -> None:
        """Index what was added to the text since the last call."""
        for end in range(self.read + 1, len(ids) + 1):
            for n in range(1, min(self.ngram, end) + 1):
                gram = tuple(ids[end - n : end])
                self.ends[gram] = (end, self.ends.get(gram, (0, 0))[0])
        self.read = len(ids)

    def find(self, ids: list[int]) -> int | None:
        """Where the longest recent n-gram ended before the end of the text, or None."""
        for n in range(min(self.ngram, len(ids)), 0, -1):
            last, before = self.ends.get(tuple(ids[-n:]), (0, 0))
            if last == len(ids):
                last = before
            if last:
                return last
        return None


@dataclass
class Copying(Drafting):
    """Prompt lookup on one request."""

    drafter: PromptLookup
    indices: list[Index]

    def propose(self, state: State) -> Draft:
        """A chain per row; rows without a match, or with a shorter one, are padded with nodes marked invalid."""
        most = state.levels(self.drafter.length)
        copies = [self._copy(index, ids, most) for index, ids in zip(self.indices, state.ids, strict=True)]
        width = max(map(len, copies))
        rows = [ids[-1:] + copy + ids[-1:] * (width - len(copy)) for ids, copy in zip(state.ids, copies, strict=True)]
        draft = chain(torch.tensor(rows, device=state.emitted.device))
        if any(len(copy) < width for copy in copies):
            real = torch.tensor([[len(copy)] for copy in copies], device=state.emitted.device)
            draft.valid = draft.depth <= real
        return draft

    def _copy(self, index: Index, ids: list[int], most: int) -> list[int]:
        index.update(ids)
        start = index.find(ids)
        copy = [] if start is None else ids[start : start + most]
        return before(copy, self.drafter.placeholders)

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """The text itself is the memory."""
