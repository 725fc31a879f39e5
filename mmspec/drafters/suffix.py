"""Suffix decoding: what followed the longest earlier occurrence of the text's ending is drafted, as a tree of counts
(SuffixDecoding, arXiv 2411.04975).

Every row looks in its own text (prompt and answer) and, where the user passes a `SuffixStore`, in the answers to
earlier requests. The longest match wins; its continuations vote, and the tree holds those beginnings that most of them
have. A longer match earns a deeper draft. A drafter that decides on the host: it reads ids, not the device, and the
decisions are the same at every temperature. Without a store nothing is remembered beyond a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy
from dataclasses import dataclass
from threading import Lock
from typing import Any

from mmspec.checkpoints import vocabulary_hash
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.control import COPIES
from mmspec.drafters.history import END, History
from mmspec.drafters.host import HostTree, commonest, plant
from mmspec.errors import InputError, MismatchError
from mmspec.sampling import Sampler

OWN_TOKENS = 1 << 16
"""Most tokens of its own text that a row looks in."""


class SuffixStore:
    """Answers that later requests may be drafted from: made by the user, and shared exactly where it is passed.

    Whoever can time the answers of a pipeline can learn a little of what its store holds: give users that must not
    know of each other a store each.

    Args: max_tokens: the newest this many tokens are kept; they take at most 28 bytes each, allocated at once.
    Raises: InputError: room for less than two tokens.
    """

    def __init__(self, max_tokens: int = 1 << 20) -> None:
        if not isinstance(max_tokens, int) or max_tokens < 2:
            raise InputError(f"a suffix store needs max_tokens >= 2, got {max_tokens!r}")
        self.history = History(max_tokens)
        self.vocabulary: Any = None
        self._lock = Lock()  # requests of several threads may end at the same time

    @property
    def nbytes(self) -> int:
        """Bytes of memory; they do not grow."""
        return self.history.nbytes

    def add(self, ids: Iterable[int]) -> None:
        """Remember an answer."""
        with self._lock:
            self.history.extend([*ids, END])

    def copied(self) -> SuffixStore:
        """A store of the same answers, which learns none of those that this one is told from now on."""
        other = copy(self)
        with self._lock:
            other.history = deepcopy(self.history)
        return other

    def claim(self, target: Any) -> None:
        """Ids mean something in one vocabulary only. Raises MismatchError: it holds answers in another one."""
        vocabulary = (target.vocab_size, vocabulary_hash(getattr(target, "tokenizer", None)))
        if self.vocabulary not in (None, vocabulary):
            raise MismatchError(
                f"the suffix store holds answers in another vocabulary of {self.vocabulary[0]} ids, the target's has "
                f"{vocabulary[0]}: make a store for each"
            )
        self.vocabulary = vocabulary


class Suffix(Drafter):
    """Drafts what followed the same ending before.

    Args:
        length: most levels of a draft. total: most nodes, the pending token included.
        factor: levels per token of the match; a long match is more to be trusted.
        share: least share of the continuations that a drafted node must lie on, 0 to 1.
        longest: a match counts no further than this. tries: occurrences that are compared, newest first.
        store: answers to earlier requests; None looks in the request's own text only.
    Raises: InputError: a value that leaves nothing to draft.
    """

    kinds: frozenset[Kind] = frozenset({"point"})
    shapes = COPIES
    source = "SuffixDecoding, arXiv 2411.04975"

    def __init__(
        self,
        length: int = 8,
        total: int = 12,
        factor: float = 2.0,
        share: float = 0.1,
        longest: int = 32,
        tries: int = 64,
        store: SuffixStore | None = None,
    ) -> None:
        if min(length, longest, tries) < 1 or total < 2 or factor < 0.5 or not 0 <= share <= 1:
            raise InputError(
                "suffix decoding needs length, longest and tries >= 1, total >= 2, factor >= 0.5 and share in [0, 1], "
                f"got {length}, {longest}, {tries}, {total}, {factor} and {share}"
            )
        self.length, self.total, self.factor, self.share = length, total, factor, share
        self.longest, self.tries, self.store = longest, tries, store

    def bind(self, target: Any) -> None:
        """Learn which ids must not be copied; a store must hold answers in the target's vocabulary."""
        self.placeholders = target.placeholders
        if self.store is not None:
            self.store.claim(target)

    def aside(self) -> Suffix:
        """See `mmspec.contract.Drafter`."""
        other = copy(self)
        other.store = None if self.store is None else self.store.copied()
        return other

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Matching:
        """An empty index per row; the prompts are read with the first proposal."""
        texts = zip(state.ids, state.limits, strict=True)
        own = [History(min(OWN_TOKENS, len(ids) + limit)) for ids, limit in texts]
        return Matching(self, own, [0] * len(own), [len(ids) - 1 for ids in state.ids])


@dataclass
class Matching(Drafting):
    """Suffix decoding on one request.

    own: per row, its text so far. read: how many of its ids are there.
    starts: per row, where its answer begins; None once the answer is in the store.
    """

    drafter: Suffix
    own: list[History]
    read: list[int]
    starts: list[int | None]

    def propose(self, state: State) -> Draft:
        """A tree per row, of the continuations of its longest match."""
        most, total = state.levels(self.drafter.length), state.nodes(self.drafter.total)
        trees = [self.tree(state, row, most, total)[1] for row in range(len(state.ids))]
        return plant(trees, state.emitted.device)

    def tree(self, state: State, row: int, most: int, total: int, behind: int = 0) -> tuple[int, HostTree]:
        """The length of a row's longest match, and the tree that it gives: at most `most` levels and `total` nodes.

        Args: behind: by how many tokens a match in the store counts as shorter.
        """
        ids, wanted = state.ids[row], self.drafter
        self.own[row].extend(self._plain(ids[self.read[row] :]))
        self.read[row] = len(ids)
        if state.done[row] or most < 1:
            return 0, HostTree(ids[-1])
        places = [(self.own[row], 0), *([(wanted.store.history, behind)] if wanted.store else [])]
        ending = ids[-wanted.longest :]
        found = [(less, *place.find(ending, most, wanted.longest, wanted.tries)) for place, less in places]
        match = max(length - less for less, length, _ in found)
        runs = [
            run[: max(1, int(wanted.factor * length))]
            for less, length, some in found
            if length - less == match
            for run in some
        ]
        return match, commonest(ids[-1], runs, total, wanted.share)

    def _plain(self, ids: list[int]) -> list[int]:
        return [END if token in self.drafter.placeholders else token for token in ids]

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Answers that ended go to the store."""
        for row, start in enumerate(self.starts):
            if start is not None and state.done[row] and self.drafter.store is not None:
                self.drafter.store.add(self._plain(state.ids[row][start:]))
                self.starts[row] = None
