"""Lookahead decoding: n-grams from parallel Jacobi trajectories, verified in the same forward that makes them (arXiv
2402.02057).

A window of guesses runs `window` tokens ahead of the text and `ngram - 1` iterations back in time. Token i of level j
was the target's choice after token i of level j - 1, so a column read downwards is an n-gram that the target could
say. In the tree, the oldest level is a chain below the pending token and every column hangs below its own token of the
chain: ancestors are then what lookahead's two-dimensional mask lets a token see. One forward advances all columns by a
level and verifies up to `branches` n-grams of the pool that begin with the pending token. Guesses are the argmax of raw
logits: no noise is looked at. A drafter that decides on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Shape, State, Verified
from mmspec.drafters.host import HostTree, plant
from mmspec.errors import InputError, MismatchError
from mmspec.placeholders import forbid, words
from mmspec.sampling import Sampler


class Lookahead(Drafter):
    """Drafts n-grams out of its own trajectories.

    Args: window: columns (W). ngram: tokens of an n-gram (N), 2 or more. branches: n-grams verified per round (G).
    Raises: InputError: a value that leaves nothing to draft.
    """

    kinds: frozenset[Kind] = frozenset({"point"})
    source = "lookahead decoding, arXiv 2402.02057"

    def __init__(self, window: int = 5, ngram: int = 4, branches: int = 4) -> None:
        if window < 1 or ngram < 2 or branches < 1:
            raise InputError(
                f"lookahead needs window and branches >= 1 and ngram >= 2, got {window}, {branches} and {ngram}"
            )
        self.window, self.ngram, self.branches = window, ngram, branches
        self.shapes = (Shape(window + ngram - 2, branches + 1, 1 + (window + branches) * (ngram - 1)),)  # or no draft

    def bind(self, target: Any) -> None:
        """Learn which ids must not be guessed. Raises MismatchError: the target takes chains alone."""
        if target.chains:
            raise MismatchError(
                f"lookahead needs branches, and {type(target.model).__name__} has layers with a running state, which "
                "take chains: use 'recycling' or 'suffix'"
            )
        self.placeholders = target.placeholders

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> LookingAhead:
        """Seed every row's window with the end of its prompt, and its pool with the prompt's n-grams."""
        return LookingAhead(self, [Trajectories(self, ids) for ids in state.ids])


class Trajectories:
    """One row's window and pool.

    levels: up to `ngram - 1` lists of `window` guesses, the oldest first.
    pool: first token -> its n-grams without it, the newest last, at most `branches` of them.
    """

    def __init__(self, drafter: Lookahead, ids: list[int]) -> None:
        self.drafter = drafter
        slots = set(drafter.placeholders)
        text = words(ids, slots) or [min(set(range(len(slots) + 1)) - slots)]
        self.levels = [(text * drafter.window)[-drafter.window :]]
        self.pool: dict[int, dict[tuple[int, ...], None]] = {}
        for start in range(len(ids) - drafter.ngram + 1):
            gram = ids[start : start + drafter.ngram]
            if slots.isdisjoint(gram):
                self.keep(gram)

    def keep(self, gram: list[int]) -> None:
        """Put an n-gram into the pool; the oldest with the same first token makes room."""
        known = self.pool.setdefault(gram[0], {})
        known.pop(tuple(gram[1:]), None)
        known[tuple(gram[1:])] = None
        if len(known) > self.drafter.branches:
            del known[next(iter(known))]

    def tree(self, pending: int, depth: int) -> tuple[HostTree, list[int]]:
        """The window, where it fits into the depth, and the n-grams; and the nodes of the newest level."""
        tree, newest = HostTree(pending), []
        if self.drafter.window + len(self.levels) - 1 <= depth:
            node = 0
            for column in zip(*self.levels, strict=True):
                node = below = tree.child(node, column[0])
                for guess in column[1:]:
                    below = tree.child(below, guess)
                newest.append(below)
        for gram in self.pool.get(pending, {}):
            tree.add(gram[:depth])
        return tree, newest

    def advance(self, guesses: list[int]) -> None:
        """Take the target's choices after the newest level; a full window gives its columns to the pool."""
        self.levels.append(guesses)
        if len(self.levels) == self.drafter.ngram:
            for gram in zip(*self.levels, strict=True):
                self.keep(list(gram))
            del self.levels[0]


@dataclass
class LookingAhead(Drafting):
    """Lookahead on one request.

    drafted: the draft that waits for its verification. newest: per row, its nodes of the newest level.
    """

    drafter: Lookahead
    rows: list[Trajectories]
    drafted: Draft | None = None
    newest: list[list[int]] = field(default_factory=list)

    def propose(self, state: State) -> Draft:
        """Window and n-grams of every row that still runs, in one tree each."""
        texts = zip(self.rows, state.ids, state.done, strict=True)
        levels = state.levels(self.drafter.window + self.drafter.ngram - 2)
        planned = [(HostTree(ids[-1]), []) if done else row.tree(ids[-1], levels) for row, ids, done in texts]
        self.newest = [nodes for _, nodes in planned]
        self.drafted = plant([tree for tree, _ in planned], state.emitted.device)
        return self.drafted

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Advance the windows that were verified."""
        own, self.drafted = self.drafted, None
        if own is None or own.size > draft.size or not any(self.newest):
            return
        same = (own.tokens == draft.tokens[:, : own.size]).all(1) & (own.parents == draft.parents[:, : own.size]).all(1)
        width = self.drafter.window
        nodes = torch.tensor([row or [0] * width for row in self.newest], device=same.device)
        logits = verified.logits.gather(1, nodes[..., None].expand(-1, -1, verified.logits.shape[-1]))  # [B, W, V]
        logits = forbid(logits, self.drafter.placeholders)
        for row, (kept, *guesses) in enumerate(torch.cat([same[:, None], logits.argmax(-1)], 1).tolist()):
            if kept and self.newest[row]:
                self.rows[row].advance(guesses)
