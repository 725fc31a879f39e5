"""Retrieval: what follows the text's ending in a datastore of texts is drafted, as a tree of counts (REST, arXiv
2311.08252).

The longest ending of the text that occurs in the datastore is looked up; the continuations of its occurrences vote,
and the tree holds the beginnings that are most frequent. A datastore is built from a folder of texts by
`mmspec datastore build` and lies in a folder of its own, which is given as `drafter=`. It never changes. A drafter that
decides on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.control import TREES
from mmspec.drafters.datastore import SORTED, Datastore
from mmspec.drafters.host import HostTree, commonest, plant
from mmspec.errors import InputError, MismatchError
from mmspec.placeholders import before
from mmspec.sampling import Sampler


class Retrieval(Drafter):
    """Drafts from a `Datastore`.

    Args:
        datastore: where to look. length: most levels of a draft. total: most nodes, the pending token included.
        longest: most tokens of the ending that is looked up, up to 16. shortest: endings below are not trusted.
        tries: occurrences that are read.
    Raises: InputError: a value that leaves nothing to draft.
    """

    kinds: frozenset[Kind] = frozenset({"point"})
    shapes = TREES
    method = "retrieval"
    source = "REST, arXiv 2311.08252"
    fits = ("vocab_size", "tokenizer")
    advice = "build a datastore (mmspec datastore build --help) and pass its folder"

    def __init__(
        self,
        datastore: Datastore,
        length: int = 8,
        total: int = 16,
        longest: int = SORTED,
        shortest: int = 2,
        tries: int = 256,
    ) -> None:
        if length < 1 or total < 2 or tries < 1 or not 1 <= shortest <= longest <= SORTED:
            raise InputError(
                f"retrieval needs length and tries >= 1, total >= 2 and 1 <= shortest <= longest <= {SORTED}, got "
                f"{length}, {tries}, {total}, {shortest} and {longest}"
            )
        self.datastore = datastore
        self.length, self.total, self.longest, self.shortest, self.tries = length, total, longest, shortest, tries

    def bind(self, target: Any) -> None:
        """Every id of the datastore must be one of the target's."""
        most = int(self.datastore.tokens.max())
        if most >= target.vocab_size:
            raise MismatchError(
                f"the datastore holds the id {most}, the target knows ids 0 to {target.vocab_size - 1}: build it with "
                "the target's tokenizer"
            )
        self.placeholders = target.placeholders

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the datastore; returns what `drafter.json` must say beside it."""
        self.datastore.save(folder)
        names = ("length", "total", "longest", "shortest", "tries")
        return {"options": {name: getattr(self, name) for name in names}}

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Retrieval:
        """The counterpart of `save`."""
        return cls(Datastore.load(folder), **description.get("options", {}))

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Retrieving:
        """Nothing to prepare."""
        return Retrieving(self)


@dataclass
class Retrieving(Drafting):
    """Retrieval on one request."""

    drafter: Retrieval

    def propose(self, state: State) -> Draft:
        """A tree per row, of the continuations of its longest ending."""
        return plant([self._tree(state, row) for row in range(len(state.ids))], state.emitted.device)

    def _tree(self, state: State, row: int) -> HostTree:
        ids, wanted = state.ids[row], self.drafter
        most = state.levels(wanted.length)
        if state.done[row] or most < 1:
            return HostTree(ids[-1])
        match, runs = wanted.datastore.find(ids[-wanted.longest :], most, wanted.longest, wanted.tries)
        if match < wanted.shortest:
            return HostTree(ids[-1])
        copies = [before(run, wanted.placeholders) for run in runs]
        return commonest(ids[-1], copies, state.nodes(wanted.total))

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """The datastore is not written to."""
