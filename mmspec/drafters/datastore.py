"""A datastore of texts: token ids and their suffix array, for finding where a few tokens occur among millions.

Built once, read only afterwards: 8 bytes per token, on disk and in memory. Suffixes are sorted by their first SORTED
tokens, which is as far as a look-up compares; prefix doubling sorts them in four rounds (Manber and Myers, 1993).
Documents are separated, so that no match and no copy goes from one into the next.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from mmspec.errors import CheckpointError, InputError

FILE = "datastore.safetensors"
SORTED = 16
SEPARATOR = -1


def suffix_order(tokens: np.ndarray) -> np.ndarray:
    """[M] int32 places of `tokens` [M] int32, sorted by the SORTED tokens that begin there; the end comes first."""
    rank = tokens.astype(np.int64) - SEPARATOR + 1  # 0 is beyond the end
    order = np.zeros(len(tokens), dtype=np.int64)
    length = 1
    while length < SORTED:
        following = np.zeros_like(rank)
        following[:-length] = rank[length:]
        key = rank * (int(rank.max()) + 1) + following
        order = np.argsort(key, kind="stable")
        rank[order] = np.cumsum(np.diff(key[order], prepend=-1) > 0)
        length *= 2
    return order.astype(np.int32)


@dataclass(frozen=True)
class Datastore:
    """tokens: [M] int32, SEPARATOR after every document. order: [M] int32, see `suffix_order`."""

    tokens: np.ndarray
    order: np.ndarray

    @classmethod
    def build(cls, documents: Iterable[Sequence[int] | np.ndarray]) -> Datastore:
        """A datastore of documents, each a list of ids.

        Raises: InputError: no document has a token, or there are more than an int32 counts.
        """
        end = np.array([SEPARATOR], dtype=np.int32)
        stream = [part for document in documents if len(document) for part in (np.asarray(document, np.int32), end)]
        if not stream:
            raise InputError("a datastore needs text: there is not one token")
        tokens = np.concatenate(stream)
        if len(tokens) >= 2**31:
            raise InputError(f"a datastore holds less than {2**31} tokens, got {len(tokens)}: build several")
        return cls(tokens, suffix_order(tokens))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.tokens.nbytes + self.order.nbytes

    def find(self, text: Sequence[int], most: int, longest: int, tries: int) -> tuple[int, list[list[int]]]:
        """What follows the longest ending of `text` in the documents.

        Args: most: tokens of a continuation. longest: most tokens of the ending, up to SORTED.
            tries: how many occurrences are read, spread evenly over all of them.
        Returns: the length of the match, 0 if not even the last token occurs, and the continuations.
        """
        low, high = 0, min(longest, len(text))  # an ending that occurs has shorter ones that occur, too
        span = range(0)
        while low < high:
            middle = (low + high + 1) // 2
            found = self._occurrences(list(text[len(text) - middle :]))
            if found:
                low, span = middle, found
            else:
                high = middle - 1
        picked = np.unique(np.linspace(span.start, span.stop - 1, min(tries, len(span))).astype(np.int64))
        runs = [self._following(int(place) + low, most) for place in self.order[picked]]
        return low, [run for run in runs if run]

    def _occurrences(self, gram: list[int]) -> range:
        """Where in `order` the suffixes lie that begin with `gram`."""

        def beginning(place: Any) -> list[int]:
            return self.tokens[int(place) : int(place) + len(gram)].tolist()

        start = bisect_left(self.order, gram, key=beginning)
        return range(start, bisect_right(self.order, gram, lo=start, key=beginning))

    def _following(self, place: int, most: int) -> list[int]:
        run = self.tokens[place : place + most].tolist()
        return run[: run.index(SEPARATOR)] if SEPARATOR in run else run

    def save(self, folder: Path) -> None:
        """Write `datastore.safetensors`."""
        save_file({"tokens": self.tokens, "order": self.order}, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> Datastore:
        """The counterpart of `save`. Raises CheckpointError: the file is damaged."""
        parts = load_file(folder / FILE)
        tokens, order = parts.get("tokens"), parts.get("order")
        if (
            tokens is None
            or order is None
            or tokens.ndim != 1
            or tokens.shape != order.shape
            or {tokens.dtype, order.dtype} != {np.dtype(np.int32)}
            or not len(tokens)
        ):
            raise CheckpointError(f"{folder / FILE} is damaged: tokens and order must be int32 lists of one length")
        if order.min() < 0 or order.max() >= len(tokens) or tokens.min() < SEPARATOR:
            raise CheckpointError(f"{folder / FILE} is damaged: it points outside of itself")
        return cls(tokens, order)
