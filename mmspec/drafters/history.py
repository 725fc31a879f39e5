"""A memory of texts for suffix look-ups, of fixed size in bytes: the newest tokens push out the oldest.

The last `capacity` tokens lie in a ring; each remembers where the same token stood before, so the earlier occurrences
of a token form a list, newest first, that is walked and compared backwards (the hash chains of LZ77 compressors). A
walk over every earlier occurrence finds what a suffix tree of the same texts would; what is older than the ring is
forgotten without any work, and no Python object is kept per token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

END = -1
"""Stands between texts and in the place of ids that must not be copied: no match and no copy goes across it."""


class History:
    """The last `capacity` tokens of some texts.

    nbytes: what it takes, the same from the beginning: 12 bytes per token of capacity and 8 per slot of the index, of
        which there are at most two per token. len: how many tokens it holds.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        slots = 1 << capacity.bit_length()
        self._tokens = array("i", [0]) * capacity  # repeated: an array that is filled takes a sixteenth more
        self._before = array("q", [0]) * capacity
        self._last = array("q", [0]) * slots
        self._count = 0  # tokens ever written; token number t (from 1) lies in slot t % capacity

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(part.itemsize * len(part) for part in (self._tokens, self._before, self._last))

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    def extend(self, ids: Iterable[int]) -> None:
        """Append tokens to the text that is being written; END closes it."""
        for token in ids:
            self._count += 1
            slot = self._count % self.capacity
            self._tokens[slot] = token
            self._before[slot] = 0
            if token != END:
                place = self._place(token)
                self._before[slot] = self._last[place]
                self._last[place] = self._count

    def find(self, text: Sequence[int], most: int, longest: int, tries: int) -> tuple[int, list[list[int]]]:
        """What followed the longest ending of `text` that occurred before.

        Args: most: tokens of a continuation. longest: no match is compared beyond this length.
            tries: how many occurrences of the last token are looked at, newest first.
        Returns: the length of the match, 0 if there is none, and the continuations of its occurrences, newest first,
            none of them empty.
        """
        best = 0
        runs: list[list[int]] = []
        oldest = max(0, self._count - self.capacity)
        ending = text[-longest:]
        at = self._last[self._place(ending[-1])] if ending else 0
        while at > oldest and tries > 0:
            length = self._common(ending, at, oldest)
            if length >= max(1, best):
                run = self._following(at, most)
                if run:
                    if length > best:
                        best, runs = length, []
                    runs.append(run)
            at = self._before[at % self.capacity]
            tries -= 1
        return best, runs

    def _place(self, token: int) -> int:
        """The index slot of a token; tokens may share one, because every candidate is compared."""
        return (token * 0x9E3779B1 >> 7) & (len(self._last) - 1)

    def _common(self, ending: Sequence[int], at: int, oldest: int) -> int:
        """How many tokens up to number `at` equal the last ones of `ending`."""
        length = 0
        for token in reversed(ending):
            if at - length <= oldest or self._tokens[(at - length) % self.capacity] != token:
                break
            length += 1
        return length

    def _following(self, at: int, most: int) -> list[int]:
        run: list[int] = []
        for number in range(at + 1, min(at + most, self._count) + 1):
            token = self._tokens[number % self.capacity]
            if token == END:
                break
            run.append(token)
        return run
